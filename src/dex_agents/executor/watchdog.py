"""Watches over the attempts of one worker with a single alarm."""

from __future__ import annotations

from dex_agents.executor.attempt import Attempt
from dex_agents.executor.clock import Alarm, Clock

__all__ = ("Watchdog",)


class Watchdog:
    """Fails attempts that take too long or give no sign of life.

    Almost every attempt ends long before its deadline. One alarm for all of
    them, which looks again when it rings, costs each of them next to nothing.

    Args:
        clock: The worker's steady clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: set[Attempt] = set()
        self._alarm: Alarm | None = None
        self._rings_at = float("inf")

    def add(self, attempt: Attempt) -> None:
        """Watch over an attempt."""
        self._attempts.add(attempt)
        self._arm(attempt.deadline)

    def remove(self, attempt: Attempt) -> None:
        """Stop watching over an attempt, if it is watched."""
        self._attempts.discard(attempt)

    def close(self) -> None:
        """Never ring again."""
        self._attempts.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self, when: float) -> None:
        if when < self._rings_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._rings_at = when
            self._alarm = self._clock.call_at(when, self._ring)

    def _ring(self) -> None:
        self._rings_at = float("inf")
        now = self._clock.now()
        for attempt in list(self._attempts):
            if attempt.deadline <= now:
                attempt.check(now)
        if self._attempts:
            self._arm(min(attempt.deadline for attempt in self._attempts))
