"""The error table: what the emulator refuses is the exception that the SDK documents for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from dex import (
    AttributeMatch,
    ChannelMessageNotFoundError,
    DexServiceError,
    ErrorSubStatus,
    FlowAlreadyStartedError,
    FlowClosingError,
    FlowConfig,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    LongPollTimeoutError,
    RequestTimeoutError,
    RpcLockConflictError,
    StartFlowOptions,
    StopFlowOptions,
    TimerId,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    WaitForAttributeOptions,
    WorkerInvocationError,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb

from dex_agents_dex.emulator import __doc__ as documentation
from dex_agents_dex.emulator.service import LEFT_OUT
from tests.dex_emulator.flows import Await, count, inbox, title


@pytest.fixture
async def flow_id(stack):
    """A flow that waits for a message."""

    async def wait(_context):
        return Wait.until(inbox.for_one())

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=wait)
    async def ended(_context):
        return graceful_complete()

    return await stack.start()


def assert_is(error, code, sub_status):
    assert (error.code, error.sub_status) == (code, sub_status)
    assert error.detail
    assert "malformed" not in error.detail


async def test_a_second_start(stack, flow_id):
    """FLOW_ALREADY_STARTED is FlowAlreadyStartedError."""
    with pytest.raises(FlowAlreadyStartedError) as caught:
        await stack.client.start_flow(stack.flow, flow_id, "start")
    code = grpc.StatusCode.ALREADY_EXISTS
    assert_is(caught.value, code, ErrorSubStatus.FLOW_ALREADY_STARTED)


ACTIVE = {
    "rpc": lambda s: s.client.invoke_rpc(s.flow.read, "none", "x"),
    "locked rpc": lambda s: s.client.invoke_rpc(s.flow.locked, "none", "x"),
    "stop": lambda s: s.client.stop_flow("none", StopFlowOptions()),
    "skip": lambda s: s.client.skip_timer(
        "none", s.step("Await", 1)[0], TimerId.by_condition_index(0)
    ),
    "step": lambda s: s.client.wait_for_step_completion("none", *s.step("Await", 1)),
    "attribute": lambda s: s.client.wait_for_attribute_match(
        "none", count, AttributeMatch.equal_to(1), WaitForAttributeOptions()
    ),
    "config": lambda s: s.client.update_flow_config("none", FlowConfig()),
}


@pytest.mark.parametrize("call", ACTIVE.values(), ids=ACTIVE)
async def test_a_flow_that_must_be_active_and_is_not_there(stack, call):
    """FLOW_NOT_EXISTS is FlowNotActiveOrNotFoundError where a call needs an active flow."""
    with pytest.raises(FlowNotActiveOrNotFoundError) as caught:
        await call(stack)
    assert_is(caught.value, grpc.StatusCode.NOT_FOUND, ErrorSubStatus.FLOW_NOT_EXISTS)


@pytest.mark.parametrize(
    "call",
    [lambda s: s.client.describe_flow("none"), lambda s: s.client.wait_for_flow("none")],
    ids=["describe", "wait"],
)
async def test_a_flow_that_must_exist_and_does_not(stack, call):
    """FLOW_NOT_EXISTS is FlowNotFoundError where a call only reads."""
    with pytest.raises(FlowNotFoundError) as caught:
        await call(stack)
    assert_is(caught.value, grpc.StatusCode.NOT_FOUND, ErrorSubStatus.FLOW_NOT_EXISTS)


async def test_a_held_lock(stack, flow_id):
    """WORKER_API_ERROR with ABORTED is RpcLockConflictError."""
    running, go = asyncio.Event(), asyncio.Event()

    @stack.script("hold")
    async def hold(_context):
        running.set()
        await go.wait()
        return "held"

    holder = asyncio.create_task(stack.client.invoke_rpc(stack.flow.locked, flow_id, "hold"))
    await running.wait()
    with pytest.raises(RpcLockConflictError) as caught:
        await stack.client.invoke_rpc(stack.flow.locked, flow_id, "hold")
    assert_is(caught.value, grpc.StatusCode.ABORTED, ErrorSubStatus.WORKER_API_ERROR)
    go.set()
    await holder


async def test_a_failing_handler(stack, flow_id):
    """WORKER_API_ERROR with any other code is WorkerInvocationError."""

    @stack.script("fail")
    async def fail(_context):
        raise LookupError("missing")

    with pytest.raises(WorkerInvocationError) as caught:
        await stack.client.invoke_rpc(stack.flow.read, flow_id, "fail")
    code = grpc.StatusCode.FAILED_PRECONDITION
    assert_is(caught.value, code, ErrorSubStatus.WORKER_API_ERROR)
    assert caught.value.detail == "missing"


async def test_a_wait_that_may_be_repeated(stack, flow_id):
    """LONG_POLL_TIME_OUT is LongPollTimeoutError."""
    with pytest.raises(LongPollTimeoutError) as caught:
        await stack.client.wait_for_flow(flow_id, timedelta(seconds=1))
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    assert_is(caught.value, code, ErrorSubStatus.LONG_POLL_TIMEOUT)


async def test_a_request_that_takes_too_long(stack, flow_id):
    """REQUEST_TIMEOUT is RequestTimeoutError, of a wait as of an RPC."""
    with pytest.raises(RequestTimeoutError):
        await stack.client.wait_for_step_completion(
            flow_id, *stack.step("Await", 1, request_timeout=timedelta(seconds=1))
        )

    @stack.script("slow")
    async def slow(_context):
        await asyncio.sleep(30)

    with pytest.raises(RequestTimeoutError) as caught:
        await stack.client.invoke_rpc(stack.flow.hurried, flow_id, "slow")
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    assert_is(caught.value, code, ErrorSubStatus.REQUEST_TIMEOUT)


async def test_a_message_that_is_not_queued(stack, flow_id):
    """CHANNEL_MESSAGE_NOT_FOUND is ChannelMessageNotFoundError."""

    @stack.script("miss")
    async def miss(context):
        inbox.delete(context, "none")
        return "missed"

    with pytest.raises(ChannelMessageNotFoundError) as caught:
        await stack.client.invoke_rpc(stack.flow.transactional, flow_id, "miss")
    sub_status = ErrorSubStatus.CHANNEL_MESSAGE_NOT_FOUND
    assert_is(caught.value, grpc.StatusCode.NOT_FOUND, sub_status)


async def test_a_flow_that_closes_during_a_transaction(stack, flow_id):
    """FLOW_CLOSING is FlowClosingError, and the transaction changed nothing."""
    running, go = asyncio.Event(), asyncio.Event()

    @stack.script("late")
    async def late(context):
        running.set()
        await go.wait()
        title.set(context, "late")
        return "late"

    call = asyncio.create_task(stack.client.invoke_rpc(stack.flow.transactional, flow_id, "late"))
    await running.wait()
    await stack.client.stop_flow(flow_id)
    go.set()
    with pytest.raises(FlowClosingError) as caught:
        await call
    code = grpc.StatusCode.FAILED_PRECONDITION
    assert_is(caught.value, code, ErrorSubStatus.FLOW_CLOSING)
    found = await stack.stub.GetAttributes(pb.GetAttributesRequest(flow_id=flow_id, all_keys=True))
    assert not found.attributes


@pytest.mark.parametrize("flow_id", ["a/b", "a$b", "a:b"])
async def test_a_request_that_makes_no_sense(stack, flow_id):
    """INVALID_ARGUMENT is a plain DexServiceError with its code."""
    with pytest.raises(DexServiceError) as caught:
        await stack.client.start_flow(stack.flow, flow_id, "start")
    code = grpc.StatusCode.INVALID_ARGUMENT
    assert_is(caught.value, code, ErrorSubStatus.UNCATEGORIZED)


LEFT_OUT_CALLS = {
    "query": lambda s: s.client.search_flows("FlowType = 1", 10),
    "time travel": lambda s: s.client.time_travel(
        "none", TimeTravelOptions(TimeTravelType.BEGINNING)
    ),
    "continue as new": lambda s: s.client.trigger_continue_as_new("none"),
    "delay": lambda s: s.client.start_flow(
        s.flow, "x", "start", options=StartFlowOptions(start_delay=timedelta(seconds=1))
    ),
}


@pytest.mark.parametrize("call", LEFT_OUT_CALLS.values(), ids=LEFT_OUT_CALLS)
async def test_what_the_emulator_leaves_out(stack, call):
    """UNIMPLEMENTED names what is left out."""
    with pytest.raises(DexServiceError, match="leaves out") as caught:
        await call(stack)
    code = grpc.StatusCode.UNIMPLEMENTED
    assert_is(caught.value, code, ErrorSubStatus.UNCATEGORIZED)


def test_what_is_left_out_is_listed():
    """Every call of FlowService that answers UNIMPLEMENTED is in both documentations."""
    guide = (Path(__file__).parents[2] / "docs" / "dex-emulator.md").read_text()
    for text in (documentation, guide):
        assert text is not None
        assert [name for name in LEFT_OUT if name not in text] == []
