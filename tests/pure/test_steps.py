"""Session Steps that meet what should not be there: a final record, an unfinished one, none."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from dex_agents import ToolEffect, session_table
from dex_agents.errors import RunnerContractError, StoredRecordError
from dex_agents.records import AgentState, AgentToolCall, ToolCallStatus
from dex_agents.session import client_table
from dex_agents.session.persistence import AGENT_STATE, AGENT_TOOL_CALLS
from dex_agents.session.turn import StoredMessages
from dex_agents.table import CloseKind
from dex_agents.testing import ScriptedRunner

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


async def test_a_turn_waits_again_for_what_is_not_final():
    """As many results as were promised came, and yet a record is not final."""
    context = Notebook(record("succeeded", "a"), record("pending", "b"), record("approved", "c"))
    decision = await TABLE.step("ResumeTurn").execute(context, 3)
    ((step, count),) = [(each.step, each.input) for each in decision.next_steps]
    assert (step, count) == ("ResumeTurn", 2)


@pytest.mark.parametrize("step", ["CallTool", "RecordToolFailure", "AwaitToolApproval"])
async def test_a_record_that_is_gone_is_named(step):
    """Nothing else could be said of such a call."""
    with pytest.raises(StoredRecordError, match="record of tool call 'c'"):
        await TABLE.step(step).execute(Notebook(), "c")


def test_a_message_that_is_gone_is_named():
    """A sequence of messages has a gap only in a damaged file."""
    messages = StoredMessages({}, 3)
    assert repr(messages) == "<StoredMessages of 3>"
    with pytest.raises(StoredRecordError, match="message 2"):
        messages[1]
    for outside in (3, -4):
        with pytest.raises(IndexError):
            messages[outside]


async def test_a_table_for_clients_serves_nothing():
    """Each method of its runner says which table to serve instead."""
    context = Notebook(record("pending"), state=AgentState(turn_number=1))
    context.keep_alive = lambda _seconds: nullcontext()
    context.write = lambda *_: None

    async def heartbeat():
        pass

    context.heartbeat = heartbeat
    for step, given in (("RunModel", None), ("CallTool", "c")):
        with pytest.raises(RunnerContractError, match="session_table"):
            await client_table("T").step(step).execute(context, given)
