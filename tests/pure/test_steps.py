"""Session Steps that meet what should not be there: a final record, an unfinished one, none."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from dex_agents import ToolEffect, session_table
from dex_agents.errors import RunnerContractError, StoredRecordError
from dex_agents.records import (
    AgentInterrupt,
    AgentState,
    AgentStatus,
    AgentToolCall,
    ToolCallStatus,
)
from dex_agents.session import client_table
from dex_agents.session.persistence import (
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    PENDING_INTERRUPTS,
)
from dex_agents.session.turn import StoredMessages
from dex_agents.table import CloseKind, Timer
from dex_agents.testing import ScriptedRunner

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TABLE = session_table(ScriptedRunner([]), flow_type="T")


class Notebook:
    """A Step's context that keeps everything in dictionaries."""

    flow_id, step_execution_id, attempt, recovery_error = "f", "Step-1", 1, None

    def __init__(self, *records, state=None):
        self.values = {AGENT_TOOL_CALLS[each.tool_call_id].name: each for each in records}
        self.values[AGENT_STATE.name] = state or AgentState(turn_number=1)
        self.published = []

    def get(self, attribute):
        return self.values.get(attribute.name)

    def set(self, attribute, value):
        self.values[attribute.name] = value

    def entries(self, rows):
        found = {name for name in self.values if name.startswith(rows.prefix)}
        return {rows.key_of(name): self.values[name] for name in found}

    def publish(self, channel, message):
        self.published.append((channel.name, message))

    def results(self, _channel):
        return ()

    def observe(self, _describe):
        pass

    def trace_carrier(self):
        return {}

    def now(self):
        return NOW.timestamp()

    def write(self, _stream, _item):
        pass


def asked(deadline):
    """Return the context of a call whose approval is pending."""
    context = Notebook(record("pending_approval"))
    pending = [AgentInterrupt("turn-1.c", "c", "t", {}, "turn-1", deadline)]
    context.set(PENDING_INTERRUPTS, pending)
    return context


def record(status, tool_call_id="c"):
    return AgentToolCall(
        tool_call_id, "t", {}, ToolEffect.READ, False, ToolCallStatus(status), 1, "turn-1"
    )


@pytest.mark.parametrize("status", ["succeeded", "failed", "rejected", "outcome_unknown"])
@pytest.mark.parametrize(
    "step",
    [
        "AwaitToolApproval",
        "CallTool",
        "CallSingleAttemptTool",
        "RecordToolFailure",
        "RecordToolOutcomeUnknown",
    ],
)
async def test_a_call_with_a_final_record_ends_and_says_nothing(step, status):
    """Nothing runs, and no second result is published (contract: tool Steps)."""
    context = Notebook(record(status))
    before = dict(context.values)
    decision = await TABLE.step(step).execute(context, "c")
    assert (decision.close, decision.next_steps) == (CloseKind.DEAD_END, ())
    assert (context.values, context.published) == (before, [])


async def test_a_turn_goes_back_to_the_model_once_all_is_final():
    """The session says so before the model is called."""
    state = AgentState(turn_number=1, status=AgentStatus.RUNNING_TOOLS)
    context = Notebook(record("succeeded", "a"), record("failed", "b"), state=state)
    decision = await TABLE.step("ResumeTurn").execute(context, 2)
    assert [each.step for each in decision.next_steps] == ["RunModel"]
    assert context.get(AGENT_STATE).status is AgentStatus.RUNNING_MODEL


async def test_a_turn_waits_again_for_what_is_not_final():
    """As many results as were promised came, and yet a record is not final."""
    context = Notebook(record("succeeded", "a"), record("pending", "b"), record("approved", "c"))
    decision = await TABLE.step("ResumeTurn").execute(context, 3)
    ((step, count),) = [(each.step, each.input) for each in decision.next_steps]
    assert (step, count) == ("ResumeTurn", 2)


@pytest.mark.parametrize(
    ("left", "seconds"), [(-60.0, 0), (0.0, 0), (0.001, 1), (1.0, 1), (59.5, 60)]
)
async def test_an_approval_waits_for_the_whole_seconds_that_are_left(left, seconds):
    """A part of a second counts as one, and a deadline that has passed as none."""
    step = TABLE.step("AwaitToolApproval")
    wait = await step.wait_for(asked(NOW + timedelta(seconds=left)), "c")
    assert wait.conditions[0] == Timer(seconds)


