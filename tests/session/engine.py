"""A local backend with a worker and virtual time, as the tests of the session use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex_agents import (
    AgentEvent,
    AgentFrameworkRunner,
    AgentSessionClient,
    AgentSessionOptions,
    AgentSnapshot,
    AgentToolCall,
    FollowedEvent,
    ToolEffect,
    ToolPolicy,
    session_table,
)
from dex_agents.encoding import decode
from dex_agents.executor import Executor, LocalBackend, VirtualClock
from dex_agents.table import FlowTable
from dex_agents_dex import DexBackend
from dex_agents_dex.emulator import DexEmulator
from dex_agents_dex.emulator.snapshot import messages_of
from dex_agents_memory import MemoryBackend
from dex_agents_sqlite import SqliteBackend
from tests.addresses import free_address

READ = ToolPolicy(ToolEffect.READ)
IDEMPOTENT = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
ONCE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
ASK = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)

BACKENDS = ("memory", "sqlite")
DEX = ("dex-pull", "dex-listening")

_RECONNECT_SECONDS = 0.3
_ARRIVAL_SECONDS = 0.02
"""A message between the emulator and a worker takes a moment of real time."""


class PatientClock(VirtualClock):
    """Virtual time for a store whose commits become durable in a thread: it waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Any = None

    async def _settle(self) -> None:
        quiet = 0
        while quiet < self._QUIET_ROUNDS:
            self.store._streams.flush()
            idle = self.store._writer._idle
            quiet = quiet + 1 if idle.is_set() else 0
            await idle.wait()
            await asyncio.sleep(0)


def agent_flow(
    runner: AgentFrameworkRunner, *, flow_type: str = "Agent", **options: Any
) -> FlowTable:
    """Return the session table of a runner, with session options."""
    return session_table(runner, flow_type=flow_type, options=AgentSessionOptions(**options))


def open_local(name: str, directory: Path, **options: Any) -> tuple[LocalBackend, VirtualClock]:
    """Return a backend by name, not yet open, and the virtual clock that it goes by."""
    if name == "memory":
        clock = VirtualClock()
        return MemoryBackend(clock, **options), clock
    clock = PatientClock()
    backend = SqliteBackend(directory / "sessions.db", clock=clock, **options)
    clock.store = backend._store
    return backend, clock


class Engine:
    """An open backend, its virtual clock, and the workers that a test starts."""

    def __init__(self, backend: LocalBackend, clock: VirtualClock) -> None:
        self.backend = backend
        self.clock = clock
        self.workers: list[Executor] = []
        self._exits = AsyncExitStack()

    @property
    def name(self) -> str:
        return self.backend.name

    async def serve(
        self,
        runner: AgentFrameworkRunner,
        *,
        flow_type: str = "Agent",
        slots: int = 256,
        **options: Any,
    ) -> AgentSessionClient:
        """Start a worker for a runner's sessions, and return their client."""
        flow = agent_flow(runner, flow_type=flow_type, **options)
        worker = self.backend.worker([flow], grace_seconds=0.0, max_concurrent_steps=slots)
        self.workers.append(await self._exits.enter_async_context(worker))
        return AgentSessionClient(self.backend, flow)

    async def retire(self) -> None:
        """End every worker at once."""
        exits, self._exits = self._exits, AsyncExitStack()
        self.workers.clear()
        await exits.aclose()

    async def advance(self, time: timedelta | float) -> None:
        """Let virtual time pass; everything that becomes due happens in order."""
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        await self.clock.advance(seconds)

    async def settle(self) -> None:
        """Let everything happen that is due now."""
        await self.clock.advance(0)

    def stored(self, flow_id: str, name: str) -> Any:
        """Return a committed Attribute as plain JSON data, by its physical name."""
        raw = self.backend._store.reader(flow_id).get(name)
        return None if raw is None else decode(bytes(raw), object)

    def stored_names(self, flow_id: str, prefix: str) -> list[str]:
        """Return the physical names of a map's committed instances."""
        return list(self.backend._store.reader(flow_id).scan(prefix))

    def queued(self, flow_id: str, channel: str) -> list[Any]:
        """Return the messages that wait on a Channel."""
        state = self.backend._store.load(flow_id)
        assert state is not None
        queue = state.queues.get(channel, {})
        return [decode(bytes(raw), object) for raw in queue.values()]


