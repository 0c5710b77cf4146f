"""RPCs: reads, writes, locks and transactions."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from dex import (
    ChannelMessageNotFoundError,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    RequestTimeoutError,
    RpcLockConflictError,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    dead_end,
    go_to,
    graceful_complete,
)

from tests.dex_emulator.flows import Act, Await, inbox, notes, rooms, title


@pytest.fixture
async def flow_id(stack):
    """A flow that waits for a message."""

    async def wait(_context):
        return Wait.until(inbox.for_one())

    @stack.script("start")
    async def start(context):
        title.set(context, "first")
        notes.set(context, "a", "1")
        return go_to(Await, "await")

    @stack.script("await", wait=wait)
    async def ended(context):
        return graceful_complete(",".join(inbox.results(context)))

    flow_id = await stack.start()
    await stack.waiting_for(flow_id, "Await-1")
    return flow_id


async def test_a_read_sees_attributes_and_what_it_loads(stack, flow_id):
    """Ordinary Attributes are always there, maps by their load."""

    @stack.script("read")
    async def read(context):
        return f"{title.get(context)} {context.flow_id == flow_id}"

    assert await stack.client.invoke_rpc(stack.flow.read, flow_id, "read") == "first True"
    assert await stack.client.invoke_rpc(stack.flow.mapped, flow_id) == "a=1"


async def test_a_write_is_applied_at_once(stack, flow_id):
    """What the RPC published ends the wait; its Step has the RPC as its origin."""

    @stack.script("write")
    async def write(context):
        title.set(context, "second")
        inbox.publish(context, "message")
        return stack.rpc_result("ok", next_steps=(StepMovement.of(Act, "act"),))

    @stack.script("act")
    async def act(context):
        assert title.get(context) == "second"
        return graceful_complete(context.from_step_execution_id)

    assert await stack.client.invoke_rpc(stack.flow.steer, flow_id, "write") == "ok"
    result = await stack.result(flow_id)
    outputs = {each.step_type: each.decode(str) for each in result.completions}
    assert outputs == {"Act": "__rpc/steer", "Await": "message"}


async def test_an_rpc_cancels_steps(stack, flow_id):
    """A waiting execution is gone, and counts as ended."""

    @stack.script("cancel")
    async def cancel(_context):
        return stack.rpc_result("ok", canceling_steps=(Await,))

    await stack.client.invoke_rpc(stack.flow.steer, flow_id, "cancel")
    await stack.client.wait_for_step_completion(flow_id, *stack.step("Await", 1))
    assert (await stack.client.describe_flow(flow_id)).status is FlowStatus.RUNNING


async def test_a_lock_that_a_step_holds_is_a_conflict(stack, flow_id):
    """The RPC is refused at once; afterwards it goes through."""
    running, go = asyncio.Event(), asyncio.Event()
    stack.flow.scripts.options["Act"] = StepOptions(execute_lock_attributes=(title.lock(),))

    @stack.script("schedule")
    async def schedule(_context):
        return stack.rpc_result("ok", next_steps=(StepMovement.of(Act, "act"),))

    @stack.script("act")
    async def act(_context):
        running.set()
        await go.wait()
        return dead_end()

    @stack.script("locked")
    async def locked(context):
        title.set(context, "by rpc")
        return "locked"

    await stack.client.invoke_rpc(stack.flow.steer, flow_id, "schedule")
    await running.wait()
    with pytest.raises(RpcLockConflictError):
        await stack.client.invoke_rpc(stack.flow.locked, flow_id, "locked")
    go.set()
    await stack.client.wait_for_step_completion(flow_id, *stack.step("Act", 1))
    assert await stack.client.invoke_rpc(stack.flow.locked, flow_id, "locked") == "locked"


async def test_a_lock_that_an_rpc_holds_delays_steps_and_refuses_rpcs(stack, flow_id):
    """Steps wait for an RPC's lock; another RPC does not."""
    running, go = asyncio.Event(), asyncio.Event()
    began = []
    stack.flow.scripts.options["Act"] = StepOptions(execute_lock_attributes=(title.lock(),))

    @stack.script("slow")
    async def slow(context):
        running.set()
        await go.wait()
        title.set(context, "by rpc")
        return "slow"

    @stack.script("schedule")
    async def schedule(_context):
        return stack.rpc_result("ok", next_steps=(StepMovement.of(Act, "act"),))

    @stack.script("act")
    async def act(context):
        began.append(title.get(context))
        return dead_end()

    call = asyncio.create_task(stack.client.invoke_rpc(stack.flow.locked, flow_id, "slow"))
    await running.wait()
    with pytest.raises(RpcLockConflictError):
        await stack.client.invoke_rpc(stack.flow.locked, flow_id, "slow")
    await stack.client.invoke_rpc(stack.flow.steer, flow_id, "schedule")
    assert began == []
    go.set()
    assert await call == "slow"
    await stack.client.wait_for_step_completion(flow_id, *stack.step("Act", 1))
    assert began == ["by rpc"]


