"""Timeouts of worker calls: of the whole call, and between signs of life."""

from __future__ import annotations

import asyncio
import time

from dex_agents_dex.emulator.dispatch import (
    Dispatcher,
    Outcome,
    WorkerFailed,
    WorkerTask,
    require_fitting,
)

__all__ = ("Watch", "watched")


class Watch:
    """When a call began and last gave a sign of life."""

    def __init__(self, timeout: float, heartbeat: float) -> None:
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._begun_at: float | None = None
        self._alive_at = 0.0
        self.begun = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start counting, with every worker that gets the task anew."""
        self._begun_at = self._alive_at = time.monotonic()
        if not self.begun.done():
            self.begun.set_result(None)

    def beat(self) -> None:
        """Record a sign of life."""
        self._alive_at = time.monotonic()

    def left(self) -> float | None:
        """Return the seconds until the call counts as dead; None before it began."""
        if self._begun_at is None:
            return None
        end = min(self._begun_at + self._timeout, self._alive_at + self._heartbeat)
        return end - time.monotonic()

    def failure(self) -> WorkerFailed:
        """Return why the call counts as dead."""
        assert self._begun_at is not None
        if time.monotonic() >= self._begun_at + self._timeout:
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
            left = watch.left()
            if left is not None and left <= 0:
                raise watch.failure()
            # Before it has begun, nothing but the dispatch itself ends a call.
            awaited = {call, watch.begun} if left is None else {call}
            await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        outcome = call.result()
        require_fitting(f"{task.kind} result", outcome.response)
        return outcome
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
