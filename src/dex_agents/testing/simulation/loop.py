"""The event loop of one simulated process: nothing in it depends on the machine."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

__all__ = ("SimulatedLoop",)


class _Call:
    """A callback that has been arranged for."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context or contextvars.copy_context()
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order they came, when it is told to, at a time that it is told.

    It has what tasks, futures, timeouts and sleeping need; no threads, sockets or signals.

    Args:
        time: The simulation's time in seconds.
        failed: Told of an error that nobody caught.
    """

    def __init__(self, time: Callable[[], float], failed: Callable[[dict[str, Any]], None]) -> None:
        self._now = time
        self._failed = failed
        self._ready: deque[_Call] = deque()
        self._later: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self._is_dead = False
        self._is_interrupted = False

    def next_call_at(self) -> float:
        """Return from when a callback can run: 0 for now, infinity for never."""
        if self._ready:
            return 0.0
        while self._later and self._later[0][2].is_cancelled:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else math.inf

    def interrupt(self) -> None:
        """Run nothing more until `run` is called again."""
        self._is_interrupted = True

    def run(self, count: int) -> None:
        """Run so many callbacks, or as many as are ready."""
        later, now = self._later, self._now()
        while later and later[0][0] <= now:
            self._ready.append(heapq.heappop(later)[2])
        self._is_interrupted = False
        asyncio._set_running_loop(self)  # noqa: SLF001 - meant for those who write a loop
        try:
            while count and self._ready and not self._is_interrupted:
                count -= 1
                call = self._ready.popleft()
                if not call.is_cancelled:
                    self._run(call)
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001

    def _run(self, call: _Call) -> None:
        try:
            call.context.run(call.callback, *call.args)
        except Exception as error:  # noqa: BLE001 - as every loop does
            self.call_exception_handler({"message": "A callback failed", "exception": error})

    def kill(self) -> None:
        """End the process: nothing of it ever runs again.

        What its coroutines still do when they are torn down, as no process that
        was killed would, happens here and now, unheard.
        """
        self._is_dead = True
        self._ready.clear()
        self._later.clear()
        asyncio._set_running_loop(self)  # noqa: SLF001
        try:
            with warnings.catch_warnings(action="ignore"):
                for task in asyncio.all_tasks(self):
                    with suppress(BaseException):
                        task.get_coro().close()
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return the simulation's time."""
        return self._now()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> _Call:
        """Arrange a callback."""
        call = _Call(callback, args, context)
        if not self._is_dead:
            self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> _Call:
        """Arrange a callback for after a delay in seconds."""
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> _Call:
        """Arrange a callback for a time."""
        call = _Call(callback, args, context)
        if not self._is_dead:
            heapq.heappush(self._later, (when, next(self._order), call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        """Start a task."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Never debug."""
        return False

    def is_running(self) -> bool:
        """Return whether the process lives."""
        return not self._is_dead

    def is_closed(self) -> bool:
        """Return whether the process is dead."""
        return self._is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the simulation of an error that nobody caught."""
        if not self._is_dead:
            self._failed(context)
