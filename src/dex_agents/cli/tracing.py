"""``trace``: a turn as a timeline, from the store alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence

import click
from msgspec import Struct

from dex_agents.backend import FlowSummary
from dex_agents.cli.errors import CommandError
from dex_agents.cli.render import (
    clock_time,
    counted,
    duration,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from dex_agents.cli.sessions import json_option
from dex_agents.cli.standing import standing
from dex_agents.cli.stores import open_session, store_option
from dex_agents.cli.timeline import Kind, Lane, Span, Turn, turns_of
from dex_agents.records import AgentSnapshot

__all__ = ("SessionTimeline", "read_timeline", "trace", "trace_id_of")

_BAR = 24
_COMPLETED = "completed"
_MARKS = {Kind.WAITED: "·", Kind.PAUSED: "-", Kind.RAN: "█", Kind.FAILED: "x"}
"""From the weakest to the strongest: the strongest of what falls into one cell is shown."""


class SessionTimeline(Struct, frozen=True):
    """A session and its turns."""

    summary: FlowSummary
    snapshot: AgentSnapshot
    turns: list[Turn]


@click.command()
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), help="Which turn; the last one by default.")
@click.option("--all", "every", is_flag=True, help="Every turn.")
@store_option
@json_option
def trace(session: str, turn: int | None, store: str, *, every: bool, as_json: bool) -> None:
    """Show a turn as a timeline: its Steps, attempts, waits, approvals and tokens."""
    if every and turn is not None:
        raise click.UsageError("Name a turn or use --all, not both.")
    found = asyncio.run(read_timeline(session, store))
    chosen = _chosen(found.turns, session, turn, every=every)
    if as_json:
        print_json(chosen)
        return
    for each in chosen:
        if each is not chosen[0]:
            print_line()
        _print_turn(found, each)


async def read_timeline(session: str, store: str) -> SessionTimeline:
    """Return a session's turns, up to now or to its end."""
    async with open_session(store, session) as client:
        summary = await client.describe_session(session)
        snapshot = await client.get_agent_snapshot(session)
        history = await client.read_history(session)
        stream = client.follow_events(session, follow=False)
        events = [each.event async for each in stream]
    turns = turns_of(history, events, summary.closed_at or time.time())
    return SessionTimeline(summary, snapshot, turns)


def trace_id_of(found: SessionTimeline, turn: Turn) -> str:
    """Return the trace of a turn; the store keeps that of the current or last one."""
    state = found.snapshot.state
    if state is None or state.turn_number != turn.number:
        return ""
    _, _, rest = state.trace_context.get("traceparent", "").partition("-")
    return rest.partition("-")[0]


def _chosen(turns: Sequence[Turn], session: str, number: int | None, *, every: bool) -> list[Turn]:
    if not turns:
        raise CommandError(f"Session {session} has had no turn so far.")
    if every:
        return list(turns)
    if number is None:
        return [turns[-1]]
    if number > len(turns):
        raise CommandError(f"Session {session} has had {counted(len(turns), 'turn')} so far.")
    return [turns[number - 1]]


def _print_turn(found: SessionTimeline, turn: Turn) -> None:
    tokens_in, tokens_out = turn.tokens
    computing = duration(turn.computing_seconds)
    waiting = duration(turn.wall_seconds - turn.computing_seconds)
    fields = [
        ("Session", found.summary.flow_id),
        ("Flow type", found.summary.flow_type),
        ("Turn", f"{turn.number}, {_standing(found, turn)}"),
        ("Began", clock_time(turn.begun_at)),
        ("Took", f"{duration(turn.wall_seconds)}: {computing} computing, {waiting} waiting"),
        ("Model calls", f"{turn.model_calls} ({tokens_in} tokens in, {tokens_out} out)"),
    ]
    if trace_id := trace_id_of(found, turn):
        fields.append(("Trace", trace_id))
    print_fields(fields)
    print_line()
    workers = _letters(turn)
    columns = ("#At", "!Step", "What, and how", "#Took", "!")
    print_table(columns, [_row(turn, lane, workers) for lane in turn.lanes])
    for worker, letter in workers.items():
        print_line(f"{letter} is worker {worker}")
    print_line(f"{_MARKS[Kind.RAN]} runs   x fails   · waits   - pauses before it is tried again")


def _standing(found: SessionTimeline, turn: Turn) -> str:
    return standing(found.summary, found.snapshot) if turn.is_open else "ended"


def _letters(turn: Turn) -> dict[str, str]:
    """Return a short name for each worker of a turn, in the order in which they came."""
    spans = sorted((s for lane in turn.lanes for s in lane.spans), key=lambda s: s.begun_at)
    workers = dict.fromkeys(span.worker for span in spans if span.worker)
    return {worker: f"W{number}" for number, worker in enumerate(workers, 1)}


def _row(turn: Turn, lane: Lane, workers: Mapping[str, str]) -> tuple[str, ...]:
    facts = [lane.what or lane.outcome]
    if lane.what and lane.outcome != _COMPLETED:
        facts.append(lane.outcome)
    if lane.tokens is not None:
        facts.append(f"{lane.tokens[0]} tokens in, {lane.tokens[1]} out")
    lines = [", ".join(facts), *_details(lane, workers)]
    at = duration(lane.spans[0].begun_at - turn.begun_at)
    took = duration(lane.spans[-1].ended_at - lane.spans[0].begun_at)
    return f"+{at}", lane.step_execution_id, "\n".join(lines), took, _bar(turn, lane)


def _details(lane: Lane, workers: Mapping[str, str]) -> Iterator[str]:
    """Yield what there is to say of single attempts and waits."""
    last = [span for span in lane.spans if span.kind in (Kind.RAN, Kind.FAILED)][-1]
    for span in lane.spans:
        on = f" on {workers[span.worker]}" if span.worker else ""
        if span.kind is Kind.FAILED:
            yield f"attempt {span.attempt}{on} failed: {span.told}"
        elif span.kind is Kind.WAITED and span.seconds >= 1:
            yield f"{'waits for' if span.is_open else 'waited'} {duration(span.seconds)}"
        elif span is last:
            yield f"attempt {span.attempt}{on}"


def _bar(turn: Turn, lane: Lane) -> str:
    cells = [" "] * _BAR
    for kind, mark in _MARKS.items():
        for span in lane.spans:
            if span.kind is kind:
                first, last = _cells(turn, span)
                cells[first : last + 1] = mark * (last + 1 - first)
    return "".join(cells)


def _cells(turn: Turn, span: Span) -> tuple[int, int]:
    scale = _BAR / (turn.wall_seconds or 1.0)
    first = min(int((span.begun_at - turn.begun_at) * scale), _BAR - 1)
    last = min(int((span.ended_at - turn.begun_at) * scale), _BAR - 1)
    return first, max(first, last)
