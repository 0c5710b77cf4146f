"""The daily tools that change sessions, and the list of them."""

from __future__ import annotations

import asyncio
import sys

import click
from msgspec import to_builtins

from dex_agents.backend import FlowSummary
from dex_agents.cli.errors import CommandError
from dex_agents.cli.render import clock_time, print_json, print_line, print_table, printable
from dex_agents.cli.standing import standing, wait_for_worker
from dex_agents.cli.stores import open_session, open_store, store_option
from dex_agents.client import AgentSessionClient
from dex_agents.records import AgentSnapshot

__all__ = ("acknowledge", "json_option", "send", "sessions", "start", "stop")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine.")


@click.command()
@click.argument("session")
@click.argument("message", required=False)
@click.option("--flow-type", metavar="TYPE", required=True, help="Which agent it is.")
@store_option
@json_option
def start(session: str, message: str | None, flow_type: str, store: str, *, as_json: bool) -> None:
    """Start a session, with a first message or without.

    A worker of the flow type runs it, now or when there is one. With - as the message,
    it is read from standard input.
    """
    text = None if message is None else _message(message)

    async def run() -> str:
        async with open_store(store, creates=True) as backend:
            client = AgentSessionClient(backend, flow_type)
            await client.start_session(session, text)
            return "" if as_json else await wait_for_worker(client, session, store)

    advice = asyncio.run(run())
    done = f"Session {session} has started."
    if text is not None and not text.strip():
        done += " The message is blank and was not sent."
    acknowledge(done, advice, as_json=as_json, session_id=session)


@click.command()
@click.argument("session")
@click.argument("message")
@store_option
@json_option
def send(session: str, message: str, store: str, *, as_json: bool) -> None:
    """Send a user message; it begins the session's next turn.

    With - as the message, it is read from standard input.
    """
    text = _message(message)

    async def run() -> str:
        async with open_session(store, session) as client:
            if not await client.send_user_message(session, text):
                raise CommandError("The message is blank. Nothing was sent.")
            return "" if as_json else await wait_for_worker(client, session, store)

    advice = asyncio.run(run())
    acknowledge(
        f"Sent to session {session}.", advice, as_json=as_json, session_id=session, sent=True
    )


@click.command()
@store_option
@json_option
def sessions(store: str, *, as_json: bool) -> None:
    """List all sessions, oldest first, with what each does or waits for."""

    async def run() -> list[tuple[FlowSummary, AgentSnapshot]]:
        async with open_store(store) as backend:
            summaries = await backend.list_flows()
            types = {each.flow_type for each in summaries}
            clients = {each: AgentSessionClient(backend, each) for each in types}
            return [(each, await _glance(clients[each.flow_type], each)) for each in summaries]

    found = asyncio.run(run())
    if as_json:
        print_json([{**to_builtins(each), "state": standing(each, seen)} for each, seen in found])
    elif found:
        rows = [
            (each.flow_id, each.flow_type, _state(each, seen), clock_time(each.started_at))
            for each, seen in found
        ]
        print_table(("Session", "Flow type", "State", "Started"), rows)
    else:
        print_line("There are no sessions yet.")


@click.command()
@click.argument("session")
@click.option("--reason", metavar="TEXT", default="", help="Is kept with the session.")
@store_option
@json_option
def stop(session: str, reason: str, store: str, *, as_json: bool) -> None:
    """Stop a session for good; it stays readable."""

    async def run() -> None:
        async with open_session(store, session) as client:
            await client.stop_session(session, reason)

    asyncio.run(run())
    acknowledge(f"Session {session} is stopped.", as_json=as_json, session_id=session)


def acknowledge(sentence: str, advice: str = "", *, as_json: bool, **facts: object) -> None:
    """Say that something was done, and what is left to do; as JSON, print the facts of it."""
    if as_json:
        print_json(facts)
        return
    print_line(sentence)
    if advice:
        click.echo(printable(advice))


def _message(argument: str) -> str:
    """Return the message that an argument is, or that it says to read."""
    return sys.stdin.read().rstrip("\n") if argument == "-" else argument


async def _glance(client: AgentSessionClient, summary: FlowSummary) -> AgentSnapshot:
    """Return the snapshot of a running session; how a closed one stands, its summary knows."""
    if summary.status != "running":
        return AgentSnapshot()
    return await client.get_agent_snapshot(summary.flow_id)


def _state(summary: FlowSummary, snapshot: AgentSnapshot) -> str:
    text = standing(summary, snapshot)
    has_failed = snapshot.state is not None and snapshot.state.last_turn_error is not None
    return f"{text}; its last turn failed" if has_failed else text
