"""``show``: one session at a glance, with what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from dex_agents.backend import FlowSummary, StepHistoryEntry
from dex_agents.cli.render import (
    as_text,
    clock_time,
    counted,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
    shortened,
)
from dex_agents.cli.sessions import json_option
from dex_agents.cli.standing import missing_worker, standing
from dex_agents.cli.steps import retries, with_type
from dex_agents.cli.stores import open_session, store_option, typed_command
from dex_agents.records import AgentInterrupt, AgentMessage, AgentSnapshot, AgentToolCall

__all__ = ("described_call", "show")


@click.command()
@click.argument("session")
@store_option
@json_option
def show(session: str, store: str, *, as_json: bool) -> None:
    """Show a session: its state, its last messages, and what it waits for."""

    async def run() -> tuple[FlowSummary, AgentSnapshot, Sequence[StepHistoryEntry]]:
        async with open_session(store, session) as client:
            summary = await client.describe_session(session)
            snapshot = await client.get_agent_snapshot(session)
            return summary, snapshot, await client.read_history(session)

    summary, snapshot, history = asyncio.run(run())
    if as_json:
        print_json({"session": summary, "snapshot": snapshot})
        return
    print_fields(_fields(summary, snapshot, history))
    for message in snapshot.messages:
        _print_message(message)
    if snapshot.tool_calls:
        _print_calls(snapshot.tool_calls)
    if summary.status == "running":
        _print_questions(session, snapshot.pending_interrupts, store)
        if advice := missing_worker(summary, store):
            print_line()
            click.echo(printable(advice))


def described_call(call: AgentInterrupt) -> str:
    """Return the tool call that an interrupt is about, on one line."""
    return f"{call.tool_name} {shortened(as_text(call.arguments))}"


def _fields(
    summary: FlowSummary, snapshot: AgentSnapshot, history: Sequence[StepHistoryEntry]
) -> list[tuple[str, str]]:
    state, usage = snapshot.state, snapshot.usage
    turn = f", turn {state.turn_number}" if state is not None and state.turn_number else ""
    fields = [
        ("Session", summary.flow_id),
        ("Flow type", summary.flow_type),
        ("State", standing(summary, snapshot) + turn),
        ("Started", clock_time(summary.started_at)),
    ]
    if summary.closed_at is not None:
        fields.append(("Closed", clock_time(summary.closed_at)))
    if summary.failure:
        fields.append(("Reason", with_type(summary.failure, history)))
    if summary.status == "running":
        fields += [("Retrying", each) for each in retries(history)]
    if state is not None and state.last_turn_error:
        fields.append(("Last turn", f"failed: {with_type(state.last_turn_error, history)}"))
    if snapshot.queued_message_count:
        fields.append(("Queued", counted(snapshot.queued_message_count, "message")))
    if state is not None:
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        fields.append(("Model calls", f"{usage.model_calls} ({tokens})"))
    return fields


def _print_message(message: AgentMessage) -> None:
    text = message.text
    print_line()
    print_line(f"{message.sequence}  {message.role}  {message.turn_id}", "bold")
    print_line(shortened(as_text(message.framework_item)) if text is None else text)


def _print_calls(calls: Sequence[AgentToolCall]) -> None:
    rows = [
        (each.tool_call_id, each.tool_name, each.effect, each.status, as_text(each.arguments))
        for each in calls
    ]
    print_line()
    print_table(("Tool call", "Tool", "Effect", "Status", "Arguments"), rows)


def _print_questions(session: str, interrupts: Sequence[AgentInterrupt], store: str) -> None:
    for interrupt in interrupts:
        print_line()
        print_line(f"Waits for approval: {described_call(interrupt)}", "bold")
        for answer in ("approve", "reject"):
            command = typed_command(store, answer, session, interrupt.interrupt_id)
            click.echo(printable(f"  {command}"))
