"""The daily tools that watch: events, history, and the drawing of a flow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from dex_agents.backend import StepHistoryEntry
from dex_agents.cli.flows import flow_argument, load_flow
from dex_agents.cli.page import page, write_page
from dex_agents.cli.render import (
    as_text,
    clock_time,
    console,
    counted,
    print_json,
    print_table,
    printable,
    seconds,
    shortened,
)
from dex_agents.cli.sessions import json_option
from dex_agents.cli.steps import error_text
from dex_agents.cli.stores import open_session, store_option
from dex_agents.cli.tracing import read_timeline
from dex_agents.client import FollowedEvent
from dex_agents.records import AgentEventType
from dex_agents.session import client_table

__all__ = ("events", "graph", "history")

_DELTAS = (AgentEventType.TEXT_DELTA, AgentEventType.REASONING_DELTA)


@click.command()
@click.argument("session")
@click.option("--follow", "-f", is_flag=True, help="Wait for more until the session is closed.")
@click.option("--from", "position", metavar="POSITION", help="Only events behind this position.")
@store_option
@json_option
def events(session: str, position: str | None, store: str, *, follow: bool, as_json: bool) -> None:
    """Print a session's events; with --json, one object a line."""
    asyncio.run(_print_events(session, position, store, follow=follow, as_json=as_json))


@click.command()
@click.argument("session")
@click.option(
    "--html",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every turn as a picture to a page that needs no network.",
)
@store_option
@json_option
def history(session: str, file: Path | None, store: str, *, as_json: bool) -> None:
    """Print what a session's Steps did, with their attempts."""
    if file is not None:
        found = asyncio.run(read_timeline(session, store))
        write_page(file, page(found))
        click.echo(f"Wrote {counted(len(found.turns), 'turn')} of {session} to {file}.")
        return

    async def run() -> Sequence[StepHistoryEntry]:
        async with open_session(store, session) as client:
            return await client.read_history(session)

    entries = asyncio.run(run())
    if as_json:
        print_json(entries)
    else:
        columns = ("!Time", "!Step", "#Attempt", "#Took", "What, and why")
        print_table(columns, [_history_row(entry) for entry in entries])


@click.command()
@flow_argument(required=False)
@click.option("--session", "of_session", is_flag=True, help="Draw the agent session itself.")
def graph(flow: str | None, *, of_session: bool) -> None:
    """Draw a flow as a Mermaid flowchart; without an argument, the agent session's."""
    if flow and of_session:
        raise click.UsageError("Name a flow or use --session, not both.")
    table = load_flow(flow) if flow else client_table("AgentSession")
    click.echo(table.to_mermaid(), nl=False)


async def _print_events(
    session: str, position: str | None, store: str, *, follow: bool, as_json: bool
) -> None:
    printer = EventPrinter()
    try:
        async with (
            open_session(store, session) as client,
            aclosing(client.follow_events(session, position=position, follow=follow)) as followed,
        ):
            async for each in followed:
                if as_json:
                    print_json(each)
                else:
                    printer.print(each)
    finally:
        printer.end()


class EventPrinter:
    """Prints events a line each, and the pieces of one text behind each other."""

    def __init__(self) -> None:
        self._text_of: tuple[str, str, int] | None = None

    def print(self, followed: FollowedEvent) -> None:
        """Print one event."""
        event = followed.event
        text_of = (event.type, event.step_execution_id, event.attempt)
        if event.type not in _DELTAS or text_of != self._text_of:
            self.end()
            end = "" if event.type in _DELTAS else "\n"
            console().print(self._head(followed), end=end, soft_wrap=True)  # one line each
        if event.type in _DELTAS:
            self._text_of = text_of
            click.echo(printable(str(event.payload.get("text", ""))), nl=False)

    def end(self) -> None:
        """End the line of a text."""
        if self._text_of is not None:
            self._text_of = None
            click.echo()

    def _head(self, followed: FollowedEvent) -> Text:
        event = followed.event
        step = event.step_execution_id
        if event.attempt > 1:
            step = f"{step} (attempt {event.attempt})"
        head = Text(f"{followed.position:>5}  ", style="dim")
        head.append(printable(f"{event.turn_id}  {step}  ")).append(printable(event.type), "bold")
        if followed.supersedes:
            head.append("  [replaces what an earlier attempt wrote]")
        if event.type in _DELTAS:
            return head.append("  ")
        facts = [f"{name}={_fact(value)}" for name, value in event.payload.items()]
        return head.append(printable("  " + " ".join(facts)))


def _fact(value: Any) -> str:
    if isinstance(value, dict):  # such as token counts, of which most are usually 0
        value = {name: each for name, each in value.items() if each}
    return shortened(as_text(value))


def _history_row(entry: StepHistoryEntry) -> tuple[str, ...]:
    name = entry.step_execution_id or entry.step_type
    attempt = str(entry.final_attempt) if entry.final_attempt else ""
    took = seconds(entry.at - entry.begun_at) if entry.begun_at else ""
    what = entry.event_type.replace("wait_for", "wait").replace("execution_", "")
    what = what.removeprefix("step_").removeprefix("execute_").replace("_", " ")
    lines = (what, error_text(entry)) if entry.error else (what,)
    return clock_time(entry.at), name, attempt, took, "\n".join(lines)
