"""The SDK's errors as ours, and the one that only Dex has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dex
import grpc

from dex_agents.errors import (
    DexAgentsError,
    EncodingError,
    FlowAlreadyStartedError,
    FlowNotFoundError,
    RpcLockConflictError,
    StoreUnavailableError,
)

__all__ = ("WorkerCallError", "translated")

_OUT_OF_REACH = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class WorkerCallError(DexAgentsError):
    """An RPC could not be served: its handler failed, or no worker took it."""

    def __init__(self, rpc: str, flow_id: str, error_type: str, detail: str) -> None:
        why = (f"{error_type}: {detail}" if error_type else detail).rstrip(".")
        super().__init__(
            f"{rpc} of session {flow_id!r} failed on its worker: {why}. "
            "On Dex every call needs a running worker of the session's flow type."
        )
        self.error_type = error_type


@contextmanager
def translated(address: str, flow_id: str, call: str) -> Iterator[None]:
    """Raise the SDK's errors inside the block as ours.

    `dex.FlowNotActiveOrNotFoundError` is left as it is: only another call tells which.
    """
    try:
        yield
    except dex.FlowAlreadyStartedError as error:
        raise FlowAlreadyStartedError(flow_id) from error
    except dex.FlowNotFoundError as error:
        raise FlowNotFoundError(flow_id) from error
    except dex.RpcLockConflictError as error:
        raise RpcLockConflictError(call, error.detail) from error
    except dex.WorkerInvocationError as error:
        detail = error.worker_error_detail or error.detail
        raise WorkerCallError(call, flow_id, error.worker_error_type, detail) from error
    except dex.RequestTimeoutError as error:
        raise WorkerCallError(call, flow_id, "", "it took too long") from error
    except (dex.FlowNotActiveOrNotFoundError, dex.FlowClosingError, dex.LongPollTimeoutError):
        raise
    except grpc.RpcError as error:
        raise StoreUnavailableError(f"at {address}", f"{call}: {error.details()}") from error
    except dex.DexServiceError as error:
        ours = _by_code(address, call, error)
        if ours is None:
            raise
        raise ours from error


def _by_code(address: str, call: str, error: dex.DexServiceError) -> Exception | None:
    """Return an error that the SDK has no class for as ours, or None."""
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return EncodingError(f"The message of {call}", error.detail)
    if error.code in _OUT_OF_REACH:
        return StoreUnavailableError(f"at {address}", error.detail)
    return None
