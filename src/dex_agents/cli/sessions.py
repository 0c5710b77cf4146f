"""The daily tools that change or show sessions."""

from __future__ import annotations

import asyncio

import click

from dex_agents.backend import FlowSummary
from dex_agents.cli.errors import CommandError
from dex_agents.cli.render import (
    as_text,
    clock_time,
    print_fields,
    print_json,
    print_line,
    print_table,
    shortened,
)
from dex_agents.cli.stores import open_session, open_store, store_option
from dex_agents.client import AgentSessionClient
from dex_agents.records import AgentInterrupt, AgentSnapshot

__all__ = (
    "acknowledge",
    "described_call",
    "json_option",
    "send",
    "sessions",
    "show",
    "start",
    "stop",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine.")


@click.command()
@click.argument("session")
@click.argument("message", required=False)
@click.option("--flow-type", metavar="TYPE", required=True, help="Which agent it is.")
@store_option
@json_option
def start(session: str, message: str | None, flow_type: str, store: str, *, as_json: bool) -> None:
    """Start a session, with a first message or without.

    A worker of the flow type runs it, now or when there is one.
    """

    async def run() -> None:
        async with open_store(store, creates=True) as backend:
            await AgentSessionClient(backend, flow_type).start_session(session, message)

    asyncio.run(run())
    acknowledge(f"Session {session} has started.", as_json=as_json, session_id=session)


@click.command()
@click.argument("session")
@click.argument("message")
@store_option
@json_option
def send(session: str, message: str, store: str, *, as_json: bool) -> None:
    """Send a user message; it begins the session's next turn."""

    async def run() -> bool:
        async with open_session(store, session) as client:
            return await client.send_user_message(session, message)

    if not asyncio.run(run()):
        raise CommandError("The message is blank. Nothing was sent.")
    acknowledge(f"Sent to session {session}.", as_json=as_json, session_id=session, sent=True)


@click.command()
@store_option
@json_option
def sessions(store: str, *, as_json: bool) -> None:
    """List all sessions, oldest first."""

    async def run() -> list[FlowSummary]:
        async with open_store(store) as backend:
            return list(await backend.list_flows())

    found = asyncio.run(run())
    if as_json:
        print_json(found)
    elif found:
        rows = [
            (each.flow_id, each.flow_type, each.status, clock_time(each.started_at))
            for each in found
        ]
        print_table(("Session", "Flow type", "Status", "Started"), rows)
    else:
        print_line("There are no sessions yet.")


@click.command()
@click.argument("session")
@store_option
@json_option
def show(session: str, store: str, *, as_json: bool) -> None:
    """Show a session: its state, its last messages, and what it waits for."""

    async def run() -> tuple[FlowSummary, AgentSnapshot]:
        async with open_session(store, session) as client:
            summary = await client.describe_session(session)
            return summary, await client.get_agent_snapshot(session)

    summary, snapshot = asyncio.run(run())
    if as_json:
        print_json({"session": summary, "snapshot": snapshot})
    else:
        _show(summary, snapshot)


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


def acknowledge(sentence: str, *, as_json: bool, **facts: object) -> None:
    """Say that something was done; as JSON, print the facts of it."""
    if as_json:
        print_json(facts)
    else:
        print_line(sentence)


def described_call(call: AgentInterrupt) -> str:
    """Return the tool call that an interrupt is about, on one line."""
    return f"{call.tool_name} {shortened(as_text(call.arguments))}"


def _show(summary: FlowSummary, snapshot: AgentSnapshot) -> None:
    print_fields(_summary_fields(summary, snapshot))
    for message in snapshot.messages:
        text = message.text
        if text is None:
            text = shortened(as_text(message.framework_item))
        print_line()
        print_line(f"{message.sequence}  {message.role}  {message.turn_id}", "bold")
        print_line(text)
    if snapshot.tool_calls:
        print_line()
        print_table(
            ("Tool call", "Tool", "Effect", "Status", "Arguments"),
            [
                (
                    each.tool_call_id,
                    each.tool_name,
                    each.effect,
                    each.status,
                    as_text(each.arguments),
                )
                for each in snapshot.tool_calls
            ],
        )
    for interrupt in snapshot.pending_interrupts:
        print_line()
        print_line(f"Waits for an approval: {described_call(interrupt)}", "bold")
        print_line(f"  dex-agents approve {summary.flow_id} {interrupt.interrupt_id}")


def _summary_fields(summary: FlowSummary, snapshot: AgentSnapshot) -> list[tuple[str, str]]:
    state, usage = snapshot.state, snapshot.usage
    fields = [
        ("Session", summary.flow_id),
        ("Flow type", summary.flow_type),
        ("Status", summary.status),
        ("Started", clock_time(summary.started_at)),
    ]
    if summary.closed_at is not None:
        fields.append(("Closed", clock_time(summary.closed_at)))
    if summary.failure:
        fields.append(("Reason", summary.failure))
    if state is None:
        return [*fields, ("State", "not yet begun: it waits for a worker")]
    fields.append(("State", f"{state.status.replace('_', ' ')}, turn {state.turn_number}"))
    if state.last_turn_error:
        fields.append(("Last turn", f"failed: {state.last_turn_error}"))
    if snapshot.queued_message_count:
        fields.append(("Queued", f"{snapshot.queued_message_count} messages"))
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    return [*fields, ("Model calls", f"{usage.model_calls} ({tokens})")]
