"""Pull mode: frames, reassignment, and workers that come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from dex import (
    AsyncClient,
    ClientOptions,
    RetryPolicy,
    StepMovement,
    StepOptions,
    WorkerInvocationError,
    WorkerTarget,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from tests.dex_emulator.conftest import NoBlobs, Stack, running_worker, until
from tests.dex_emulator.flows import Act, ScriptedFlow


class ScriptedWorker:
    """A stream of a pull worker, frame by frame."""

    def __init__(self, address: str, worker: str) -> None:
        self.worker = worker
        self.channel = grpc.aio.insecure_channel(address)
        self.call: Any = None

    async def open(self, queue: str = "Scripted") -> ScriptedWorker:
        self.call = dex_pb2_grpc.WorkerTaskServiceStub(self.channel).PollWorkerTask()
        register = pb.PollWorkerTaskRegister(
            queue=queue, app_worker_id=self.worker, flow_types=["Scripted"]
        )
        await self.call.write(pb.PollWorkerTaskRequest(register=register))
        assert (await self.call.read()).registered.supports_unknown_name_rejection
        return self

    async def task(self) -> Any:
        """Return the next task."""
        return (await asyncio.wait_for(self.call.read(), 5)).task

    async def reject(self, task: Any, reason: Any) -> None:
        reject = pb.PollWorkerTaskReject(task_id=task.task_id, reason=reason)
        await self.call.write(pb.PollWorkerTaskRequest(reject=reject))

    async def send(self, task: Any, **output: Any) -> None:
        frame = pb.PollWorkerTaskFrame(task_id=task.task_id, **output)
        await self.call.write(pb.PollWorkerTaskRequest(task_frame=frame))

    async def complete(self, task: Any) -> None:
        """Return a completion with a present null as its output."""
        close = pb.CloseDecision(close_decision_type=pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE)
        decision = pb.StepDecision(close_decision=close)
        result = pb.InvokeExecuteMethodResponse(step_decision=decision)
        await self.send(task, execute=pb.InvokeExecuteMethodOutput(result=result))


@pytest.fixture
async def mode() -> str:
    return "pull"


@pytest.fixture
async def pulled(emulator, mode) -> AsyncIterator[Stack]:
    """A stack with a client and no worker."""
    stack = Stack(emulator, ScriptedFlow(), mode)
    stack.flow.scripts.options["Start"] = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))
    stack.client = AsyncClient(
        stack.registry,
        NoBlobs(),
        ClientOptions(server_address=emulator.address, worker_target=WorkerTarget(pull=True)),
    )
    yield stack
    await stack.client.close()


@pytest.fixture
async def worker(emulator) -> AsyncIterator[Any]:
    """Return a function that opens scripted streams."""
    opened = []

    async def open_stream(name: str = "w1", queue: str = "Scripted") -> ScriptedWorker:
        scripted = await ScriptedWorker(emulator.address, name).open(queue)
        opened.append(scripted)
        return scripted

    yield open_stream
    for scripted in opened:
        scripted.call.cancel()
        await scripted.channel.close()


async def test_a_half_closed_stream_gives_its_task_to_another(pulled, worker, caplog):
    """The race of a retiring stream costs no attempt, ends promptly, and is logged."""
    caplog.set_level(logging.INFO, "dex_agents_dex.emulator")
    retiring = await worker("w1")
    flow_id = await pulled.start()
    task = await retiring.task()
    await retiring.call.done_writing()
    assert await asyncio.wait_for(retiring.call.read(), 5) is grpc.aio.EOF
    assert await retiring.call.code() is grpc.StatusCode.OK
    other = await worker("w2")
    again = await other.task()
    assert again.execute.context.attempt == 1
    assert again.task_id != task.task_id
    await other.complete(again)
    assert (await pulled.result(flow_id)).is_terminal
    assert f"reassigned execute task of flow {flow_id} from worker w1" in caplog.text


async def test_a_full_worker_is_passed_over(pulled, worker):
    """A rejected task goes to another worker, and costs no attempt."""
    full = await worker("w1")
    flow_id = await pulled.start()
    await full.reject(await full.task(), pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY)
    other = await worker("w2")
    task = await other.task()
    assert task.execute.context.attempt == 1
    await other.complete(task)
    assert (await pulled.result(flow_id)).is_terminal


async def test_a_full_worker_is_asked_again(pulled, worker):
    """Once there is room, the only worker gets the task."""
    full = await worker("w1")
    flow_id = await pulled.start()
    for _ in range(3):
        await full.reject(await full.task(), pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY)
    await full.complete(await full.task())
    assert (await pulled.result(flow_id)).is_terminal


async def test_a_step_that_no_worker_knows_fails_its_attempt(pulled, worker):
    """A worker that does not know a Step is not asked again; when none does, it is said."""
    one, two = await worker("w1"), await worker("w2")
    flow_id = await pulled.start()
    for each in (one, two):
        await each.reject(await each.task(), pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP)
    result = await pulled.result(flow_id)
    assert result.error_message == "No worker of flow type 'Scripted' knows 'Start'."


async def test_without_a_worker_the_attempt_fails_in_time(pulled):
    """NO_WORKER_AVAILABLE consumes an attempt of a Step, and an RPC's caller is told."""
    flow_id = await pulled.start()
    with pytest.raises(WorkerInvocationError, match="No pull worker"):
        await pulled.client.invoke_rpc(pulled.flow.read, flow_id, "x")
    result = await pulled.result(flow_id)
    assert "No pull worker took a execute task" in result.error_message


