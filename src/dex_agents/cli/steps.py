"""What each Step of a session did, worked out from its history and its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from dex_agents.backend import StepHistoryEntry
from dex_agents.records import AgentEvent, AgentEventType

__all__ = ("StepRow", "describe_steps")

_WAITED = "step_wait_for_completed"
_LOST = "step_attempt_failed"
_WHAT = {"ResumeTurn": "gathered the results", "AwaitUserMessage": "waited for a message"}


class StepRow(Struct, frozen=True):
    """One Step execution.

    Attributes:
        step_execution_id: Which.
        what: The tool that it called, or what else it did.
        attempts: How many there were.
        outcome: What became of it.
        begun_at: When its last attempt began.
        ended_at: When that was committed.
    """

    step_execution_id: str
    what: str
    attempts: int
    outcome: str
    begun_at: float
    ended_at: float


def describe_steps(
    history: Iterable[StepHistoryEntry], events: Iterable[AgentEvent]
) -> list[StepRow]:
    """Return a row for each Step execution that has ended, in the order in which they ended."""
    told: dict[str, list[AgentEvent]] = {}
    interrupts: dict[str, str] = {}
    for event in events:
        told.setdefault(event.step_execution_id, []).append(event)
        if event.type == AgentEventType.INTERRUPT_RAISED:
            interrupts[event.payload["interrupt_id"]] = event.payload["tool_name"]
    lines: dict[str, list[StepHistoryEntry]] = {}
    for entry in history:
        if entry.step_execution_id and entry.event_type != _WAITED:
            lines.setdefault(entry.step_execution_id, []).append(entry)
    rows = [_row(entries, told.get(name, []), interrupts) for name, entries in lines.items()]
    return sorted(rows, key=lambda row: row.ended_at)


def _row(
    entries: Sequence[StepHistoryEntry], told: Sequence[AgentEvent], interrupts: dict[str, str]
) -> StepRow:
    last = entries[-1]
    facts = dict(_facts(told, interrupts))
    failures = [f"attempt {e.final_attempt}: {e.error}" for e in entries if e.event_type == _LOST]
    ended = last.event_type.removeprefix("step_").removeprefix("execute_").replace("_", " ")
    return StepRow(
        step_execution_id=last.step_execution_id,
        what=facts.get("what", _WHAT.get(last.step_type, "")),
        attempts=last.final_attempt,
        outcome="; ".join([facts.get("outcome", ended), *failures]),
        begun_at=last.begun_at,
        ended_at=last.at,
    )


def _facts(told: Sequence[AgentEvent], interrupts: dict[str, str]) -> Iterable[tuple[str, str]]:
    asked: list[str] = []
    for event in told:
        payload: dict[str, Any] = event.payload
        match event.type:
            case AgentEventType.TURN_STARTED:
                yield "what", "took the user's message"
            case AgentEventType.TOOL_CALL_DEFERRED:
                asked.append(payload["tool_name"])
                yield "what", f"asked for {', '.join(asked)}"
            case AgentEventType.TOOL_CALL_STARTED:
                yield "what", payload["tool_name"]
            case AgentEventType.TOOL_CALL_FINISHED:
                yield "what", payload["tool_name"]
                yield "outcome", payload["status"].replace("_", " ")
            case AgentEventType.INTERRUPT_RESOLVED:
                yield "what", f"approval of {interrupts.get(payload['interrupt_id'], 'a tool')}"
                yield "outcome", "approved" if payload["approved"] else "rejected"
            case AgentEventType.TURN_COMPLETED:
                yield "what", "gave the answer"
            case AgentEventType.TURN_FAILED:
                yield "what", "noted that the turn failed"