async def test_a_transaction_deletes_a_message_or_changes_nothing(stack, flow_id):
    """A message that is not there makes the whole RPC fail."""
    await stack.publish(flow_id, "rooms/red", "one")

    @stack.script("delete")
    async def delete(context):
        title.set(context, "deleted")
        for message in rooms.pending_messages(context, "red"):
            rooms.delete(context, "red", message.message_id)
        return "deleted"

    @stack.script("miss")
    async def miss(context):
        title.set(context, "missed")
        inbox.delete(context, "no such message")
        return "missed"

    @stack.script("read")
    async def read(context):
        return f"{title.get(context)} {rooms.size(context, 'red')}"

    with pytest.raises(ChannelMessageNotFoundError):
        await stack.client.invoke_rpc(stack.flow.transactional, flow_id, "miss")
    assert await stack.client.invoke_rpc(stack.flow.read, flow_id, "read") == "first 1"
    assert await stack.client.invoke_rpc(stack.flow.transactional, flow_id, "delete") == "deleted"
    assert await stack.client.invoke_rpc(stack.flow.read, flow_id, "read") == "deleted 0"


async def test_a_failing_handler_is_the_callers_error(stack, flow_id):
    """The caller learns the class and the words; nothing was written."""

    @stack.script("fail")
    async def fail(context):
        title.set(context, "never")
        raise KeyError("missing")

    @stack.script("read")
    async def read(context):
        return title.get(context)

    for method in (stack.flow.read, stack.flow.locked, stack.flow.transactional):
        with pytest.raises(WorkerInvocationError) as caught:
            await stack.client.invoke_rpc(method, flow_id, "fail")
        assert caught.value.worker_error_type == "builtins.KeyError"
        assert caught.value.worker_error_detail == "'missing'"
        assert caught.value.worker_code is grpc.StatusCode.UNKNOWN
    assert await stack.client.invoke_rpc(stack.flow.read, flow_id, "read") == "first"


async def test_a_closed_flow_serves_reads_only(stack, flow_id):
    """A read is answered from what the flow left; a write is refused."""
    await stack.publish(flow_id, "inbox", "end")
    await stack.result(flow_id)

    @stack.script("read")
    async def read(context):
        return title.get(context)

    @stack.script("write")
    async def write(context):
        title.set(context, "never")
        return "written"

    assert await stack.client.invoke_rpc(stack.flow.read, flow_id, "read") == "first"
    for method in (stack.flow.read, stack.flow.locked):
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await stack.client.invoke_rpc(method, flow_id, "write")


async def test_an_rpc_that_takes_too_long_ends(stack, flow_id):
    """The handler is cancelled, and the caller is told in time."""
    cancelled = asyncio.Event()

    @stack.script("slow")
    async def slow(_context):
        try:
            await asyncio.sleep(30)
        finally:
            cancelled.set()

    with pytest.raises(RequestTimeoutError):
        await stack.client.invoke_rpc(stack.flow.hurried, flow_id, "slow")
    await asyncio.wait_for(cancelled.wait(), 5)
