"""What clients ask of one compiled flow, through the SDK's client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Never, Self

import dex
import grpc

from dex_agents.backend import (
    Capability,
    FlowSummary,
    StepHistoryEntry,
    StreamMessage,
    require_flow_id,
)
from dex_agents.errors import FlowNotActiveError, FlowNotFoundError, StreamPositionError
from dex_agents.table import FlowTable
from dex_agents_dex.errors import translated
from dex_agents_dex.history import read_flow_history
from dex_agents_dex.wire import from_wire, hint_of, to_wire

if TYPE_CHECKING:
    from dex_agents_dex.compiler import CompiledFlow

__all__ = ("CAPABILITIES", "FlowCalls", "ServerCalls")

CAPABILITIES = frozenset({Capability.DURABLE, Capability.MULTI_PROCESS})

_PAGE = 200
_LOOK_SECONDS = 2
"""How long one read waits for a Stream message before the flow itself is looked at."""
_STATUSES = {
    dex.FlowStatus.CANCELED: "stopped",
    dex.FlowStatus.TERMINATED: "stopped",
    dex.FlowStatus.SERVER_SIDE_TIMEOUT_INTERNAL_ONLY: "failed",
    dex.FlowStatus.CONTINUED_AS_NEW: "running",
}


class ServerCalls:
    """What can be asked of any flow of a server, whatever its table.

    Args:
        client: An open client.
    """

    def __init__(self, client: dex.AsyncClient) -> None:
        self._client = client
        self._address = client.options.server_address

    async def stop_flow(self, flow_id: str, reason: str) -> None:
        """Stop a flow for good."""
        _require_known(flow_id)
        try:
            with translated(self._address, flow_id, "stop_flow"):
                await self._client.stop_flow(flow_id, dex.StopFlowOptions(reason=reason or None))
        except (dex.FlowNotActiveOrNotFoundError, dex.FlowClosingError):
            await self._raise_inactive(flow_id)

    async def _raise_inactive(self, flow_id: str) -> Never:
        """Say whether a flow that cannot be called is closed or was never there."""
        summary = await self.describe_flow(flow_id)
        status = "closing" if summary.status == "running" else summary.status
        raise FlowNotActiveError(flow_id, status)

    async def describe_flow(self, flow_id: str) -> FlowSummary:
        """Return a flow's summary."""
        _require_known(flow_id)
        with translated(self._address, flow_id, "describe_flow"):
            info = await self._client.describe_flow(flow_id)
            failure = None
            if info.status is dex.FlowStatus.FAILED:
                failure = (await self._client.wait_for_flow(flow_id)).error_message or ""
        return _summary(info, failure)

    async def list_flows(self) -> Sequence[FlowSummary]:
        """Return every flow of the server, oldest first."""
        found: list[FlowSummary] = []
        token = ""
        while True:
            with translated(self._address, "", "search_flows"):
                page = await self._client.search_flows("", _PAGE, token)
            found += [_summary(each) for each in page.flows]
            token = page.next_page_token
            if not token:
                return sorted(found, key=lambda each: each.started_at)

    async def read_history(self, flow_id: str) -> Sequence[StepHistoryEntry]:
        """Return a flow's history, oldest first."""
        _require_known(flow_id)
        with translated(self._address, flow_id, "read_history"):
            info = await self._client.describe_flow(flow_id)
            # The SDK's client has no such call, but its stub has.
            service = self._client._service  # noqa: SLF001
            return await read_flow_history(service, flow_id, info.run_id)


