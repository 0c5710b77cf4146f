"""The session as a table: its rows, their options and its drawing, against the contract."""

from __future__ import annotations

from types import NoneType

import pytest

import dex_agents
from dex_agents import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
    AgentEvent,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentMessagesPage,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentState,
    AgentToolCall,
    AgentUsage,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
    ToolCallCompleted,
    message_sequence_key,
)
from dex_agents.table import Attribute, AttributeMap, Channel, ChannelMap, FlowTable, Stream
from dex_agents.testing import ScriptedRunner
from tests.session.engine import agent_flow

NEXT_STEPS = {
    "StartAgentSession": {"RunModel", "AwaitUserMessage"},
    "AwaitUserMessage": {"RunModel"},
    "RunModel": {
        "AwaitUserMessage",
        "AwaitToolApproval",
        "CallTool",
        "CallSingleAttemptTool",
        "ResumeTurn",
    },
    "AwaitToolApproval": {"AwaitToolApproval", "CallTool", "CallSingleAttemptTool"},
    "CallTool": set(),
    "CallSingleAttemptTool": set(),
    "RecordToolFailure": set(),
    "RecordToolOutcomeUnknown": set(),
    "ResumeTurn": {"RunModel", "ResumeTurn"},
    "RecordTurnFailure": {"AwaitUserMessage"},
}
INPUTS = {
    "StartAgentSession": AgentSessionStartInput,
    "AwaitUserMessage": NoneType,
    "RunModel": NoneType,
    "AwaitToolApproval": str,
    "CallTool": str,
    "CallSingleAttemptTool": str,
    "RecordToolFailure": str,
    "RecordToolOutcomeUnknown": str,
    "ResumeTurn": int,
    "RecordTurnFailure": NoneType,
}
WAITING = {"AwaitUserMessage", "AwaitToolApproval", "ResumeTurn"}
ROWS = {
    "AgentState": (Attribute, AgentState, AGENT_STATE),
    "AgentMessages": (AttributeMap, AgentMessage, AGENT_MESSAGES),
    "FrameworkRunState": (Attribute, str, FRAMEWORK_RUN_STATE),
    "AgentToolCalls": (AttributeMap, AgentToolCall, AGENT_TOOL_CALLS),
    "PendingInterrupts": (Attribute, list[AgentInterrupt], PENDING_INTERRUPTS),
    "AgentUsage": (Attribute, AgentUsage, AGENT_USAGE),
    "QueuedUserMessages": (Channel, AgentUserMessage, QUEUED_USER_MESSAGES),
    "InterruptResolutions": (ChannelMap, AgentInterruptResolution, INTERRUPT_RESOLUTIONS),
    "ToolCallResults": (Channel, ToolCallCompleted, TOOL_CALL_RESULTS),
}
RPCS = {
    "send_user_message": (AgentUserMessage, bool, False),
    "resolve_interrupt": (ResolveInterruptRequest, bool, False),
    "get_agent_snapshot": (NoneType, AgentSnapshot, True),
    "list_agent_messages": (ListAgentMessagesRequest, AgentMessagesPage, True),
}


@pytest.fixture
def table() -> FlowTable:
    """A session's table."""
    return agent_flow(ScriptedRunner([]))


def test_there_are_ten_steps_and_the_first_starts_the_session(table: FlowTable):
    """They are those of the contract."""
    assert {step.name for step in table.steps} == set(NEXT_STEPS)
    assert len(table.steps) == 10
    assert table.start_step.name == "StartAgentSession"


@pytest.mark.parametrize("name", NEXT_STEPS)
def test_a_step_goes_only_where_the_contract_says(table: FlowTable, name: str):
    """Its next Steps, its input and whether it waits."""
    step = table.step(name)
    assert set(step.next_steps) == NEXT_STEPS[name]
    assert step.input == INPUTS[name]
    assert (table.step(name).wait_for is not None) is (name in WAITING)


def test_a_model_call_has_fifteen_minutes_and_three_attempts_in_thirty(table: FlowTable):
    """Two minutes of silence end an attempt; used up, the turn fails."""
    options = table.step("RunModel").options
    assert options.execute_timeout == 15 * 60
    assert options.heartbeat_timeout == 2 * 60
    assert options.retry.max_attempts == 3
    assert options.retry.total_seconds == 30 * 60
    assert options.failure_step == "RecordTurnFailure"
    assert set(options.loads) == {AGENT_MESSAGES, AGENT_TOOL_CALLS}


def test_a_tool_that_may_run_again_has_three_attempts(table: FlowTable):
    """Used up, RecordToolFailure says so."""
    options = table.step("CallTool").options
    assert options.retry.max_attempts == 3
    assert options.failure_step == "RecordToolFailure"


