"""Small tables, and the backends that run them: memory, and Dex in both of its modes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any

from dex_agents.backend import FlowSummary
from dex_agents.executor import SystemClock
from dex_agents.executor.clock import Alarm
from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Decision,
    FlowTable,
    Rpc,
    RpcResult,
    Step,
    StepOptions,
    Stream,
    Wait,
)
from dex_agents_dex import DexBackend
from dex_agents_dex.emulator import DexEmulator
from dex_agents_memory import MemoryBackend

BACKENDS = ("memory", "listening", "pull")
SCALE = 0.05
"""How much shorter a delay is than it says."""

NOTE = Attribute("Note", str)
COUNT = Attribute("Count", int)
ITEMS = AttributeMap("Items", dict[str, int])
INBOX = Channel("Inbox", str)
NUMBERS = Channel("Numbers", int)
ANSWERS = ChannelMap("Answers", str)
LOG = Stream("logs/Log", str, 10_000)
ROWS = (NOTE, COUNT, ITEMS, INBOX, NUMBERS, ANSWERS, LOG)


class FastClock(SystemClock):
    """The system's clock, running as fast as the emulator's delays."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.time()

    @property
    def steady(self) -> FastClock:
        """The same: nobody sets it."""
        return self

    def now(self) -> float:
        """Return seconds since 1970, which pass fast."""
        return self._begun + (time.time() - self._begun) / SCALE

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        """Arrange a call, never before ``when``."""
        loop = asyncio.get_running_loop()

        def ring() -> None:
            if self.now() >= when:
                callback()
            else:
                alarm.handle = loop.call_later((when - self.now()) * SCALE, ring)

        alarm = _FastAlarm()
        alarm.handle = loop.call_later(max((when - self.now()) * SCALE, 0.0), ring)
        return alarm


class _FastAlarm:
    handle: asyncio.TimerHandle

    def cancel(self) -> None:
        self.handle.cancel()


class Runs:
    """A backend, and a few words for tests.

    Args:
        backend: It is open.
        kind: ``"memory"``, ``"listening"`` or ``"pull"``.
    """

    def __init__(self, backend: Any, kind: str) -> None:
        self.backend = backend
        self.kind = kind

    @asynccontextmanager
    async def serving(self, *tables: FlowTable, **options: Any) -> AsyncIterator[Any]:
        """Serve tables while the block runs."""
        async with self.backend.worker(tables, grace_seconds=0.5, **options) as worker:
            yield worker

    async def start(self, table: FlowTable, start_input: Any = None) -> str:
        """Start a flow under a fresh ID."""
        flow_id = f"flow-{uuid.uuid4()}"
        await self.backend.start_flow(table, flow_id, start_input)
        return flow_id

    async def call(self, table: FlowTable, flow_id: str, rpc: str, rpc_input: Any = None) -> Any:
        """Call an RPC."""
        return await self.backend.invoke_rpc(table, flow_id, rpc, rpc_input)

    async def ended(self, flow_id: str, seconds: float = 15.0) -> FlowSummary:
        """Return a flow's summary once it is closed."""

        async def look() -> FlowSummary | None:
            summary: FlowSummary = await self.backend.describe_flow(flow_id)
            return summary if summary.status != "running" else None

        return await until(look, seconds)

    async def run(self, table: FlowTable, start_input: Any = None) -> FlowSummary:
        """Serve a table, run one flow of it to its end, and return its summary."""
        async with self.serving(table):
            return await self.ended(await self.start(table, start_input))

    async def stream(self, table: FlowTable, flow_id: str, position: str | None = None) -> Any:
        """Return the log's messages with their positions, without following."""
        reading = self.backend.read_stream(table, flow_id, LOG.name, position, follow=False)
        return [message async for message in reading]


@asynccontextmanager
async def running(kind: str, **emulator_options: Any) -> AsyncIterator[Runs]:
    """Open a backend of a kind."""
    if kind == "memory":
        async with MemoryBackend(FastClock()) as memory:
            yield Runs(memory, kind)
        return
    async with (
        DexEmulator(
            time_scale=SCALE, dispatch_wait=2.0, longest_poll=15.0, **emulator_options
        ) as emulator,
        DexBackend(
            emulator.address, worker_address="127.0.0.1:0" if kind == "listening" else None
        ) as backend,
    ):
        yield Runs(backend, kind)


async def until(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return what a probe finds, as soon as it finds something."""
    async with asyncio.timeout(seconds):
        while True:
            found = look()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


def done(execute: Any = None, **given: Any) -> Step[Any]:
    """Return a Step row ``Done`` that completes the flow."""

    async def complete(_context: Any, _given: Any) -> Decision:
        return Decision.graceful_complete()

    return Step("Done", execute or complete, **given)


def step(
    name: str, execute: Any, *next_steps: str, tp: Any = NoneType, **options: Any
) -> Step[Any]:
    """Return a Step row with options of its own."""
    wait_for = options.pop("wait_for", None)
    return Step(
        name,
        execute,
        input=tp,
        wait_for=wait_for,
        options=StepOptions(**options),
        next_steps=next_steps,
    )


def waiting(wait: Wait, execute: Any, **options: Any) -> Step[Any]:
    """Return a start Step that waits so and then executes."""

    async def wait_for(_context: Any, _given: Any) -> Wait:
        return wait

    return step("Wait", execute, wait_for=wait_for, **options)


def publishing(name: str, channel: Channel[Any]) -> Rpc[Any, None]:
    """Return an RPC that publishes its input."""

    def publish(context: Any, message: Any) -> RpcResult[None]:
        context.publish(channel, message)
        return RpcResult(None)

    return Rpc(name, publish, input=channel.type)


def flow(*steps: Step[Any], rpcs: tuple[Rpc[Any, Any], ...] = (), name: str = "Flow") -> FlowTable:
    """Return a table of these Steps, and of every row above."""
    return FlowTable(name, steps, rpcs, ROWS)