class DexEngine(Engine):
    """An emulator with a virtual clock, and the SDK's own workers and clients on it."""

    def __init__(self, emulator: DexEmulator, backend: Any, clock: VirtualClock) -> None:
        super().__init__(backend, clock)
        self._emulator = emulator
        self._has_served = False

    async def serve(self, *arguments: Any, **options: Any) -> AgentSessionClient:
        """Start a worker for a runner's sessions, and return their client."""
        sessions = await super().serve(*arguments, **options)
        if self._has_served:
            # Where a listening worker was found gone, the server looks again after a while.
            await asyncio.sleep(_RECONNECT_SECONDS)
        self._has_served = True
        return sessions

    async def advance(self, time: timedelta | float) -> None:
        """Let virtual time pass, and what was sent meanwhile arrive."""
        await super().advance(time)
        await asyncio.sleep(_ARRIVAL_SECONDS)

    async def settle(self) -> None:
        """Let everything happen that is due now."""
        await self.advance(0)

    def stored(self, flow_id: str, name: str) -> Any:
        """Return a committed Attribute as plain JSON data, by its physical name."""
        value = self._run(flow_id).attributes.get(name)
        return None if value is None else _plain(value)

    def stored_names(self, flow_id: str, prefix: str) -> list[str]:
        """Return the physical names of a map's committed instances."""
        return sorted(name for name in self._run(flow_id).attributes if name.startswith(prefix))

    def queued(self, flow_id: str, channel: str) -> list[Any]:
        """Return the messages that wait on a Channel."""
        return [_plain(each.value) for each in messages_of(self._run(flow_id), channel)]

    def _run(self, flow_id: str) -> Any:
        return self._emulator._flows.latest(flow_id)


def _plain(value: Any) -> Any:
    if value.WhichOneof("kind") == "obj_value":
        return decode(value.obj_value.payload, object)
    return getattr(value, value.WhichOneof("kind"))


@asynccontextmanager
async def open_dex(name: str, **options: Any) -> AsyncIterator[DexEngine]:
    """Open an engine on the emulator, in virtual time."""
    clock = VirtualClock()
    clock.patience = 1.5
    async with DexEmulator(clock=clock, dispatch_wait=60) as emulator:
        worker = None if name == "dex-pull" else free_address()
        backend = DexBackend(emulator.address, worker_address=worker, clock=clock, **options)
        async with backend:
            engine = DexEngine(emulator, backend, clock)
            try:
                yield engine
            finally:
                await engine.retire()


async def drop_dead(backend: LocalBackend, worker: Executor) -> None:
    """End a worker as SIGKILL would: it writes nothing more, and its lease ends."""
    for task in worker._tasks:
        task.cancel()
    for handle in list(worker._handles.values()):
        handle.close()
    worker._handles.clear()
    released = asyncio.Event()
    backend._store.release(worker.worker, lambda _: released.set())
    await released.wait()


async def events_of(sessions: AgentSessionClient, session_id: str = "s") -> list[AgentEvent]:
    """Return the events of a session that count, oldest first."""
    return [each.event for each in await followed(sessions, session_id)]


async def followed(
    sessions: AgentSessionClient, session_id: str = "s", position: str | None = None
) -> list[FollowedEvent]:
    """Return what a reader sees behind a position, without waiting for more."""
    stream = sessions.follow_events(session_id, position=position, follow=False)
    return [each async for each in stream]


def payloads(events: list[AgentEvent], event_type: str) -> list[dict[str, Any]]:
    """Return the payloads of all events of a type."""
    return [event.payload for event in events if event.type == event_type]


def texts(snapshot: AgentSnapshot) -> list[str | None]:
    """Return the texts of a session's messages."""
    return [message.text for message in snapshot.messages]


def call_of(snapshot: AgentSnapshot, tool_call_id: str) -> AgentToolCall:
    """Return the record of a tool call."""
    return next(each for each in snapshot.tool_calls if each.tool_call_id == tool_call_id)


async def step_history(sessions: AgentSessionClient, session_id: str = "s") -> list[str]:
    """Return the executions that completed, oldest first."""
    history = await sessions.read_history(session_id)
    return [
        entry.step_execution_id for entry in history if entry.event_type == "step_execute_completed"
    ]


class Gate:
    """Holds a tool or a model call at one place until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.open.wait()
