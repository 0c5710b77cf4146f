"""One stream that a pull worker has open: it holds at most one task at a time."""

from __future__ import annotations

import asyncio
import logging
import uuid
from enum import Enum
from typing import Any, Protocol

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_agents_dex.emulator.dispatch import Kind, WorkerFailed, WorkerTask

__all__ = ("Hub", "NotBegun", "PullStream")

_log = logging.getLogger(__name__)

_CRASH_SECONDS = 0.05
"""A stream whose peer has died is cancelled within this time; one that was half-closed is not."""


class NotBegun(Enum):
    """Why a task that was given to a stream did not begin there."""

    NO_CAPACITY = "no capacity"
    UNKNOWN_NAME = "unknown name"
    RETIRED = "the stream was retired"


_REASONS = {
    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP: NotBegun.UNKNOWN_NAME,
    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC: NotBegun.UNKNOWN_NAME,
}


class Hub(Protocol):
    """What streams report to."""

    def add(self, stream: PullStream) -> None:
        """Take notice of a stream that has registered."""
        ...

    def freed(self, stream: PullStream) -> None:
        """Take notice that a task has ended and its stream can have another."""
        ...

    def refused(self, stream: PullStream, kind: Kind) -> None:
        """Take notice that a worker is full, and that the stream can have another task later."""
        ...

    def remove(self, stream: PullStream) -> None:
        """Forget a stream that has ended."""
        ...


class PullStream:
    """The server's end of one PollWorkerTask call.

    Args:
        hub: Told of its life.
        context: The call.
    """

    def __init__(self, hub: Hub, context: Any) -> None:
        self.queue = ""
        self.worker = ""
        self.is_idle = False
        self._is_open = False
        self._hub = hub
        self._context = context
        self._writing = asyncio.Lock()
        self._task: WorkerTask | None = None
        self._task_id = ""
        self._has_begun = False
        self._end: asyncio.Future[Any] | None = None

    async def serve(self) -> None:
        """Serve the call until the worker ends it."""
        first = await self._context.read()
        if first is grpc.aio.EOF:
            return
        if first.WhichOneof("frame") != "register" or not first.register.queue:
            await self._context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "The first frame must register a queue."
            )
        self.queue, self.worker = first.register.queue, first.register.app_worker_id
        registered = pb.PollWorkerTaskRegistered(supports_unknown_name_rejection=True)
        await self._write(pb.PollWorkerTaskResponse(registered=registered))
        self._is_open = self.is_idle = True
        self._hub.add(self)
        try:
            await self._read()
            self._leave()
            if self._end is not None and not self._has_begun:
                await asyncio.sleep(_CRASH_SECONDS)
                self._finish(NotBegun.RETIRED)
        finally:
            self._leave()
            self._fail(
                WorkerFailed(
                    f"Pull worker {self.worker} went away during the call.",
                    "WORKER_DISCONNECTED",
                    reason=pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED,
                )
            )

    async def run(self, task: WorkerTask) -> Any:
        """Give a task to the worker; return its response, or why it did not begin.

        Raises:
            WorkerFailed: The worker reported an error, or went away.
        """
        self.is_idle = False
        if not self._is_open:
            return NotBegun.RETIRED
        self._task, self._task_id, self._has_begun = task, str(uuid.uuid4()), False
        self._end = asyncio.get_running_loop().create_future()
        end, task_id = self._end, self._task_id
        frame = pb.PollWorkerTask(task_id=task_id, **{task.kind: task.request})
        try:
            await self._write(pb.PollWorkerTaskResponse(task=frame))
            task.on_begin()
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            if not end.done():
                end.cancel()  # so that nothing of the task is taken any more
                # The stream is free again only when the worker has sent its last frame.
                cancel = pb.PollWorkerTaskCancelTask(task_id=task_id)
                await self._write(pb.PollWorkerTaskResponse(cancel_task=cancel))
            raise

    async def _write(self, response: pb.PollWorkerTaskResponse) -> None:
        async with self._writing:
            try:
                await self._context.write(response)
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError):
                # The reader learns of the end of the stream, and says what it means.
                _log.debug("stream of %s ended before a frame was written", self.worker)

    async def _read(self) -> None:
        while True:
            request = await self._context.read()
            if request is grpc.aio.EOF:
                return
            kind = request.WhichOneof("frame")
            if kind == "task_frame" and request.task_frame.task_id == self._task_id:
                self._take(request.task_frame)
            elif kind == "reject" and request.reject.task_id == self._task_id:
                self._refuse(_REASONS.get(request.reject.reason, NotBegun.NO_CAPACITY))

    def _take(self, frame: pb.PollWorkerTaskFrame) -> None:
        self._has_begun = True
        kind = frame.WhichOneof("output")
        if kind == "worker_error":
            self._fail(WorkerFailed.from_worker(frame.worker_error))
        elif kind == "rpc":
            self._finish(frame.rpc)
        elif kind is not None:
            output = getattr(frame, kind)
            part = output.WhichOneof("output")
            if part != "result":
                self._pass_on(output, part)
                return
            self._finish(output.result)
        self._park()

    def _pass_on(self, output: Any, part: str | None) -> None:
        is_wanted = self._end is not None and not self._end.done()
        if part is not None and is_wanted and self._task is not None:
            self._task.on_frame(getattr(output, part))

    def _refuse(self, reason: NotBegun) -> None:
        task = self._task
        self._finish(reason)
        self._clear()
        if reason is NotBegun.NO_CAPACITY and task is not None:
            self._hub.refused(self, task.kind)
        else:
            self._hub.freed(self)

    def _finish(self, value: Any) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(value)

    def _fail(self, failure: WorkerFailed) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(failure)

    def _park(self) -> None:
        self._clear()
        self._hub.freed(self)

    def _clear(self) -> None:
        self._task, self._task_id, self._end = None, "", None
        self.is_idle = True

    def _leave(self) -> None:
        self._is_open = self.is_idle = False
        self._hub.remove(self)