class FlowCalls(ServerCalls):
    """A backend for one flow, over an `AsyncClient` that somebody else opens and closes.

    Workers are the application's: it runs an `AsyncWorker` on the same Registry.

    Args:
        client: A client with whose Registry the flow is registered.
        flow: The compiled flow.

    Attributes:
        worker_target: Where workers of a new flow are, if the client's options do not say.
    """

    name = "dex"
    capabilities = CAPABILITIES

    def __init__(self, client: dex.AsyncClient, flow: CompiledFlow) -> None:
        super().__init__(client)
        self._flow = flow
        self.worker_target: dex.WorkerTarget | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...

    @asynccontextmanager
    async def worker(
        self,
        tables: Iterable[FlowTable],  # noqa: ARG002 - the protocol's
        **options: Any,  # noqa: ARG002 - the protocol's
    ) -> AsyncIterator[Never]:
        """Raise: the application runs a `dex.AsyncWorker` of its own."""
        raise NotImplementedError(
            "Serve the flow with a dex.AsyncWorker on its Registry, or open a DexBackend."
        )
        yield

    async def start_flow(self, table: FlowTable, flow_id: str, start_input: Any) -> None:
        """Start a flow."""
        require_flow_id(flow_id)
        row = table.start_step
        sent = to_wire(start_input, row.input, hint_of(row.input), f"input of {row.name}")
        options = dex.StartFlowOptions(
            id_reuse_policy=dex.IdReusePolicy.DISALLOW,
            config_override=dex.FlowConfig(worker_target=self.worker_target),
        )
        with translated(self._address, flow_id, "start_flow"):
            await self._client.start_flow(self._flow, flow_id, sent.value, options)

    async def invoke_rpc(self, table: FlowTable, flow_id: str, rpc: str, rpc_input: Any) -> Any:
        """Call an RPC, which a worker must be there to serve."""
        row = table.rpc(rpc)
        sent = to_wire(rpc_input, row.input, hint_of(row.input), f"input of {rpc}")
        arguments = () if row.input is NoneType else (sent.value,)
        _require_known(flow_id)
        try:
            with translated(self._address, flow_id, rpc):
                output = await self._client.invoke_rpc(
                    getattr(self._flow, rpc), flow_id, *arguments
                )
        except (dex.FlowNotActiveOrNotFoundError, dex.FlowClosingError):
            await self._raise_inactive(flow_id)
        return from_wire(output, row.output, f"output of {rpc}")

    async def read_stream(
        self, table: FlowTable, flow_id: str, stream: str, position: str | None, *, follow: bool
    ) -> AsyncGenerator[StreamMessage, None]:
        """Yield a Stream's messages behind a position; follow until the flow closes, if asked."""
        tp = table.rows[stream].type
        _require_known(flow_id)
        is_closed = (await self.describe_flow(flow_id)).status != "running"
        after = position or ""
        for message in await self._messages(flow_id, stream, after):
            after = message.resume_token
            yield StreamMessage(after, from_wire(message.value, tp, stream))
        while follow:
            found = await self._next(flow_id, stream, after)
            if found is not None:
                after = found.resume_token
                yield StreamMessage(after, from_wire(found.value, tp, stream))
            elif is_closed:
                return
            else:
                is_closed = (await self.describe_flow(flow_id)).status != "running"

    async def _messages(
        self, flow_id: str, stream: str, after: str
    ) -> list[dex.StreamMessage[Any]]:
        """Return what is kept behind a token, oldest first; the server lists newest first."""
        definition = self._flow.stream(stream)
        found: list[dex.StreamMessage[Any]] = []
        token = ""
        while True:
            with translated(self._address, flow_id, "list_stream_messages"):
                page = await self._client.list_stream_messages(flow_id, definition, _PAGE, token)
            for message in page.messages:
                if message.resume_token == after:
                    return found[::-1]
                found.append(message)
            token = page.next_page_token
            if not token:
                break
        if after:
            await self._next(flow_id, stream, after)  # it may have been trimmed, or be nonsense
        return found[::-1]

    async def _next(self, flow_id: str, stream: str, after: str) -> dex.StreamMessage[Any] | None:
        """Return the message behind a token, or None when none comes for a while."""
        definition, patience = self._flow.stream(stream), timedelta(seconds=_LOOK_SECONDS)
        try:
            with translated(self._address, flow_id, "read_stream"):
                return await self._client.read_stream(flow_id, definition, after, patience)
        except dex.LongPollTimeoutError:
            return None
        except dex.DexServiceError as error:
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise StreamPositionError(after) from error
            raise


def _require_known(flow_id: str) -> None:
    """Raise `FlowNotFoundError` for an ID that no flow can have."""
    if not flow_id.strip():
        raise FlowNotFoundError(flow_id)


def _summary(info: dex.FlowInfo | dex.SearchFlowEntry, failure: str | None = None) -> FlowSummary:
    """Return the SDK's summary as ours."""
    closed_at = getattr(info, "closed_at", None)
    return FlowSummary(
        info.flow_id,
        info.flow_type,
        _STATUSES.get(info.status, info.status.value),
        info.started_at.timestamp(),
        closed_at.timestamp() if closed_at is not None else None,
        failure,
    )
