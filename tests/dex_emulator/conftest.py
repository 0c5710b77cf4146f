"""The emulator, a real AsyncWorker and a real AsyncClient, in both modes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from dex import (
    AsyncClient,
    AsyncWorker,
    ClientOptions,
    FlowConfig,
    PullWorkerOptions,
    Registry,
    RPCResult,
    StartFlowOptions,
    StepExecutionId,
    WaitForStepCompletionOptions,
    WorkerOptions,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_agents_dex.emulator import DexEmulator
from tests.dex_emulator.flows import ScriptedFlow


class NoBlobs:
    """A blob cache for a server that sends every value in full."""

    def get(self, *_: object) -> None:
        return None

    def put(self, *_: object) -> None: ...

    def delete(self, *_: object) -> None: ...

    def delete_all(self, *_: object) -> None: ...

    def close(self) -> None: ...


async def until(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return what a probe finds, as soon as it finds something."""
    async with asyncio.timeout(seconds):
        while True:
            found = look()
            if found:
                return found
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_worker(
    registry: Registry, address: str, mode: str, **pull: Any
) -> AsyncIterator[AsyncWorker]:
    """Run a worker until the block ends."""
    options = (
        WorkerOptions(
            server_address=address,
            pull=PullWorkerOptions(
                max_concurrent_tasks=pull.pop("max_concurrent_tasks", 16), **pull
            ),
        )
        if mode == "pull"
        else WorkerOptions(server_address=address, bind_address="127.0.0.1:0")
    )
    worker = AsyncWorker(registry, NoBlobs(), options)
    serving = asyncio.create_task(worker.start())
    try:
        if mode == "pull":
            await worker.wait_pull_registered(10)
        else:
            await until(lambda: serving.done() or not worker.worker_target.address.endswith(":0"))
        yield worker
    finally:
        await worker.stop()
        await serving


class Stack:
    """A flow with its worker and client."""

    def __init__(self, emulator: DexEmulator, flow: ScriptedFlow, mode: str) -> None:
        self.emulator = emulator
        self.flow = flow
        self.mode = mode
        self.registry = Registry([flow], allow_async_handlers=True)
        self._exits = AsyncExitStack()

    async def open(self, **pull: Any) -> None:
        self.worker = await self._exits.enter_async_context(
            running_worker(self.registry, self.emulator.address, self.mode, **pull)
        )
        self.client = AsyncClient(
            self.registry,
            NoBlobs(),
            ClientOptions(
                server_address=self.emulator.address, worker_target=self.worker.worker_target
            ),
        )
        self._exits.push_async_callback(self.client.close)
        self.stub = dex_pb2_grpc.FlowServiceStub(self.client._channel)

    async def close(self) -> None:
        await self._exits.aclose()

    def script(self, name: str, wait: Any = None) -> Any:
        """Return a decorator for what a handler does."""

        def keep(function: Any) -> Any:
            if wait is not None:
                self.flow.scripts.wait[name] = wait
            self.flow.scripts.execute[name] = function
            return function

        return keep

    async def start(self, script: str = "start", **options: Any) -> str:
        """Start a flow of a fresh ID."""
        flow_id = f"flow-{uuid.uuid4()}"
        await self.client.start_flow(
            self.flow, flow_id, script, options=StartFlowOptions(**options)
        )
        return flow_id

    async def publish(self, flow_id: str, channel: str, text: str) -> None:
        """Put a message into a Channel from outside."""
        message = pb.ChannelMessage(channel_name=channel, value=pb.Value(string_value=text))
        await self.stub.PublishToChannel(
            pb.PublishToChannelRequest(flow_id=flow_id, messages=[message])
        )

    async def waiting_for(self, flow_id: str, execution_id: str) -> None:
        """Return once an execution's wait_for has returned, as the history tells."""
        request = pb.GetHistoryEventsRequest(flow_id=flow_id)
        while True:
            page = await self.stub.GetHistoryEvents(request)
            for event in page.events:
                if event.step_wait_for_completed.context.step_execution_id == execution_id:
                    return
            await asyncio.sleep(0.01)

    async def history(self, flow_id: str) -> list[Any]:
        """Return a flow's history."""
        run_id = (await self.client.describe_flow(flow_id)).run_id
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        return list((await self.stub.GetHistoryEvents(request)).events)

    def config(self) -> FlowConfig:
        """Return a configuration that sends a flow to this stack's worker."""
        return FlowConfig(worker_target=self.worker.worker_target)

    @staticmethod
    def step(step: str, number: int, **options: Any) -> tuple[Any, Any]:
        """Return the arguments that name an execution."""
        return StepExecutionId(step, number), WaitForStepCompletionOptions(**options)

    @staticmethod
    def rpc_result(output: str, **effects: Any) -> Any:
        """Return an RPC's result."""
        return RPCResult(output, **effects)

    async def result(self, flow_id: str) -> Any:
        """Return how a flow ended."""
        return await self.client.wait_for_flow(flow_id, timedelta(seconds=20))

    async def output(self, flow_id: str, tp: type = str) -> Any:
        """Return a flow's only output."""
        return (await self.result(flow_id)).single_output(tp)


@pytest.fixture(params=["listening", "pull"])
def mode(request: pytest.FixtureRequest) -> str:
    """How workers are reached."""
    return request.param


@pytest.fixture
async def emulator() -> AsyncIterator[DexEmulator]:
    """An emulator whose delays are a twentieth."""
    async with DexEmulator(time_scale=0.05, dispatch_wait=2.0, longest_poll=15.0) as emulator:
        yield emulator


@pytest.fixture
async def stack(emulator: DexEmulator, mode: str) -> AsyncIterator[Stack]:
    """A scripted flow with its worker and client."""
    stack = Stack(emulator, ScriptedFlow(), mode)
    await stack.open()
    yield stack
    await stack.close()
