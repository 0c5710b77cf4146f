"""One call of one worker method, however the worker is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

from dex.dexpb import dex_pb2 as pb
from msgspec import Struct

__all__ = (
    "MESSAGE_LIMIT",
    "Dispatcher",
    "Frame",
    "Kind",
    "Outcome",
    "WorkerFailed",
    "WorkerTask",
    "require_fitting",
)

MESSAGE_LIMIT = 4 * 1024 * 1024 - 4096
"""What a peer with gRPC's default limit takes, less what a task's frame adds."""

Kind: TypeAlias = Literal["wait_for", "execute", "rpc"]

Frame: TypeAlias = pb.StepMethodHeartbeat | pb.StepStreamWrite
"""What a Step method may send before its result."""


class WorkerTask(Struct, frozen=True):
    """What a worker is to do.

    Attributes:
        kind: Which method.
        request: Its request; the same message in both modes.
        flow_id: For the log.
        flow_type: Names the queue in pull mode.
        address: Where a listening worker is.
        sticky: The pull worker that served the flow last.
        on_begin: Told when a worker has the task; timeouts count from there.
        on_frame: Told of every frame before the result.
    """

    kind: Kind
    request: Any
    flow_id: str
    flow_type: str
    address: str
    sticky: str
    on_begin: Callable[[], None]
    on_frame: Callable[[Frame], None]


class Outcome(Struct, frozen=True):
    """What came of a task: the method's response, and who gave it."""

    response: Any
    served_by: str = ""
    routing: pb.PullRouting | None = None


class WorkerFailed(Exception):  # noqa: N818 - the end of an attempt, not an error of ours
    """A worker's method failed, or no worker could be reached."""

    def __init__(
        self,
        detail: str,
        error_type: str,
        *,
        stack_trace: str = "",
        retry_after: float | None = None,
        grpc_status: int = 0,
        reason: Any = pb.DISPATCH_TASK_ERROR_REASON_UNSPECIFIED,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.error_type = error_type
        self.stack_trace = stack_trace
        self.retry_after = retry_after
        self.grpc_status = grpc_status
        self.reason = reason

    @classmethod
    def from_worker(cls, error: pb.WorkerErrorResponse) -> WorkerFailed:
        """Return what a worker reported."""
        return cls(
            error.detail,
            error.error_type,
            stack_trace=error.stack_trace,
            retry_after=error.retry_after_seconds or None,
            grpc_status=error.grpc_status,
        )


class Dispatcher(Protocol):
    """Brings tasks to workers.

    ``invoke`` raises `WorkerFailed` for everything that goes wrong. Its own
    cancellation cancels the worker's handler.
    """

    async def invoke(self, task: WorkerTask) -> Outcome:
        """Return the outcome of a task."""
        ...


def require_fitting(what: str, message: Any) -> None:
    """Raise `WorkerFailed` for a message that would break a peer's stream.

    A pull worker takes its queues out of service for a minute when a task
    exceeds its limit, so such a task must never be sent.
    """
    size = message.ByteSize()
    if size > MESSAGE_LIMIT:
        raise WorkerFailed(
            f"The {what} has {size} bytes; the limit is {MESSAGE_LIMIT}.",
            "dex_agents_dex.OversizedMessage",
        )