def test_any_other_tool_has_one_attempt(table: FlowTable):
    """Used up, RecordToolOutcomeUnknown says so."""
    options = table.step("CallSingleAttemptTool").options
    assert options.retry.max_attempts == 1
    assert options.failure_step == "RecordToolOutcomeUnknown"


@pytest.mark.parametrize(
    "name", sorted(set(NEXT_STEPS) - {"RunModel", "CallTool", "CallSingleAttemptTool"})
)
def test_no_other_step_has_a_failure_route(table: FlowTable, name: str):
    """They call no framework code but build_user_message, and are tried again."""
    options = table.step(name).options
    assert options.failure_step is None
    assert options.retry.max_attempts == 0


def test_only_an_approval_holds_the_interrupts(table: FlowTable):
    """The RPC that answers locks them too, so both never change them at once."""
    holders = {step.name for step in table.steps if step.options.locks}
    assert holders == {"AwaitToolApproval"}
    assert table.step("AwaitToolApproval").options.locks == (PENDING_INTERRUPTS,)
    assert table.rpc("resolve_interrupt").locks == (PENDING_INTERRUPTS,)


def test_only_a_model_call_loads_the_messages(table: FlowTable):
    """So no other Step grows with the session."""
    loaders = {step.name for step in table.steps if AGENT_MESSAGES in step.options.loads}
    assert loaders == {"RunModel"}


@pytest.mark.parametrize("name", ROWS)
def test_persistence_has_the_contracts_names_and_types(table: FlowTable, name: str):
    """Each row is exported, and every session table declares it."""
    kind, tp, row = ROWS[name]
    assert (type(row), row.name, row.type) == (kind, name, tp)
    assert row in table.persistence


def test_a_table_has_nine_rows_and_one_stream(table: FlowTable):
    """AgentEvents is the flow type's own; 10 MiB of it are kept."""
    assert {row.name for row in table.persistence} == {*ROWS, "AgentEvents"}
    (stream,) = [row for row in table.persistence if isinstance(row, Stream)]
    assert (stream.type, stream.capacity_bytes) == (AgentEvent, 10 * 1024 * 1024)


def test_the_streams_capacity_is_an_option():
    """Another capacity needs no other rows."""
    table = agent_flow(ScriptedRunner([]), event_stream_capacity_bytes=4096)
    (stream,) = [row for row in table.persistence if isinstance(row, Stream)]
    assert stream.capacity_bytes == 4096


def test_message_keys_sort_by_number():
    """Twelve digits, zero-padded."""
    assert message_sequence_key(7) == "000000000007"
    assert message_sequence_key(123456789012) == "123456789012"


@pytest.mark.parametrize("name", RPCS)
def test_rpcs_have_the_contracts_types(table: FlowTable, name: str):
    """Input, output and whether it only reads."""
    row = table.rpc(name)
    assert (row.input, row.output, row.is_read_only) == RPCS[name]
    assert row.next_steps == ()


def test_there_are_four_rpcs(table: FlowTable):
    """Those of the contract, and no other."""
    assert {rpc.name for rpc in table.rpcs} == set(RPCS)


def test_the_drawing_shows_every_transition_once(table: FlowTable):
    """Solid for next Steps, dotted for failure routes, from the start to the ends of branches."""
    lines = [line.strip() for line in table.to_mermaid().splitlines()]
    assert lines[0] == "flowchart TD"
    assert lines[1] == "start([start]) --> StartAgentSession"
    solid = [f"{name} --> {target}" for name, targets in NEXT_STEPS.items() for target in targets]
    ends = [
        f"{name} --> ended([branch ends])" for name, targets in NEXT_STEPS.items() if not targets
    ]
    dotted = [
        "RunModel -. used up .-> RecordTurnFailure",
        "CallTool -. used up .-> RecordToolFailure",
        "CallSingleAttemptTool -. used up .-> RecordToolOutcomeUnknown",
    ]
    assert sorted(lines[2:]) == sorted([*solid, *ends, *dotted])


def test_the_same_options_draw_the_same_table(table: FlowTable):
    """The drawing says nothing of a runner or its options."""
    assert agent_flow(ScriptedRunner([["x"]]), flow_type="B").to_mermaid() == table.to_mermaid()


def test_the_rows_are_importable_from_the_package():
    """So a reader of stored data needs no private module."""
    for name in (
        "AGENT_STATE",
        "AGENT_MESSAGES",
        "FRAMEWORK_RUN_STATE",
        "AGENT_TOOL_CALLS",
        "PENDING_INTERRUPTS",
        "AGENT_USAGE",
        "QUEUED_USER_MESSAGES",
        "INTERRUPT_RESOLUTIONS",
        "TOOL_CALL_RESULTS",
    ):
        assert name in dex_agents.__all__
