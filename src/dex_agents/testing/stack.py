"""A whole engine in a test: memory, a virtual clock and one worker."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Self

from dex_agents.client import AgentSessionClient
from dex_agents.executor import Clock, VirtualClock
from dex_agents.table import FlowTable
from dex_agents.testing.errors import StillRunningError
from dex_agents_memory import MemoryBackend

__all__ = ("AgentMemoryStack",)


class AgentMemoryStack:
    """Runs flows in memory while the block runs.

    On the default clock, time stands still until a test advances it, so a day
    of waiting costs milliseconds. A runner that waits for something real (a
    sleep, a thread, a socket) is waited for in real time, up to a patience.

    Args:
        flows: The tables that the worker serves.
        clock: None for a new `VirtualClock`.
        patience: How many real seconds `settle` and `advance` wait while no handler begins or ends.
        worker_options: For the backend's worker. ``grace_seconds`` is 1 here.
    """

    def __init__(
        self,
        flows: Iterable[FlowTable],
        *,
        clock: Clock | None = None,
        patience: float = 1.0,
        **worker_options: Any,
    ) -> None:
        self.clock: Clock = clock or VirtualClock()
        self.backend = MemoryBackend(self.clock)
        self._patience = patience
        self._flows = tuple(flows)
        self._worker_options = {"grace_seconds": 1.0, **worker_options}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            await exits.enter_async_context(self.backend)
            worker = self.backend.worker(self._flows, **self._worker_options)
            self._worker = await exits.enter_async_context(worker)
            self._exits = exits.pop_all()
        if isinstance(self.clock, VirtualClock):
            self.clock.running, self.clock.patience = self._worker.running, self._patience
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exits.aclose()

    def sessions(self, flow: FlowTable | str) -> AgentSessionClient:
        """Return a client of the sessions of one flow."""
        return AgentSessionClient(self.backend, flow)

    async def advance(self, time: timedelta | float) -> None:
        """Let time pass at once; everything that becomes due happens in order.

        A handler that outlasts the patience is left hanging while time moves
        on, so that its timeout can be tested.

        Args:
            time: How much; a number means seconds.

        Raises:
            TypeError: The stack has a clock that cannot be advanced.
        """
        if not isinstance(self.clock, VirtualClock):
            raise TypeError(f"{type(self.clock).__name__} cannot be advanced; use a VirtualClock.")
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        await self.clock.advance(seconds)

    async def settle(self) -> None:
        """Let everything happen that is due now.

        Raises:
            StillRunningError: A handler outlasts the patience. It is named, with how long it runs.
            TypeError: The stack has a clock that cannot be advanced.
        """
        await self.advance(0)
        assert isinstance(self.clock, VirtualClock)  # or it could not be advanced
        if running := self.clock.real_seconds():
            raise StillRunningError({str(k): v for k, v in running.items()}, self._patience)
