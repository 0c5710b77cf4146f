"""What each Step of a session did, worked out from its history and its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dex_agents.backend import StepHistoryEntry
from dex_agents.records import AgentEvent, AgentEventType, ToolCallStatus
from dex_agents.session.notes import EXPIRED_MESSAGE

__all__ = (
    "WHAT",
    "StepRow",
    "answer_of",
    "describe_steps",
    "error_text",
    "facts_of",
    "retries",
    "with_type",
)

_WAITED = "step_wait_for_completed"
_LOST = "step_attempt_failed"
WHAT = {"ResumeTurn": "gathered the results", "AwaitUserMessage": "waited for a message"}


class StepRow(Struct, frozen=True):
    """One Step execution.

    Attributes:
        step_execution_id: Which.
        what: The tool that it called, or what else it did.
        attempts: How many there were.
        outcome: What became of it.
        scheduled_at: When it was scheduled; it may have waited since, or run more than once.
        begun_at: When its last attempt began.
        ended_at: When that was committed.
    """

    step_execution_id: str
    what: str
    attempts: int
    outcome: str
    scheduled_at: float
    begun_at: float
    ended_at: float

    @property
    def length(self) -> float:
        """How long it took in all, its waiting and every attempt included."""
        return self.ended_at - self.scheduled_at


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
        if entry.step_execution_id:
            lines.setdefault(entry.step_execution_id, []).append(entry)
    rows = [
        _row(entries, told.get(name, []), interrupts)
        for name, entries in lines.items()
        if entries[-1].event_type != _WAITED
    ]
    return sorted(rows, key=lambda row: row.ended_at)


def error_text(entry: StepHistoryEntry) -> str:
    """Return an error with its type, as Python prints it: some messages mean little alone."""
    kind = (entry.error_type or "").rpartition(".")[2]
    return f"{kind}: {entry.error}" if kind and entry.error != kind else entry.error or ""


def with_type(error: str, history: Iterable[StepHistoryEntry]) -> str:
    """Return an error's message with the type that the history has for it."""
    return next((error_text(each) for each in reversed([*history]) if each.error == error), error)


def retries(history: Iterable[StepHistoryEntry]) -> list[str]:
    """Return what is tried again: which Step, its attempt, and how the one before has failed."""
    last = {each.step_execution_id: each for each in history if each.step_execution_id}
    return [
        f"{name}, attempt {each.final_attempt + 1}; "
        f"attempt {each.final_attempt} failed: {error_text(each)}"
        for name, each in last.items()
        if each.event_type == _LOST
    ]


def answer_of(resolved: Mapping[str, Any]) -> str:
    """Return what the payload of ``interrupt_resolved`` says; an expired one nobody has refused."""
    if resolved["approved"]:
        return "approved"
    return "expired" if resolved["rejection_message"] == EXPIRED_MESSAGE else "rejected"


def _row(
    entries: Sequence[StepHistoryEntry], told: Sequence[AgentEvent], interrupts: dict[str, str]
) -> StepRow:
    last = entries[-1]
    facts = dict(facts_of(told, interrupts))
    failures = [f"attempt {e.final_attempt}: {e.error}" for e in entries if e.event_type == _LOST]
    ended = last.event_type.removeprefix("step_").removeprefix("execute_").replace("_", " ")
    return StepRow(
        step_execution_id=last.step_execution_id,
        what=facts.get("what", WHAT.get(last.step_type, "")),
        attempts=last.final_attempt,
        outcome="; ".join([facts.get("outcome", ended), *failures]),
        scheduled_at=min(entry.scheduled_at for entry in entries if entry.scheduled_at),
        begun_at=last.begun_at,
        ended_at=last.at,
    )


def facts_of(
    told: Sequence[AgentEvent], interrupts: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """Yield what a Step execution did, and what came of it, as its events tell."""
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
            case AgentEventType.TOOL_CALL_FINISHED if payload["status"] != ToolCallStatus.REJECTED:
                yield "what", payload["tool_name"]
                yield "outcome", payload["status"].replace("_", " ")
            case AgentEventType.INTERRUPT_RESOLVED:
                yield "what", f"approval of {interrupts.get(payload['interrupt_id'], 'a tool')}"
                yield "outcome", answer_of(payload)
            case AgentEventType.TURN_COMPLETED:
                yield "what", "gave the answer"
            case AgentEventType.TURN_FAILED:
                yield "what", "noted that the turn failed"
