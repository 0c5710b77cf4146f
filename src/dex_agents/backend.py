"""The seam between clients and engines: what a backend does for any `FlowTable`, on one screen."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import Struct

from dex_agents.errors import (
    BackendNotFoundError,
    DexAgentsError,
    FlowIdError,
    MissingExtraError,
)
from dex_agents.table import FlowTable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = (
    "Backend",
    "Capability",
    "CompiledFlow",
    "FlowSummary",
    "StepHistoryEntry",
    "StreamMessage",
    "backend_names",
    "open_backend",
    "require_flow_id",
)

ENTRY_POINTS = "dex_agents.backends"
"""The entry-point group through which a distribution offers a backend."""


class Capability(StrEnum):
    """What a backend can do beyond running tables."""

    DURABLE = "durable"  # sessions survive the end of every process
    MULTI_PROCESS = "multi_process"  # several workers and clients share one store
    VIRTUAL_TIME = "virtual_time"  # tests can move the clock


class FlowSummary(Struct, frozen=True):
    """What there is to say about a flow at a glance. Times are seconds since 1970.

    Attributes:
        failure: Why it failed, or the reason that it was stopped for.
        waits_for_worker: Whether it needs a worker now, and no living one has taken
            it up. False where the engine does not tell.
    """

    flow_id: str
    flow_type: str
    status: str
    started_at: float
    closed_at: float | None = None
    failure: str | None = None
    waits_for_worker: bool = False


class StepHistoryEntry(Struct, frozen=True):
    """One line of a flow's history. Times are seconds since 1970.

    Attributes:
        event_type: For example ``"step_execute_completed"``.
        step_type: The Step, or the RPC.
        step_execution_id: The execution, where there is one.
        final_attempt: The attempt that ended so.
        at: When it was committed.
        scheduled_at: When the attempt became runnable.
        begun_at: When the attempt began.
        origin: What scheduled the execution.
        error: Why it failed.
        error_type: The error's qualified class name.
        worker: Which worker the attempt was handed to; empty where the engine does not tell.
    """

    event_type: str
    step_type: str
    step_execution_id: str
    final_attempt: int
    at: float = 0.0
    scheduled_at: float = 0.0
    begun_at: float = 0.0
    origin: str = ""
    error: str | None = None
    error_type: str | None = None
    worker: str = ""


class StreamMessage(Struct, frozen=True):
    """One message of a Stream, and the position from which to read on."""

    position: str
    value: Any


class Backend(Protocol):
    """Whatever runs tables. A backend must keep every rule of ``docs/semantics.md``.

    Everything a call changed is durable, as far as the backend is, when the call
    returns. Errors are those of `dex_agents.errors`: a driver's own are translated.
    """

    name: str
    capabilities: frozenset[Capability]

    async def __aenter__(self) -> Self:
        """Open the backend; raise a `StoreError` that says why it cannot be."""
        ...

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the backend; running workers must have ended."""
        ...

    def worker(
        self, tables: Iterable[FlowTable], **options: Any
    ) -> AbstractAsyncContextManager[Any]:
        """Return a worker that serves these flows while the block runs."""
        ...

    async def start_flow(self, table: FlowTable, flow_id: str, start_input: Any) -> None:
        """Start a flow; raise `FlowIdError`, or `FlowAlreadyStartedError` when the ID is taken."""
        ...

    async def invoke_rpc(self, table: FlowTable, flow_id: str, rpc: str, rpc_input: Any) -> Any:
        """Call an RPC; raise `FlowNotFoundError`, `FlowNotActiveError`, `RpcLockConflictError`."""
        ...

    async def stop_flow(self, flow_id: str, reason: str) -> None:
        """Stop a flow for good; it runs nothing more and stays readable."""
        ...

    async def describe_flow(self, flow_id: str) -> FlowSummary:
        """Return a flow's summary; raise `FlowNotFoundError`."""
        ...

    async def list_flows(self) -> Sequence[FlowSummary]:
        """Return every flow, oldest first."""
        ...

    async def read_history(self, flow_id: str) -> Sequence[StepHistoryEntry]:
        """Return a flow's history, oldest first."""
        ...

    def read_stream(
        self, table: FlowTable, flow_id: str, stream: str, position: str | None, *, follow: bool
    ) -> AsyncGenerator[StreamMessage, None]:
        """Yield a Stream's messages behind a position; follow until the flow closes, if asked."""
        ...


class CompiledFlow(Protocol):
    """A table that was compiled for an engine, and reaches it through the engine's own client."""

    table: FlowTable

    def backend_for(self, client: Any) -> Backend:
        """Return a backend for this flow over the engine's client."""
        ...


def require_flow_id(flow_id: str) -> None:
    """Raise `FlowIdError` unless every backend can take this flow ID.

    Dex reserves three characters; an ID that passes in memory must pass there too.
    """
    is_printable = all(each.isprintable() or each == " " for each in flow_id)
    if not flow_id.strip() or not is_printable or any(each in flow_id for each in "/$:"):
        raise FlowIdError(flow_id)


def backend_names() -> tuple[str, ...]:
    """Return the names of the installed backends; imports none of them."""
    return tuple(sorted(entry.name for entry in _offers()))


def open_backend(url: str) -> Backend:
    """Return the backend that a URL names, not yet opened.

    Args:
        url: ``"memory:"``, ``"sqlite:///relative.db"``, ``"sqlite:////absolute.db"``,
            or the scheme of a backend from another distribution.

    Raises:
        BackendNotFoundError: No installed distribution offers the scheme.
        MissingExtraError: The backend needs an extra that is not installed.
    """
    scheme = url.partition(":")[0]
    for entry in _offers():
        if entry.name == scheme:
            try:
                factory = entry.load()
            except DexAgentsError:
                raise  # it says better what is missing
            except ImportError as error:
                raise MissingExtraError(f"The backend {scheme!r}", scheme) from error
            return factory.from_url(url)  # type: ignore[no-any-return]
    raise BackendNotFoundError(scheme, backend_names())


def _offers() -> EntryPoints:
    """Return the entry points; what reads them takes a while to import, and few need it."""
    return importlib.import_module("importlib.metadata").entry_points(group=ENTRY_POINTS)  # type: ignore[no-any-return]