@pytest.mark.parametrize("deadline", [None, NOW + timedelta(seconds=0.001)])
async def test_an_approval_whose_deadline_has_not_come_waits_again(deadline):
    """A Timer that fired early expires nothing."""
    context = asked(deadline)
    before = dict(context.values)
    decision = await TABLE.step("AwaitToolApproval").execute(context, "c")
    assert [(each.step, each.input) for each in decision.next_steps] == [("AwaitToolApproval", "c")]
    assert (context.values, context.published) == (before, [])


@pytest.mark.parametrize("step", ["RecordToolFailure", "RecordToolOutcomeUnknown"])
async def test_a_route_that_is_told_no_error_still_records_one(step):
    """An engine may not say what it took the failure route for."""
    context = Notebook(record("pending"))
    await TABLE.step(step).execute(context, "c")
    assert context.get(AGENT_TOOL_CALLS["c"]).error == "The Step failed."


@pytest.mark.parametrize("step", ["CallTool", "RecordToolFailure", "AwaitToolApproval"])
async def test_a_record_that_is_gone_is_named(step):
    """Nothing else could be said of such a call."""
    with pytest.raises(StoredRecordError, match=r"record of tool call 'c' .* it is not there"):
        await TABLE.step(step).execute(Notebook(), "c")


async def test_a_state_that_is_gone_is_named():
    """A turn cannot end in a session without its state."""
    context = Notebook()
    del context.values[AGENT_STATE.name]
    with pytest.raises(StoredRecordError, match="The stored AgentState cannot"):
        await TABLE.step("ResumeTurn").execute(context, 0)


def test_a_message_that_is_gone_is_named():
    """A sequence of messages has a gap only in a damaged file."""
    messages = StoredMessages({}, 3)
    assert repr(messages) == "<StoredMessages of 3>"
    with pytest.raises(StoredRecordError, match="message 2"):
        messages[1]
    for outside in (3, -4):
        with pytest.raises(IndexError, match=str(outside)):
            messages[outside]


async def test_a_table_for_clients_serves_nothing():
    """Each method of its runner says which table to serve instead."""
    context = Notebook(record("pending"), state=AgentState(turn_number=1))
    context.keep_alive = lambda _seconds: nullcontext()

    async def heartbeat():
        pass

    context.heartbeat = heartbeat
    for step, given in (("RunModel", None), ("CallTool", "c")):
        with pytest.raises(RunnerContractError) as caught:
            await client_table("T").step(step).execute(context, given)
        assert str(caught.value) == (
            "This table of 'T' is for clients. "
            "Serve the one that session_table(runner, ...) returns."
        )


CARRIER = {"traceparent": "00-1-2-01"}


def told(facts):
    """Return what tells an attempt's span from others."""
    return facts.span_name, facts.is_client, facts.carrier, facts.tags


@pytest.mark.parametrize("step", ["CallTool", "CallSingleAttemptTool"])
def test_telemetry_is_told_which_tool_an_attempt_calls(step):
    """Under the names of the semantic conventions, in the trace of the turn."""
    context = Notebook(record("pending"), state=AgentState(turn_number=1, trace_context=CARRIER))
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.name": "T",
        "gen_ai.tool.name": "t",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c",
        "gen_ai.conversation.id": "f",
    }
    tags = {"turn_id": "turn-1", "tool_call_id": "c"}
    facts = TABLE.facts(step, context, "c")
    assert told(facts) == ("execute_tool t", False, CARRIER, tags)
    assert facts.attributes == attributes


@pytest.mark.parametrize(
    ("step", "records"), [("RecordToolFailure", [record("pending")]), ("CallTool", [])]
)
def test_telemetry_is_told_the_call_where_no_tool_runs(step, records):
    """A Step that runs no tool, or whose record is gone, still names its turn and its call."""
    context = Notebook(*records, state=AgentState(turn_number=1, trace_context=CARRIER))
    tags = {"turn_id": "turn-1", "tool_call_id": "c"}
    facts = TABLE.facts(step, context, "c")
    assert told(facts) == (None, False, CARRIER, tags)
    assert facts.attributes == {}


def test_telemetry_is_told_which_turn_calls_the_model():
    """A model call is a chat of the session."""
    context = Notebook(state=AgentState(turn_number=1, trace_context=CARRIER))
    facts = TABLE.facts("RunModel", context, None)
    assert told(facts) == ("chat", True, CARRIER, {"turn_id": "turn-1"})
    assert facts.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": "T",
        "gen_ai.conversation.id": "f",
    }
