"""The sentences with which a session refuses what a runner gives back."""

from __future__ import annotations

import pytest

from dex_agents import (
    AgentUsage,
    DeferredToolCall,
    FrameworkMessage,
    ToolCallsRequested,
    ToolEffect,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.errors import RunnerContractError, StoredRecordError
from dex_agents.records import AgentMessage, MessageRole, message_sequence_key
from dex_agents.session.turn import StoredMessages, checked_outcome, checked_result

READ = ToolPolicy(ToolEffect.READ)


def asks(*ids, run_state="state", policy=READ):
    calls = [DeferredToolCall(each, "look", {}, policy) for each in ids]
    return ToolCallsRequested(run_state, calls)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            None,
            "run_model_step must return TurnCompleted or ToolCallsRequested, not NoneType.",
        ),
        (
            TurnCompleted("text"),
            "TurnCompleted.new_messages must be a list or tuple, not str.",
        ),
        (
            TurnCompleted(["text"]),
            "TurnCompleted.new_messages must hold FrameworkMessage, not str.",
        ),
        (
            TurnCompleted([FrameworkMessage("boss", {}, "x")]),
            "TurnCompleted.new_messages holds the unknown role 'boss'.",
        ),
        (
            TurnCompleted([], usage={"input_tokens": 3}),
            "usage must be AgentUsage, not dict.",
        ),
        (
            asks("c", run_state=""),
            "ToolCallsRequested.framework_run_state must be non-empty text.",
        ),
        (
            ToolCallsRequested("s", None),
            "ToolCallsRequested.tool_calls must be a list or tuple, not NoneType.",
        ),
        (
            asks(),
            "ToolCallsRequested has no tool calls; return TurnCompleted for a final answer.",
        ),
        (
            asks("c", "c"),
            (
                "The tool call ID 'c' is used twice in one turn. "
                "Make it unique in the adapter, for example with a counter."
            ),
        ),
        (
            asks("a/b"),
            "The tool call ID 'a/b' of 'look' is empty or holds a '/'.",
        ),
        (
            asks("c", policy=None),
            "The policy of tool call 'c' must be ToolPolicy; get it from turn.resolve_tool_policy.",
        ),
        (
            asks("c", policy=ToolPolicy("magic", False)),
            "The effect of tool call 'c' must be a ToolEffect, not 'magic'.",
        ),
        (
            asks("c", policy=ToolPolicy(ToolEffect.READ, "maybe")),
            "requires_approval of tool call 'c' must be True, False or None, not 'maybe'.",
        ),
    ],
)
def test_a_wrong_outcome_is_refused_with_what_to_change(outcome, sentence):
    """Whoever wrote the adapter reads where it is wrong and what to give instead."""
    with pytest.raises(RunnerContractError) as caught:
        checked_outcome(outcome, {})
    assert str(caught.value) == sentence


def test_the_largest_count_of_tokens_is_taken():
    """It is the largest whole number of 64 bits."""
    outcome = TurnCompleted([], AgentUsage(input_tokens=2**63 - 1))
    assert checked_outcome(outcome, {}) is outcome


def test_a_wrong_result_of_a_tool_is_refused_with_what_to_change():
    """The same for what runs the tools."""
    with pytest.raises(RunnerContractError) as caught:
        checked_result("text")
    assert str(caught.value) == (
        "execute_deferred_tool_call must return ToolExecutionResult, not str."
    )


def test_a_message_that_is_not_stored_is_told_as_missing():
    """Counted by the session's state, and yet not there."""
    stored = {message_sequence_key(1): AgentMessage(1, MessageRole.USER, {}, "Hi", "turn-1")}
    messages = StoredMessages(stored, 2)
    assert messages[0].text == "Hi"
    with pytest.raises(StoredRecordError) as caught:
        messages[1]
    assert str(caught.value) == "The stored message 2 cannot be read: it is missing"
