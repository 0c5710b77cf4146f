"""A session's turns as timelines, worked out from its history and its events alone.

The history says when each attempt began and ended; the events, which are best
effort, say what it was about. Without them a timeline has fewer names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from dex_agents.backend import StepHistoryEntry
from dex_agents.cli.steps import WHAT, answer_of, error_text, facts_of
from dex_agents.records import AgentEvent, AgentEventType

__all__ = ("Kind", "Lane", "Span", "Turn", "turns_of")

_BEGINNERS = ("StartAgentSession", "AwaitUserMessage")
_WAITED = "step_wait_for_completed"
_FAILURES = ("step_attempt_failed", "step_execute_failed", "step_wait_for_failed")
_ENDED = ("step_execute_completed", "step_execute_failed", "step_canceled")


class Kind(StrEnum):
    """What a stretch of a lane is."""

    RAN = "ran"
    FAILED = "failed"
    WAITED = "waited"
    PAUSED = "paused"


class Span(Struct, frozen=True):
    """A stretch of time of one Step execution. Times are seconds since 1970.

    Attributes:
        kind: What it is; a pause lies between two attempts.
        attempt: Which attempt ran; 0 for a wait.
        worker: Who ran it, where the engine tells.
        told: How it failed, or how a wait was ended.
        is_open: Whether it still goes on.
    """

    kind: Kind
    begun_at: float
    ended_at: float
    attempt: int = 0
    worker: str = ""
    told: str = ""
    is_open: bool = False

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended_at - self.begun_at


class Lane(Struct, frozen=True):
    """One Step execution within a turn.

    Attributes:
        step_execution_id: Which.
        what: What it called, or did.
        outcome: What came of it.
        spans: One after the other.
        tokens: In and out, of a model call.
    """

    step_execution_id: str
    what: str
    outcome: str
    spans: tuple[Span, ...]
    tokens: tuple[int, int] | None = None


class Turn(Struct, frozen=True):
    """One turn.

    Attributes:
        number: From 1.
        lanes: In the order in which they began.
        is_open: Whether it has not ended.
    """

    number: int
    begun_at: float
    ended_at: float
    lanes: tuple[Lane, ...]
    is_open: bool

    @property
    def wall_seconds(self) -> float:
        """From the user's message to the end, or to now."""
        return self.ended_at - self.begun_at

    @property
    def computing_seconds(self) -> float:
        """How long at least one attempt ran."""
        ran = sorted(
            (span.begun_at, span.ended_at)
            for lane in self.lanes
            for span in lane.spans
            if span.kind in (Kind.RAN, Kind.FAILED)
        )
        total, reached = 0.0, self.begun_at
        for begun, ended in ran:
            total += max(ended - max(begun, reached), 0.0)
            reached = max(reached, ended)
        return total

    @property
    def tokens(self) -> tuple[int, int]:
        """In and out, of all its model calls."""
        counts = [lane.tokens for lane in self.lanes if lane.tokens is not None]
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    @property
    def model_calls(self) -> int:
        """How many have ended."""
        return sum(lane.tokens is not None for lane in self.lanes)


def turns_of(
    history: Iterable[StepHistoryEntry], events: Iterable[AgentEvent], now: float
) -> list[Turn]:
    """Return a session's turns, oldest first.

    Args:
        history: The session's, oldest first.
        events: The session's.
        now: Until when what is open has lasted.
    """
    entries: dict[str, list[StepHistoryEntry]] = {}
    for entry in history:
        if entry.step_execution_id:
            entries.setdefault(entry.step_execution_id, []).append(entry)
    told = _Told(events)
    members: dict[str, list[str]] = {}
    for name in entries:
        members.setdefault(_beginner(name, entries), []).append(name)
    begun = [root for root in members if _is_turn(root, members[root], entries)]
    begun.sort(key=lambda root: entries[root][-1].at)
    return [
        _turn(number, members[root], entries, told, now) for number, root in enumerate(begun, 1)
    ]


