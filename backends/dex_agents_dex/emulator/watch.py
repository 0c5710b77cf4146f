"""Timeouts of worker calls: of the whole call, and between signs of life."""

from __future__ import annotations

import asyncio

from dex_agents.executor import Clock
from dex_agents_dex.emulator.dispatch import (
    Dispatcher,
    Outcome,
    WorkerFailed,
    WorkerTask,
    require_fitting,
)

__all__ = ("Watch", "watched")


class Watch:
    """When a call began and last gave a sign of life.

    Args:
        clock: What is gone by.
        timeout: Seconds that the whole call may take.
        heartbeat: Seconds without a sign of life after which it counts as dead.
    """

    def __init__(self, clock: Clock, timeout: float, heartbeat: float) -> None:
        self.clock = clock
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._begun_at: float | None = None
        self._alive_at = 0.0
        self.begun = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start counting, with every worker that gets the task anew."""
        self._begun_at = self._alive_at = self.clock.now()
        if not self.begun.done():
            self.begun.set_result(None)

    def beat(self) -> None:
        """Record a sign of life."""
        self._alive_at = self.clock.now()

    def end(self) -> float | None:
        """Return when the call counts as dead; None before it began."""
        if self._begun_at is None:
            return None
        return min(self._begun_at + self._timeout, self._alive_at + self._heartbeat)

    def failure(self) -> WorkerFailed:
        """Return why the call counts as dead."""
        assert self._begun_at is not None
        if self.clock.now() >= self._begun_at + self._timeout:
            detail = f"The method took longer than {self._timeout:g} s."
            return WorkerFailed(detail, "StartToClose")
        return WorkerFailed(f"No heartbeat came for {self._heartbeat:g} s.", "Heartbeat")


async def watched(dispatcher: Dispatcher, task: WorkerTask, watch: Watch) -> Outcome:
    """Return a task's outcome, or cancel it when its time is over.

    Raises:
        WorkerFailed: The worker failed, or its time is over.
    """
    require_fitting(f"{task.kind} task", task.request)
    call = asyncio.ensure_future(dispatcher.invoke(task))
    try:
        while not call.done():
            end = watch.end()
            if end is None:  # nothing but the dispatch itself ends a call that has not begun
                await asyncio.wait({call, watch.begun}, return_when=asyncio.FIRST_COMPLETED)
            elif watch.clock.now() >= end:
                raise watch.failure()
            else:
                await _until(call, watch.clock, end)
        outcome = call.result()
        require_fitting(f"{task.kind} result", outcome.response)
        return outcome
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def _until(call: asyncio.Future[Outcome], clock: Clock, end: float) -> None:
    """Wait for a call, or for a time."""
    is_over = asyncio.Event()
    call.add_done_callback(lambda _: is_over.set())
    alarm = clock.call_at(end, is_over.set)
    try:
        await is_over.wait()
    finally:
        alarm.cancel()
