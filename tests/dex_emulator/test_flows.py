"""Flows from outside: starting, stopping, waiting, describing, history."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from dex import (
    AttributeMatch,
    FlowAlreadyStartedError,
    FlowConfig,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    FlowTimeoutPolicy,
    IdReusePolicy,
    StartFlowOptions,
    StopFlowOptions,
    StopType,
    Wait,
    WaitForAttributeOptions,
    WorkerTarget,
    force_fail,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb

from tests.dex_emulator.flows import Act, Await, count, inbox, title


@pytest.fixture(autouse=True)
def scripts(stack):
    """How the flows of these tests go on or end."""

    async def wait(_context):
        return Wait.until(inbox.for_one())

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=wait)
    async def ended(_context):
        return graceful_complete("ended")

    @stack.script("complete")
    async def complete(_context):
        return graceful_complete("ended")

    @stack.script("fail")
    async def fail(_context):
        return force_fail("failed")


REUSE = [
    (IdReusePolicy.DEFAULT, "start", False),
    (IdReusePolicy.DEFAULT, "complete", False),
    (IdReusePolicy.DISALLOW, "fail", False),
    (IdReusePolicy.ALLOW_IF_NOT_RUNNING, "start", False),
    (IdReusePolicy.ALLOW_IF_NOT_RUNNING, "complete", True),
    (IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED, "start", False),
    (IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED, "complete", False),
    (IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED, "fail", True),
    (IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING, "start", True),
    (IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING, "complete", True),
]


@pytest.mark.parametrize(("policy", "before", "is_allowed"), REUSE)
async def test_the_policy_decides_whether_an_id_is_used_again(stack, policy, before, is_allowed):
    """A refused start changes nothing; an allowed one is another run."""
    flow_id = await stack.start(before)
    if before != "start":
        await stack.result(flow_id)
    old = await stack.client.describe_flow(flow_id)
    options = StartFlowOptions(id_reuse_policy=policy)
    again = stack.client.start_flow(stack.flow, flow_id, "start", options=options)
    if is_allowed:
        run_id = await again
        assert run_id != old.run_id
        assert (await stack.client.describe_flow(flow_id)).run_id == run_id
    else:
        with pytest.raises(FlowAlreadyStartedError):
            await again
        assert await stack.client.describe_flow(flow_id) == old


async def test_a_repeated_start_gets_the_run_of_the_first(stack):
    """Only the request ID decides whether it is the same start."""
    flow_id, request_id = str(uuid.uuid4()), str(uuid.uuid4())
    options = StartFlowOptions(request_id=request_id, ignore_already_started=True)
    first = await stack.client.start_flow(stack.flow, flow_id, "start", options=options)
    assert await stack.client.start_flow(stack.flow, flow_id, "start", options=options) == first
    other = StartFlowOptions(request_id=str(uuid.uuid4()), ignore_already_started=True)
    with pytest.raises(FlowAlreadyStartedError):
        await stack.client.start_flow(stack.flow, flow_id, "start", options=other)


async def test_a_flow_starts_with_attributes(stack):
    """Initial values are there for the first Step."""

    @stack.script("read")
    async def read(context):
        return graceful_complete(title.get(context))

    flow_id = str(uuid.uuid4())
    options = StartFlowOptions().with_attribute(title, "given")
    await stack.client.start_flow(stack.flow, flow_id, "read", options=options)
    assert await stack.output(flow_id) == "given"


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "message"),
    [
        (StopType.CANCEL, FlowStatus.CANCELED, None, None),
        (StopType.TERMINATE, FlowStatus.TERMINATED, None, None),
        (StopType.FAIL, FlowStatus.FAILED, FlowErrorType.CLIENT_API_FAILED, "enough"),
    ],
)
async def test_a_flow_is_stopped_in_three_ways(stack, kind, status, error_type, message):
    """Only a failure keeps the reason; a closed flow cannot be stopped again."""
    flow_id = await stack.start()
    options = StopFlowOptions(kind, "enough")
    await stack.client.stop_flow(flow_id, options)
    result = await stack.result(flow_id)
    assert (result.status, result.error_type) == (status, error_type)
    assert (result.error_message or None) == message
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await stack.client.stop_flow(flow_id, options)


async def test_stopping_cancels_the_handler_that_runs(stack):
    """The worker's handler is cancelled, and its result would be dropped."""
    running, cancelled = asyncio.Event(), asyncio.Event()

    @stack.script("long")
    async def long(_context):
        running.set()
        try:
            await asyncio.sleep(30)
        finally:
            cancelled.set()

    flow_id = await stack.start("long")
    await running.wait()
    await stack.client.stop_flow(flow_id)
    await asyncio.wait_for(cancelled.wait(), 5)


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (FlowTimeoutPolicy.FAIL, FlowStatus.FAILED),
        (FlowTimeoutPolicy.CANCEL, FlowStatus.CANCELED),
        (FlowTimeoutPolicy.HANDLER, FlowStatus.COMPLETED),
    ],
)
async def test_a_flow_that_takes_too_long_ends_by_its_policy(stack, policy, status):
    """The handler decides like a Step, without an input."""

    @stack.script("timeout")
    async def timeout(context):
        assert context.step_execution_id == "sys:timeout_handler-1"
        inbox.publish(context, "late")
        return graceful_complete("handled")

    flow_id = await stack.start(timeout=timedelta(seconds=2), timeout_policy=policy)
    result = await stack.result(flow_id)
    assert result.status is status
    if policy is FlowTimeoutPolicy.FAIL:
        assert result.error_type is FlowErrorType.FLOW_TIMEOUT


