"""Time as the executor sees it: the system's, or a virtual one that tests move by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

__all__ = ("Alarm", "Clock", "StepWatch", "SystemClock", "VirtualClock")


_LOOK_SECONDS = 0.001
_LONGEST_WAIT = 60.0
"""A wall clock that was set forward is noticed within this many seconds."""
_STEP_SECONDS = 1.0
"""A clock that moves by more at once was set, or its machine slept."""


class Alarm(Protocol):
    """A call that has been arranged for later."""

    def cancel(self) -> None:
        """Do not call after all."""
        ...


class Clock(Protocol):
    """Tells the time and calls back at a time."""

    @property
    def steady(self) -> Clock:
        """The clock for durations: nobody sets it, and its zero means nothing."""
        ...

    def now(self) -> float:
        """Return seconds since 1970."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        """Arrange a call in the running event loop, never before ``when``."""
        ...


class SystemClock:
    """The system's clock. Wall time says what is due; a monotonic clock does the waiting.

    Args:
        read: Tells the time, in seconds.
    """

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read

    @property
    def steady(self) -> SystemClock:
        """The system's monotonic clock."""
        return _STEADY

    def now(self) -> float:
        """Return seconds since 1970."""
        return self._read()

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        """Arrange a call in the running event loop, never before ``when``."""
        return _SystemAlarm(self, when, callback)


_STEADY = SystemClock(time.monotonic)


class StepWatch:
    """Notices that a clock was set: it then moves against the steady one.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._read()

    def has_stepped(self) -> bool:
        """Return whether the clock was set since the last time that this was asked."""
        before, self._offset = self._offset, self._read()
        return abs(self._offset - before) > _STEP_SECONDS

    def _read(self) -> float:
        return self._clock.now() - self._clock.steady.now()


class _SystemAlarm:
    def __init__(self, clock: SystemClock, when: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._when = when
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._arm()

    def _arm(self) -> None:
        left = max(self._when - self._clock.now(), 0.0)
        self._handle = self._loop.call_later(min(left, _LONGEST_WAIT), self._ring)

    def _ring(self) -> None:
        if self._clock.now() >= self._when:
            self._callback()
        else:
            self._arm()

    def cancel(self) -> None:
        self._handle.cancel()


class VirtualClock:
    """A clock that stands still until it is advanced.

    Args:
        start: The first time, in seconds since 1970.

    Attributes:
        running: Returns what is at work that the event loop cannot see the end of,
            such as a handler that waits for a thread. It is waited for in real time.
        patience: For how many real seconds without a change, before virtual time moves on.
    """

    _QUIET_ROUNDS = 50  # loop rounds in which whatever needs no thread has come to rest

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._alarms: list[tuple[float, int, _VirtualAlarm]] = []
        self._order = itertools.count()
        self._seen_at: dict[Hashable, float] = {}
        self._hanging: set[Hashable] = set()
        self.running: Callable[[], Iterable[Hashable]] = tuple
        self.patience = 1.0

    @property
    def steady(self) -> VirtualClock:
        """The clock itself, which nobody sets."""
        return self

    def now(self) -> float:
        """Return the virtual time in seconds since 1970."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Alarm:
        """Arrange a call for when the clock has been advanced so far."""
        alarm = _VirtualAlarm(callback)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def real_seconds(self) -> dict[Hashable, float]:
        """Return for how many real seconds, at least, each of what is running has been at it."""
        now = time.monotonic()
        return {each: now - self._seen_at.get(each, now) for each in self.running()}

    async def advance(self, seconds: float) -> None:
        """Let this much time pass at once; everything that becomes due happens in order.

        Between two due times the event loop runs until nothing moves any more,
        so a chain of Timers and retries inside the interval plays out fully.

        Args:
            seconds: 0 only lets what is due now happen.
        """
        target = self._now + seconds
        self._hanging.clear()  # whoever hung before may have been let go
        await self._settle()
        while self._alarms and self._alarms[0][0] <= target:
            when, _, alarm = heapq.heappop(self._alarms)
            self._now = max(self._now, when)
            if not alarm.is_cancelled:
                alarm.callback()
                await self._settle()
        self._now = target
        await self._settle()

    async def _settle(self) -> None:
        """Let the event loop run until nothing moves, and wait once for whatever really waits."""
        await self._quiet()
        before: set[Hashable] = set()
        deadline = 0.0
        while waiting := self._running_now() - self._hanging:
            if waiting != before:
                before, deadline = waiting, time.monotonic() + self.patience
            elif time.monotonic() > deadline:
                self._hanging |= waiting
            await asyncio.sleep(_LOOK_SECONDS)
            await self._quiet()
        self._hanging &= self._running_now()

    def _running_now(self) -> set[Hashable]:
        now = time.monotonic()
        self._seen_at = {each: self._seen_at.get(each, now) for each in self.running()}
        return {*self._seen_at}

    async def _quiet(self) -> None:
        for _ in range(self._QUIET_ROUNDS):
            await asyncio.sleep(0)


class _VirtualAlarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