async def test_a_worker_that_dies_fails_its_attempt(pulled, worker):
    """Whether the handler ran is not known, so the attempt counts."""
    dying = await worker("w1")
    flow_id = await pulled.start()
    await dying.task()
    dying.call.cancel()
    result = await pulled.result(flow_id)
    assert result.error_message == "Pull worker w1 went away during the call."


async def test_a_stream_that_ends_after_a_frame_fails_its_attempt(pulled, worker):
    """A task that sent a frame had begun; nobody else may run it as the same attempt."""
    dying = await worker("w1")
    flow_id = await pulled.start()
    task = await dying.task()
    beat = pb.InvokeExecuteMethodOutput(heartbeat=pb.StepMethodHeartbeat())
    await dying.send(task, execute=beat)
    await dying.call.done_writing()
    result = await pulled.result(flow_id)
    assert "went away" in result.error_message


async def test_frames_of_a_former_task_are_dropped(pulled, worker):
    """A late final frame neither ends the next task nor frees the stream."""
    stream = await worker("w1")
    flow_id = await pulled.start()
    task = await stream.task()
    stale = pb.PollWorkerTask(task_id="stale")
    await stream.send(stale, worker_error=pb.WorkerErrorResponse(detail="stale"))
    await stream.complete(task)
    assert (await pulled.result(flow_id)).error_message in (None, "")


async def test_the_worker_that_served_a_flow_is_preferred(pulled, worker):
    """The next task of a flow goes to the sticky queue, though others wait longer."""
    served = await worker("w1")
    flow_id = await pulled.start()
    task = await served.task()
    await worker("w2")
    sticky = await worker("w1", queue="w1")
    movement = pb.StepMovement(step_type="Act", step_input=pb.Value(string_value="x"))
    movement.step_options.skip_wait_for = True
    decision = pb.StepDecision(next_steps=[movement])
    result = pb.InvokeExecuteMethodResponse(step_decision=decision)
    await served.send(task, execute=pb.InvokeExecuteMethodOutput(result=result))
    second = await sticky.task()
    assert second.execute.step_type == "Act"
    await sticky.complete(second)
    assert (await pulled.result(flow_id)).is_terminal
    stub = dex_pb2_grpc.FlowServiceStub(pulled.client._channel)
    page = await stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=flow_id))
    routing = page.events[2].step_execute_completed.context.pull_routing
    assert routing.served_by_app_worker_id == "w1"
    assert routing.source == pb.PULL_ROUTING_SOURCE_STICKY_QUEUE


async def test_a_stream_must_register_first(emulator):
    """Anything else is a permanent error."""
    async with grpc.aio.insecure_channel(emulator.address) as channel:
        call = dex_pb2_grpc.WorkerTaskServiceStub(channel).PollWorkerTask()
        await call.write(pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_many_flows_on_two_small_workers_lose_nothing(pulled):
    """Every Step runs exactly once, although the workers refuse and retire all the time."""
    ran = []

    @pulled.script("start")
    async def start(context):
        ran.append((context.flow_id, context.step_execution_id))
        return go_to_many(StepMovement.of(Act, "act"), StepMovement.of(Act, "act"))

    @pulled.script("act")
    async def act(context):
        ran.append((context.flow_id, context.step_execution_id))
        await asyncio.sleep(0)
        return graceful_complete()

    pulled.flow.scripts.options["Act"] = pulled.flow.scripts.options["Start"]
    address = pulled.emulator.address
    async with (
        running_worker(pulled.registry, address, "pull", max_concurrent_tasks=2),
        running_worker(pulled.registry, address, "pull", max_concurrent_tasks=2),
    ):
        flow_ids = [await pulled.start() for _ in range(40)]
        results = [await pulled.result(flow_id) for flow_id in flow_ids]
    assert {each.status.name for each in results} == {"COMPLETED"}
    assert len(ran) == len(set(ran)) == 120


async def test_a_worker_that_stops_hands_over(pulled):
    """What it runs it finishes; the next one takes the rest."""
    gate, running = asyncio.Event(), asyncio.Event()

    @pulled.script("start")
    async def start(_context):
        running.set()
        await gate.wait()
        return graceful_complete("first")

    address = pulled.emulator.address
    async with running_worker(pulled.registry, address, "pull") as first:
        flow_id = await pulled.start()
        await running.wait()
        stopping = asyncio.create_task(first.stop())
        await until(lambda: first._pull.is_stopping)
        gate.set()
        await stopping
    assert await pulled.output(flow_id) == "first"
    async with running_worker(pulled.registry, address, "pull"):
        assert await pulled.output(await pulled.start()) == "first"