class _Told:
    """What the events say of each Step execution."""

    def __init__(self, events: Iterable[AgentEvent]) -> None:
        self._by_execution: dict[str, list[AgentEvent]] = {}
        self._interrupts: dict[str, str] = {}
        for event in events:
            self._by_execution.setdefault(event.step_execution_id, []).append(event)
            if event.type == AgentEventType.INTERRUPT_RAISED:
                self._interrupts[event.payload["interrupt_id"]] = event.payload["tool_name"]

    def facts(self, name: str) -> Mapping[str, str]:
        """Return what an execution did, and what came of it."""
        return dict(facts_of(self._by_execution.get(name, ()), self._interrupts))

    def answer(self, name: str) -> str:
        """Return how an approval was answered, with the reason if there is one."""
        for event in self._by_execution.get(name, ()):
            if event.type == AgentEventType.INTERRUPT_RESOLVED:
                answer, reason = answer_of(event.payload), event.payload["rejection_message"]
                by = {"approved": "approved by a person", "rejected": "rejected by a person"}
                words = by.get(answer, "its deadline passed")
                return f"{words}: {reason}" if reason and answer == "rejected" else words
        return ""

    def tokens(self, name: str) -> tuple[int, int] | None:
        """Return the tokens of a model call that has ended."""
        for event in self._by_execution.get(name, ()):
            if event.type == AgentEventType.USAGE_RECORDED:
                used = event.payload["recorded"]
                return used["input_tokens"], used["output_tokens"]
        return None


def _beginner(name: str, entries: Mapping[str, Sequence[StepHistoryEntry]]) -> str:
    """Return the execution that began the turn of another: whoever scheduled it, and so on."""
    seen: set[str] = set()
    while name in entries and name not in seen and entries[name][0].step_type not in _BEGINNERS:
        seen.add(name)
        name = entries[name][0].origin
    return name


def _is_turn(
    root: str, names: Sequence[str], entries: Mapping[str, Sequence[StepHistoryEntry]]
) -> bool:
    """Return whether an execution began a turn: more came of it than a wait for a message."""
    if root not in entries:
        return False
    has_ended = entries[root][-1].event_type == "step_execute_completed"
    return has_ended and (len(names) > 1 or entries[root][0].step_type == "AwaitUserMessage")


def _turn(
    number: int,
    names: Sequence[str],
    entries: Mapping[str, Sequence[StepHistoryEntry]],
    told: _Told,
    now: float,
) -> Turn:
    firsts = [each[0] for each in entries.values()]
    is_open = not any(e.step_type == "AwaitUserMessage" and e.origin in names for e in firsts)
    lanes = [_lane(name, entries[name], told, now) for name in names]
    lanes.sort(key=lambda lane: lane.spans[0].begun_at)
    return Turn(
        number=number,
        begun_at=min(lane.spans[0].begun_at for lane in lanes),
        ended_at=max(span.ended_at for lane in lanes for span in lane.spans),
        lanes=tuple(lanes),
        is_open=is_open,
    )


def _lane(name: str, entries: Sequence[StepHistoryEntry], told: _Told, now: float) -> Lane:
    last, facts = entries[-1], told.facts(name)
    is_beginner = last.step_type in _BEGINNERS
    # The wait for the message that begins a turn lies before the turn.
    shown = [entries[-1]] if is_beginner else entries
    spans = tuple(_spans(shown, now, told.answer(name)))
    ended = last.event_type.removeprefix("step_").removeprefix("execute_").replace("_", " ")
    open_as = "waits" if last.event_type == _WAITED else "is tried again"
    outcome = facts.get("outcome", ended) if last.event_type in _ENDED else open_as
    answer = told.answer(name)
    return Lane(
        step_execution_id=name,
        what=facts.get("what", WHAT.get(last.step_type, "")),
        outcome=answer or outcome,
        spans=spans,
        tokens=told.tokens(name),
    )


def _spans(entries: Sequence[StepHistoryEntry], now: float, answer: str) -> Iterator[Span]:
    """Yield one behind the other, also where the clocks of two workers disagree."""
    before: StepHistoryEntry | None = None
    reached = 0.0
    for entry in entries:
        begun = min(entry.begun_at or entry.at, entry.at)
        if before is not None and begun > reached:
            yield _between(before, reached, begun, answer)
        begun = max(begun, reached)
        reached = max(entry.at, begun)
        is_failure = entry.event_type in _FAILURES
        yield Span(
            kind=Kind.FAILED if is_failure else Kind.RAN,
            begun_at=begun,
            ended_at=reached,
            attempt=entry.final_attempt,
            worker=entry.worker,
            told=error_text(entry) if is_failure else "",
        )
        before = entry
    if before is not None and before.event_type not in _ENDED and now > reached:
        yield _between(before, reached, now, "", is_open=True)


def _between(
    before: StepHistoryEntry, since: float, until: float, answer: str, *, is_open: bool = False
) -> Span:
    has_waited = before.event_type == _WAITED
    return Span(
        kind=Kind.WAITED if has_waited else Kind.PAUSED,
        begun_at=since,
        ended_at=until,
        told=answer if has_waited else "",
        is_open=is_open,
    )
