"""Errors as the Dex wire carries them: a gRPC status whose details repeat its code and message."""

from __future__ import annotations

from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import any_pb2
from google.rpc import status_pb2

from dex_agents_dex.emulator.dispatch import WorkerFailed

__all__ = (
    "ServiceError",
    "already_started",
    "closing",
    "invalid",
    "lock_conflict",
    "long_poll_timeout",
    "message_not_found",
    "not_exists",
    "oversized",
    "request_timeout",
    "unsupported",
    "worker_error",
)


class ServiceError(Exception):
    """A refusal that the caller gets as a status with details.

    Args:
        code: The gRPC code.
        details: What the SDK chooses its exception by.
        message: The status message; the SDK shows it when the details hold none.
    """

    def __init__(
        self, code: grpc.StatusCode, details: pb.ServiceErrorResponse, message: str = ""
    ) -> None:
        super().__init__(message or details.detail)
        self.code = code
        self.details = details

    def status(self) -> status_pb2.Status:
        """Return the status whose code and message equal those of the call."""
        packed = any_pb2.Any()
        packed.Pack(self.details)
        return status_pb2.Status(code=self.code.value[0], message=str(self), details=[packed])


def _error(code: grpc.StatusCode, sub_status: Any, detail: str) -> ServiceError:
    return ServiceError(code, pb.ServiceErrorResponse(detail=detail, sub_status=sub_status))


def already_started(flow_id: str) -> ServiceError:
    """Return the refusal of a flow ID that may not be used again."""
    return _error(
        grpc.StatusCode.ALREADY_EXISTS,
        pb.ERROR_SUB_STATUS_FLOW_ALREADY_STARTED,
        f"Flow {flow_id!r} has already been started.",
    )


def not_exists(flow_id: str, why: str = "does not exist") -> ServiceError:
    """Return the refusal of a flow that is not there, or not running where it must."""
    return _error(
        grpc.StatusCode.NOT_FOUND,
        pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS,
        f"Flow {flow_id!r} {why}.",
    )


def closing(flow_id: str) -> ServiceError:
    """Return the refusal of a request that was under way while its flow closed."""
    return _error(
        grpc.StatusCode.FAILED_PRECONDITION,
        pb.ERROR_SUB_STATUS_FLOW_CLOSING,
        f"Flow {flow_id!r} closed during the request.",
    )


def invalid(detail: str) -> ServiceError:
    """Return the refusal of a request that makes no sense."""
    return _error(grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_SUB_STATUS_UNCATEGORIZED, detail)


def unsupported(what: str) -> ServiceError:
    """Return the refusal of what the emulator leaves out."""
    detail = f"The Dex emulator leaves out {what}."
    return _error(grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_SUB_STATUS_UNCATEGORIZED, detail)


def oversized(what: str, size: int, limit: int) -> ServiceError:
    """Return the refusal of a message that gRPC peers would not take."""
    detail = f"The {what} has {size} bytes; the limit is {limit}."
    return _error(grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_SUB_STATUS_UNCATEGORIZED, detail)


def long_poll_timeout(what: str) -> ServiceError:
    """Return the end of a wait that may simply be repeated."""
    return _error(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        pb.ERROR_SUB_STATUS_LONG_POLL_TIME_OUT,
        f"Nothing came while waiting for {what}.",
    )


def request_timeout(what: str) -> ServiceError:
    """Return the end of a request whose own time is over."""
    return _error(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        pb.ERROR_SUB_STATUS_REQUEST_TIMEOUT,
        f"The request timed out: {what}.",
    )


def message_not_found(channel: str, message_id: str) -> ServiceError:
    """Return the refusal to delete a message that is not queued."""
    return _error(
        grpc.StatusCode.NOT_FOUND,
        pb.ERROR_SUB_STATUS_CHANNEL_MESSAGE_NOT_FOUND,
        f"Channel {channel!r} has no message {message_id!r}.",
    )


def lock_conflict(rpc: str, name: str) -> ServiceError:
    """Return the refusal of an RPC whose lock somebody else holds."""
    return _error(
        grpc.StatusCode.ABORTED,
        pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
        f"RPC {rpc!r} cannot lock {name!r}: it is held.",
    )


def worker_error(failure: WorkerFailed) -> ServiceError:
    """Return how a caller learns that a worker's handler failed, or that none was reached."""
    details = pb.ServiceErrorResponse(
        sub_status=pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
        original_worker_error_detail=failure.detail,
        original_worker_error_type=failure.error_type,
        original_worker_error_status=failure.grpc_status,
        original_worker_error_stack_trace=failure.stack_trace,
        dispatch_task_error_reason=failure.reason,
    )
    return ServiceError(grpc.StatusCode.FAILED_PRECONDITION, details, failure.detail)
