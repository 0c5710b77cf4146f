"""Dispatch to pull workers: tasks wait in line for an idle stream of a queue.

A task goes to the worker that served its flow last, if that has a stream to
spare soon, else to any worker of the flow type. A task that did not begin where
it was put is put elsewhere, and nobody counts that as an attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents_dex.emulator.dispatch import Kind, Outcome, WorkerFailed, WorkerTask
from dex_agents_dex.emulator.pull_stream import NotBegun, PullStream

__all__ = ("PullDispatcher",)

_log = logging.getLogger(__name__)

_STICKY_SECONDS = 0.1
_FULL_SECONDS = 0.1
_SETTLING_SECONDS = 0.005
"""A worker counts a task as done a moment after it has sent the last frame."""


class _Ticket:
    """A task's place in the line."""

    def __init__(self, task: WorkerTask, excluded: set[str]) -> None:
        self.task = task
        self.excluded = excluded
        self.sticky_until = time.monotonic() + _STICKY_SECONDS if task.sticky else 0.0
        self.stream: asyncio.Future[PullStream] = asyncio.get_running_loop().create_future()


class PullDispatcher:
    """The queues of every pull worker.

    Args:
        dispatch_wait: How many seconds a task waits for a worker.
    """

    def __init__(self, dispatch_wait: float = 10.0) -> None:
        self._dispatch_wait = dispatch_wait
        self._streams: dict[str, dict[PullStream, None]] = {}
        self._line: list[_Ticket] = []
        self._full_until: dict[tuple[str, bool], float] = {}
        self._match_alarm: asyncio.TimerHandle | None = None

    async def serve(self, context: Any) -> None:
        """Serve one PollWorkerTask call."""
        await PullStream(self, context).serve()

    async def invoke(self, task: WorkerTask) -> Outcome:
        """Bring a task to a worker that begins it, and return what it made of it."""
        until = time.monotonic() + self._dispatch_wait
        excluded: set[str] = set()
        while True:
            stream = await self._stream_for(task, excluded, until)
            response = await stream.run(task)
            if not isinstance(response, NotBegun):
                return Outcome(response, stream.worker, _routing(task, stream))
            _log.info(
                "reassigned %s task of flow %s from worker %s: %s",
                task.kind,
                task.flow_id,
                stream.worker,
                response.value,
            )
            if response is NotBegun.UNKNOWN_NAME:
                excluded.add(stream.worker)
                self._require_another(task, excluded)

    async def _stream_for(self, task: WorkerTask, excluded: set[str], until: float) -> PullStream:
        ticket = _Ticket(task, excluded)
        self._line.append(ticket)
        self._match()
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.001)):
                return await ticket.stream
        except TimeoutError:
            if not ticket.stream.cancelled():
                return ticket.stream.result()  # it came just in time
            raise WorkerFailed(
                f"No pull worker took a {task.kind} task of flow type {task.flow_type!r} "
                f"within {self._dispatch_wait:g} s.",
                "NO_WORKER_AVAILABLE",
                reason=pb.DISPATCH_TASK_ERROR_REASON_NO_WORKER_AVAILABLE,
            ) from None
        except asyncio.CancelledError:
            if ticket.stream.done() and not ticket.stream.cancelled():
                self._give_back(ticket.stream.result())
            raise
        finally:
            if ticket in self._line:
                self._line.remove(ticket)

    def _require_another(self, task: WorkerTask, excluded: set[str]) -> None:
        workers = {each.worker for each in self._streams.get(task.flow_type, {})}
        if workers <= excluded:
            raise WorkerFailed(
                f"No worker of flow type {task.flow_type!r} knows {_name(task)!r}.",
                "UNKNOWN_NAME",
                reason=pb.DISPATCH_TASK_ERROR_REASON_UNKNOWN_NAME,
            )

    # What streams report

    def add(self, stream: PullStream) -> None:
        """Take notice of a stream that has registered."""
        self._streams.setdefault(stream.queue, {})[stream] = None
        self._match()

    def refused(self, stream: PullStream, kind: Kind) -> None:
        """Take notice that a worker is full, and leave it alone for a while."""
        self._full_until[stream.worker, kind == "rpc"] = time.monotonic() + _FULL_SECONDS
        self._match()

    def freed(self, stream: PullStream) -> None:
        """Take notice that a task has ended and its stream can have another."""
        now = time.monotonic()
        for is_rpc in (False, True):
            full_until = self._full_until.get((stream.worker, is_rpc), 0.0)
            if full_until > now + _SETTLING_SECONDS:
                self._full_until[stream.worker, is_rpc] = now + _SETTLING_SECONDS
        self._match()

    def _give_back(self, stream: PullStream) -> None:
        stream.is_idle = stream in self._streams.get(stream.queue, {})
        self._match()

    def remove(self, stream: PullStream) -> None:
        """Forget a stream that has ended."""
        self._streams.get(stream.queue, {}).pop(stream, None)

    # Matching

    def _match(self) -> None:
        for ticket in list(self._line):
            stream = None if ticket.stream.done() else self._find(ticket)
            if stream is not None:
                stream.is_idle = False
                self._line.remove(ticket)
                ticket.stream.set_result(stream)
        if self._line and self._match_alarm is None:
            loop = asyncio.get_running_loop()
            self._match_alarm = loop.call_later(_SETTLING_SECONDS, self._match_again)

    def _match_again(self) -> None:
        self._match_alarm = None
        self._match()

    def _find(self, ticket: _Ticket) -> PullStream | None:
        now = time.monotonic()
        task = ticket.task
        queues = [task.sticky, task.flow_type] if task.sticky else [task.flow_type]
        if now < ticket.sticky_until and self._streams.get(task.sticky):
            queues = [task.sticky]
        for queue in queues:
            for stream in self._streams.get(queue, {}):
                if stream.is_idle and self._is_fit(stream, task.kind, ticket.excluded, now):
                    return stream
        return None

    def _is_fit(self, stream: PullStream, kind: Kind, excluded: set[str], now: float) -> bool:
        full_until = self._full_until.get((stream.worker, kind == "rpc"), 0.0)
        return stream.worker not in excluded and full_until <= now

    def close(self) -> None:
        """Stop matching."""
        if self._match_alarm is not None:
            self._match_alarm.cancel()


def _name(task: WorkerTask) -> str:
    return str(task.request.rpc_name if task.kind == "rpc" else task.request.step_type)


def _routing(task: WorkerTask, stream: PullStream) -> pb.PullRouting:
    is_sticky = stream.queue == task.sticky
    return pb.PullRouting(
        sticky_app_worker_id=task.sticky,
        served_by_app_worker_id=stream.worker,
        source=pb.PULL_ROUTING_SOURCE_STICKY_QUEUE
        if is_sticky
        else pb.PULL_ROUTING_SOURCE_FLOW_TYPE_QUEUE,
    )