async def test_a_step_is_waited_for(stack):
    """The wait ends with the Step, and a Step that never ran is missed when the flow closes."""
    flow_id = await stack.start()
    waiting = asyncio.create_task(
        stack.client.wait_for_step_completion(flow_id, *stack.step("Await", 1))
    )
    missing = asyncio.create_task(
        stack.client.wait_for_step_completion(flow_id, *stack.step("Act", 1))
    )
    await stack.waiting_for(flow_id, "Await-1")
    assert not waiting.done()
    await stack.publish(flow_id, "inbox", "go")
    await waiting
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await missing


@pytest.mark.parametrize(
    ("match", "is_met"),
    [
        (AttributeMatch.equal_to(3), True),
        (AttributeMatch.greater_than(2), True),
        (AttributeMatch.less_than_or_equal(3), True),
        (AttributeMatch.not_equal_to(0), True),
        (AttributeMatch.greater_than_or_equal(4), False),
        (AttributeMatch.less_than(3), False),
    ],
)
async def test_an_attribute_is_waited_for(stack, match, is_met):
    """The value that matched is returned; without a match the flow's end is told."""

    @stack.script("count")
    async def counted(context):
        count.set(context, 3)
        return go_to(Await, "await")

    flow_id = await stack.start("count")
    options = WaitForAttributeOptions()
    waiting = asyncio.create_task(
        stack.client.wait_for_attribute_match(flow_id, count, match, options)
    )
    await stack.waiting_for(flow_id, "Await-1")
    await stack.publish(flow_id, "inbox", "go")
    if is_met:
        assert await waiting == 3
    else:
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await waiting


async def test_a_summary_tells_the_run_its_status_and_its_times(stack):
    """The close time is there once the flow is closed."""
    flow_id = await stack.start()
    info = await stack.client.describe_flow(flow_id)
    assert (info.flow_id, info.flow_type, info.status) == (
        flow_id,
        "Scripted",
        FlowStatus.RUNNING,
    )
    await stack.publish(flow_id, "inbox", "go")
    await stack.result(flow_id)
    summary = await stack.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id=flow_id))
    assert summary.HasField("close_time")
    assert summary.first_run_id == info.run_id


async def test_the_history_has_one_event_for_each_call(stack):
    """Retries are one event; attempts, origins, decisions and writes are told."""

    @stack.script("twice")
    async def twice(context):
        if context.attempt == 1:
            raise RuntimeError("once")
        title.set(context, "written")
        context.record_event("seen", "yes")
        return go_to(Act, "act")

    @stack.script("act")
    async def act(_context):
        return graceful_complete("ended")

    flow_id = await stack.start("twice")
    await stack.result(flow_id)
    events = await stack.history(flow_id)
    assert [event.WhichOneof("payload") for event in events] == [
        "flow_started_or_continued",
        "step_execute_completed",
        "step_execute_completed",
        "flow_closed",
    ]
    assert [event.event_id for event in events] == [1, 2, 3, 4]
    first = events[1].step_execute_completed
    assert first.context.final_attempt == 2
    assert first.context.step_execution_id == "Start-1"
    assert first.input.step_input.string_value == "twice"
    assert first.output.upsert_attributes[0].key == "title"
    assert first.output.record_events[0].key == "seen"
    assert events[2].step_execute_completed.context.from_step_execution_id == "Start-1"
    assert events[3].flow_closed.results[0].completed_step_output.string_value == "ended"


async def test_the_history_comes_in_pages(stack):
    """A small page leads to the next by its token."""
    flow_id = await stack.start("complete")
    await stack.result(flow_id)
    run_id = (await stack.client.describe_flow(flow_id)).run_id
    seen, token = [], b""
    while True:
        request = pb.GetHistoryEventsRequest(
            flow_id=flow_id, run_id=run_id, estimate_page_size=1, next_page_token=token
        )
        page = await stack.stub.GetHistoryEvents(request)
        seen += [event.event_id for event in page.events]
        token = page.next_page_token
        if not token:
            break
    assert seen == [1, 2, 3]


async def test_external_writes_reach_the_flow_and_its_history(stack):
    """Attributes and messages from outside are told as such."""
    flow_id = await stack.start()
    write = pb.AttributeWrite(key="title", value=pb.Value(string_value="outside"))
    await stack.stub.SetAttributes(pb.SetAttributesRequest(flow_id=flow_id, attributes=[write]))
    found = await stack.stub.GetAttributes(pb.GetAttributesRequest(flow_id=flow_id, all_keys=True))
    assert [(kv.key, kv.value.string_value) for kv in found.attributes] == [("title", "outside")]
    await stack.publish(flow_id, "inbox", "go")
    await stack.result(flow_id)
    kinds = [event.WhichOneof("payload") for event in await stack.history(flow_id)]
    assert "channel_external_publish" in kinds
    assert "rpc_execution_completed" in kinds


async def test_a_flow_can_be_sent_to_another_worker(stack):
    """The configuration's worker target holds from the next call on."""
    nowhere = WorkerTarget("127.0.0.1:1")
    flow_id = str(uuid.uuid4())
    options = StartFlowOptions(config_override=FlowConfig(worker_target=nowhere))
    await stack.client.start_flow(stack.flow, flow_id, "complete", options=options)
    config = FlowConfig(worker_target=stack.worker.worker_target)
    await stack.client.update_flow_config(flow_id, config)
    assert await stack.output(flow_id) == "ended"


async def test_every_flow_is_listed(stack):
    """An empty query finds every flow, newest first, in pages."""
    started = [await stack.start() for _ in range(5)]
    found, token = [], ""
    while True:
        page = await stack.client.search_flows("", 2, token)
        found += page.flows
        token = page.next_page_token
        if not token:
            break
    ours = [each for each in found if each.flow_id in started]
    assert [each.flow_id for each in ours] == started[::-1]
    assert {each.flow_type for each in ours} == {stack.flow.get_flow_type()}
