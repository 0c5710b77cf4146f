"""Timelines from a history and its events alone: no store, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents.backend import StepHistoryEntry
from dex_agents.cli.timeline import Kind, turns_of
from dex_agents.records import AgentEvent
from dex_agents.session.notes import EXPIRED_MESSAGE

T0 = 1_000_000.0


def entry(what, execution, begun, at, *, origin="", attempt=1, error=None, worker="w-1"):
    step = execution.rpartition("-")[0]
    return StepHistoryEntry(
        f"step_{what}",
        step,
        execution,
        attempt,
        at=T0 + at,
        scheduled_at=T0 + begun,
        begun_at=T0 + begun,
        origin=origin,
        error=error,
        error_type="builtins.OSError" if error else None,
        worker=worker,
    )


def beginning(at=0.0):
    return entry("execute_completed", "StartAgentSession-1", at, at + 1)


def waiting_again(origin, at):
    return entry("wait_for_completed", "AwaitUserMessage-1", at, at, origin=origin)


def test_a_session_without_a_message_has_had_no_turn():
    """Its start leads to a wait, and to nothing else."""
    history = [beginning(), waiting_again("StartAgentSession-1", 1)]
    assert turns_of(history, [], now=T0 + 9) == []


def test_attempts_pauses_and_waits_follow_each_other():
    """A failed attempt, the pause behind it, and the one that helped."""
    history = [
        beginning(),
        entry("attempt_failed", "RunModel-1", 1, 2, origin="StartAgentSession-1", error="no"),
        entry("execute_completed", "RunModel-1", 4, 5, origin="StartAgentSession-1", attempt=2),
        waiting_again("RunModel-1", 5),
    ]
    (turn,) = turns_of(history, [], now=T0 + 9)
    assert not turn.is_open
    assert (turn.number, turn.wall_seconds, turn.computing_seconds) == (1, 5, 3)
    _, model = turn.lanes
    assert [(s.kind, s.begun_at - T0, s.ended_at - T0, s.attempt) for s in model.spans] == [
        (Kind.FAILED, 1, 2, 1),
        (Kind.PAUSED, 2, 4, 0),
        (Kind.RAN, 4, 5, 2),
    ]
    assert model.spans[0].told == "OSError: no"


def test_what_still_waits_lasts_until_now():
    """And the turn is open."""
    history = [
        beginning(),
        entry("execute_completed", "RunModel-1", 1, 2, origin="StartAgentSession-1"),
        entry("wait_for_completed", "AwaitToolApproval-1", 2, 2, origin="RunModel-1"),
    ]
    (turn,) = turns_of(history, [], now=T0 + 100)
    assert turn.is_open
    span = turn.lanes[-1].spans[-1]
    assert (span.kind, span.seconds, span.is_open) == (Kind.WAITED, 98, True)
    assert turn.lanes[-1].outcome == "waits"


@pytest.mark.parametrize(
    ("approved", "message", "told"),
    [
        (True, None, "approved by a person"),
        (False, "too much", "rejected by a person: too much"),
        (False, None, "rejected by a person"),
        (False, EXPIRED_MESSAGE, "its deadline passed"),
    ],
)
def test_a_wait_says_who_ended_it(approved, message, told):
    """As its event has it."""
    history = [
        beginning(),
        entry("execute_completed", "RunModel-1", 1, 2, origin="StartAgentSession-1"),
        entry("wait_for_completed", "AwaitToolApproval-1", 2, 2, origin="RunModel-1"),
        entry("execute_completed", "AwaitToolApproval-1", 50, 51, origin="RunModel-1"),
    ]
    payload = {"interrupt_id": "i", "approved": approved, "rejection_message": message}
    events = [AgentEvent("interrupt_resolved", "turn-1", "AwaitToolApproval-1", 1, payload)]
    (turn,) = turns_of(history, events, now=T0 + 60)
    approval = turn.lanes[-1]
    assert approval.outcome == told
    (waited,) = [span for span in approval.spans if span.kind is Kind.WAITED]
    assert (waited.seconds, waited.told) == (48, told)


def test_tokens_are_those_of_the_events():
    """Without them there are none, and the timeline is there all the same."""
    history = [
        beginning(),
        entry("execute_completed", "RunModel-1", 1, 2, origin="StartAgentSession-1"),
    ]
    usage = {"recorded": {"input_tokens": 7, "output_tokens": 3}, "session": {}}
    events = [AgentEvent("usage_recorded", "turn-1", "RunModel-1", 1, usage)]
    ((with_events,), (without,)) = (turns_of(history, told, now=T0 + 9) for told in (events, []))
    assert (with_events.tokens, with_events.model_calls) == ((7, 3), 1)
    assert (without.tokens, without.model_calls) == ((0, 0), 0)
    assert [lane.spans for lane in without.lanes] == [lane.spans for lane in with_events.lanes]


def test_each_message_begins_a_turn():
    """Its wait lies before the turn; what follows belongs to it by who scheduled it."""
    history = [
        beginning(),
        entry("execute_completed", "RunModel-1", 1, 2, origin="StartAgentSession-1"),
        waiting_again("RunModel-1", 2),
        entry("execute_completed", "AwaitUserMessage-1", 1000, 1001, origin="RunModel-1"),
        entry("execute_failed", "RunModel-2", 1001, 1002, origin="AwaitUserMessage-1", error="no"),
        entry("execute_completed", "RecordTurnFailure-1", 1002, 1003, origin="RunModel-2"),
    ]
    first, second = turns_of(history, [], now=T0 + 2000)
    assert (first.number, first.wall_seconds) == (1, 2)
    assert (second.number, second.begun_at - T0, second.wall_seconds) == (2, 1000, 3)
    assert [lane.step_execution_id for lane in second.lanes] == [
        "AwaitUserMessage-1",
        "RunModel-2",
        "RecordTurnFailure-1",
    ]


_MOMENTS = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=2, max_size=12)


@given(st.lists(_MOMENTS, min_size=1, max_size=5), st.floats(0, 2e6))
def test_a_turn_holds_its_lanes_and_no_two_spans_of_one_overlap(lanes, now):
    """Whatever the clocks of the workers said."""
    history = [beginning()]
    for number, moments in enumerate(lanes, 1):
        name, origin = f"CallTool-{number}", "StartAgentSession-1"
        *failures, last = zip(moments[::2], moments[1::2], strict=False)
        history += [
            entry("attempt_failed", name, *each, origin=origin, attempt=n, error="no")
            for n, each in enumerate(failures, 1)
        ]
        history.append(entry("execute_completed", name, *last, origin=origin, attempt=9))
    (turn,) = turns_of(history, [], T0 + now)
    for lane in turn.lanes:
        for span, after in zip(lane.spans, lane.spans[1:], strict=False):
            assert span.begun_at <= span.ended_at <= after.begun_at
        for span in lane.spans:
            assert turn.begun_at <= span.begun_at <= span.ended_at <= turn.ended_at
    assert 0 <= turn.computing_seconds <= turn.wall_seconds + 1e-6
