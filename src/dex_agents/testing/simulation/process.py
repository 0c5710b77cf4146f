"""One simulated process: an event loop, a store, a real backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dex_agents.client import AgentSessionClient
from dex_agents.executor import Executor, SystemClock
from dex_agents.executor.local import LocalBackend
from dex_agents.machine import Changes
from dex_agents.table import FlowTable
from dex_agents.testing.simulation.loop import SimulatedLoop
from dex_agents.testing.simulation.store import Disk, Fate, SimulatedStore

__all__ = ("Process", "Surroundings")


class Surroundings(Protocol):
    """What a process needs of the world."""

    now: float
    skew: float
    disk: Disk
    table: FlowTable

    def failed(self, process: Process, context: dict[str, Any]) -> None:
        """Learn of an error that nobody caught."""
        ...

    def committed(self, process: Process, flow_id: str, changes: Changes) -> None:
        """Learn of what is durable from now on."""
        ...

    def wrote(self, process: Process) -> None:
        """Learn that a process has written."""
        ...

    def write_delay(self) -> float:
        """Return how long a group of writes takes, in seconds."""
        ...


class _Clock(SystemClock):
    """What the machine's clock shows, which somebody may have set wrong."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(lambda: surroundings.now + surroundings.skew)
        self._steady = SystemClock(lambda: surroundings.now)
        self.latest = 0.0

    @property
    def steady(self) -> SystemClock:
        """The simulation's true time, which nobody sets."""
        return self._steady

    def now(self) -> float:
        now = super().now()
        self.latest = max(self.latest, now)
        return now


class Process:
    """A process with clients and, if it is told to serve, a worker.

    Args:
        surroundings: The world.
        name: For traces.
    """

    def __init__(self, surroundings: Surroundings, name: str) -> None:
        self.name = name
        self._surroundings = surroundings
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            lambda: surroundings.now, lambda context: surroundings.failed(self, context)
        )
        self.clock = _Clock(surroundings)
        self.store = SimulatedStore(surroundings.disk, self)
        backend = LocalBackend(self.store, ())
        self._backend = backend
        self.client = AgentSessionClient(backend, surroundings.table)
        self.worker: Executor | None = None
        self.frozen_until = 0.0
        self.fates: list[Fate] = []
        self.is_alive = True
        self.serves = False
        self._stop: asyncio.Event | None = None
        self._is_noticing = False  # what was written meanwhile is noticed together
        self._notice_delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    def serve(self, on_end: Callable[[], None], **options: Any) -> None:
        """Run a worker until it is told to stop."""
        self.serves = True
        self.spawn(self._serve, lambda _: on_end(), options)

    async def _serve(self, options: dict[str, Any]) -> None:
        self._stop = asyncio.Event()
        async with self._backend.worker([self._surroundings.table], **options) as worker:
            self.worker = worker
            await self._stop.wait()
        self.worker = None

    def stop(self) -> None:
        """Tell the worker to stop, as SIGTERM does."""
        if self._stop is not None:
            self._stop.set()

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        self.is_alive = False
        self.worker = None
        self.loop.kill()

    def spawn(
        self,
        work: Callable[..., Awaitable[Any]],
        on_end: Callable[[BaseException | None], None],
        *args: Any,
    ) -> None:
        """Run something here, and tell how it ended; nobody is told when the process dies."""

        async def run() -> None:
            try:
                await work(*args)
            except Exception as error:  # noqa: BLE001 - for whoever is told
                on_end(error)
            else:
                on_end(None)

        def start() -> None:
            task = self.loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.loop.call_soon(start)

    # What its store asks of it

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Arrange a call in this process."""
        self.loop.call_later(delay, callback)

    def write_delay(self) -> float:
        """Return how long the next group of writes takes, in seconds."""
        return self._surroundings.write_delay()

    def fate(self) -> Fate:
        """Return what becomes of the group of writes that is at the disk now."""
        return self.fates.pop() if self.fates else Fate.WRITTEN

    def committed(self, flow_id: str, changes: Changes) -> None:
        """Tell the world what is durable now."""
        self._surroundings.committed(self, flow_id, changes)

    def wrote(self) -> None:
        """Tell the world that others may notice a change."""
        self._surroundings.wrote(self)

    def notice(self, delay: float) -> None:
        """Let the process notice a change of the disk, some time later."""
        if not self._is_noticing or delay != self._notice_delay:
            self._is_noticing, self._notice_delay = True, delay
            self.loop.call_later(delay, self._notice)

    def _notice(self) -> None:
        self._is_noticing = False
        self.store.changed.notify()
        self.store.changed_elsewhere.notify()
