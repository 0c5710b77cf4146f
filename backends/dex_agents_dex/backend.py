"""Sessions on a Dex server: every table is compiled, served and called through the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import dex
import grpc
from google.protobuf import empty_pb2

from dex_agents.backend import FlowSummary, StepHistoryEntry, StreamMessage
from dex_agents.errors import StoreUnavailableError
from dex_agents.executor import Clock
from dex_agents.table import FlowTable
from dex_agents.telemetry import TelemetryOptions
from dex_agents_dex.calls import CAPABILITIES, FlowCalls, ServerCalls
from dex_agents_dex.compiler import CompiledFlow
from dex_agents_dex.sdk import IncompatibleDexError

__all__ = ("DexBackend",)

_PORT = 8801
_PROTOCOLS = (1, 3)
"""The versions of the wire protocol that the SDK speaks."""
_HANDSHAKE_SECONDS = 10.0
_READY_SECONDS = 30.0
_CLOSING_SECONDS = 30.0
_LOOK_SECONDS = 0.01


class DexBackend:
    """Runs tables on a Dex server.

    Args:
        server_address: ``host:port`` of its FlowService.
        worker_address: Where this process's workers listen, and where flows that are started
            here find theirs; None for workers that pull, which need no address.
        credential: The SDK's bearer credential, if the server wants one.
        telemetry: Where traces, metrics and logs go; None for the application's own providers.
        clock: What handlers take for the time; None for the system's.
    """

    name = "dex"
    capabilities = CAPABILITIES

    def __init__(
        self,
        server_address: str = "localhost:8801",
        *,
        worker_address: str | None = None,
        credential: Any = None,
        telemetry: TelemetryOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.server_address = server_address
        self._worker_address = worker_address
        self._credential = credential
        self._flow_options: dict[str, Any] = {"telemetry": telemetry, "clock": clock}
        # Where workers of other processes are; those of this one are known by flow type.
        self._elsewhere = dex.WorkerTarget(
            address=worker_address or "", pull=worker_address is None
        )
        self._targets: dict[str, dex.WorkerTarget] = {}
        self._clients: dict[int, tuple[dex.AsyncClient, FlowCalls]] = {}
        self._server_client: dex.AsyncClient | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the backend of ``dex://HOST:PORT``, or ``dex://HOST:PORT?worker=HOST:PORT``."""
        parts = urlsplit(url)
        worker = parse_qs(parts.query).get("worker")
        address = parts.netloc or "localhost"
        if not address.rpartition(":")[2].isdigit():
            address += f":{_PORT}"
        return cls(address, worker_address=worker[0] if worker else None)

    async def __aenter__(self) -> Self:
        client = self._client(dex.Registry([]))
        try:
            await _shake_hands(client)
        except BaseException:
            await client.close()
            raise
        self._server_client = client
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        clients = [client for client, _ in self._clients.values()]
        if self._server_client is not None:
            clients.append(self._server_client)
        self._clients.clear()
        self._server_client = None
        for client in clients:
            await client.close()

    @asynccontextmanager
    async def worker(
        self,
        tables: Iterable[FlowTable],
        *,
        grace_seconds: float = 10.0,
        max_concurrent_steps: int = 256,
        lease_seconds: float | None = None,  # noqa: ARG002 - Dex has timeouts of its own
    ) -> AsyncIterator[dex.AsyncWorker]:
        """Serve these flows while the block runs.

        Args:
            tables: The flows.
            grace_seconds: How long running attempts may go on when the block ends.
            max_concurrent_steps: How many attempts and RPCs run at once, for workers that pull.
            lease_seconds: Not used: Dex knows by timeouts and connections that a worker is gone.
        """
        flows = [CompiledFlow(table, **self._flow_options) for table in tables]
        registry = dex.Registry(flows, allow_async_handlers=True)
        options = self._worker_options(grace_seconds, max_concurrent_steps)
        worker = dex.AsyncWorker(registry, NoBlobCache(), options)
        serving = asyncio.create_task(worker.start(), name="dex-agents Dex worker")
        try:
            await self._until_ready(worker, serving)
            self._targets |= dict.fromkeys(
                (flow.get_flow_type() for flow in flows), worker.worker_target
            )
            yield worker
        finally:
            stopping = asyncio.create_task(worker.stop(), name="dex-agents Dex worker's end")
            await asyncio.wait((stopping,), timeout=grace_seconds)
            for flow in flows:
                flow.abandon()
            await stopping
            await asyncio.wait((serving,))
        serving.result()

    def _worker_options(self, grace_seconds: float, slots: int) -> dex.WorkerOptions:
        if self._worker_address is not None:
            return dex.WorkerOptions(
                bind_address=self._worker_address,
                server_address=self.server_address,
                credential=self._credential,
            )
        pull = dex.PullWorkerOptions(
            max_concurrent_tasks=slots,
            idle_streams_per_queue=2,
            # The SDK also waits so long for a stream that it retires while it works.
            stop_drain_timeout=timedelta(seconds=grace_seconds + _CLOSING_SECONDS),
        )
        return dex.WorkerOptions(
            server_address=self.server_address, pull=pull, credential=self._credential
        )

    async def _until_ready(self, worker: dex.AsyncWorker, serving: asyncio.Task[None]) -> None:
        """Return once tasks can reach the worker; raise what ended it before."""
        if self._worker_address is None:
            ready = asyncio.create_task(worker.wait_pull_registered(_READY_SECONDS))
        else:
            ready = asyncio.create_task(_until_listening(worker))
        try:
            await asyncio.wait((ready, serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()  # if it is still waiting
            (trouble,) = await asyncio.gather(ready, return_exceptions=True)
        if serving.done():
            trouble = serving.exception() or trouble
        if trouble is not None:
            why = f"its worker could not begin: {trouble}"
            raise StoreUnavailableError(f"at {self.server_address}", why) from trouble

    # Flows

    async def start_flow(self, table: FlowTable, flow_id: str, start_input: Any) -> None:
        """Start a flow."""
        await self._calls(table).start_flow(table, flow_id, start_input)

    async def invoke_rpc(self, table: FlowTable, flow_id: str, rpc: str, rpc_input: Any) -> Any:
        """Call an RPC, which a worker must be there to serve."""
        return await self._calls(table).invoke_rpc(table, flow_id, rpc, rpc_input)

    def read_stream(
        self, table: FlowTable, flow_id: str, stream: str, position: str | None, *, follow: bool
    ) -> AsyncGenerator[StreamMessage, None]:
        """Yield a Stream's messages behind a position; follow until the flow closes, if asked."""
        return self._calls(table).read_stream(table, flow_id, stream, position, follow=follow)

    async def stop_flow(self, flow_id: str, reason: str) -> None:
        """Stop a flow for good."""
        await self._server.stop_flow(flow_id, reason)

    async def describe_flow(self, flow_id: str) -> FlowSummary:
        """Return a flow's summary."""
        return await self._server.describe_flow(flow_id)

    async def list_flows(self) -> Sequence[FlowSummary]:
        """Return every flow of the server, oldest first."""
        return await self._server.list_flows()

    async def read_history(self, flow_id: str) -> Sequence[StepHistoryEntry]:
        """Return a flow's history, oldest first."""
        return await self._server.read_history(flow_id)

    @property
    def _server(self) -> ServerCalls:
        if self._server_client is None:
            raise StoreUnavailableError(f"at {self.server_address}", "use 'async with' to open it")
        return ServerCalls(self._server_client)

    def _calls(self, table: FlowTable) -> FlowCalls:
        """Return a client of a table's compiled flow; it is compiled once."""
        _ = self._server
        found = self._clients.get(id(table))
        if found is None:
            flow = CompiledFlow(table, **self._flow_options)
            client = self._client(dex.Registry([flow], allow_async_handlers=True))
            found = self._clients[id(table)] = (client, FlowCalls(client, flow))
        calls = found[1]
        calls.worker_target = self._targets.get(table.flow_type, self._elsewhere)
        return calls

    def _client(self, registry: dex.Registry) -> dex.AsyncClient:
        options = dex.ClientOptions(server_address=self.server_address, credential=self._credential)
        return dex.AsyncClient(registry, NoBlobCache(), options)


class NoBlobCache:
    """Keeps nothing: a value that the server has put aside is fetched each time."""

    config = dex.BlobCacheConfig(".", 1)

    def get(self, blob_id: str) -> bytes | None:  # noqa: ARG002
        """Return None."""
        return None

    def put(self, blob_id: str, payload: bytes) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def delete(self, blob_id: str) -> None:
        """Do nothing."""

    def delete_all(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


async def _shake_hands(client: dex.AsyncClient) -> None:
    """Raise unless a server that the SDK can talk to is there."""
    address = client.options.server_address
    try:
        # The SDK's client has no such call, but its stub has, and sends the credential along.
        info = await client._service.GetServerInfo(  # noqa: SLF001
            empty_pb2.Empty(), timeout=_HANDSHAKE_SECONDS
        )
    except grpc.RpcError as error:
        refused = error.code() in (
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.PERMISSION_DENIED,
        )
        what = "the Dex server refuses this credential" if refused else "no Dex server answers"
        raise StoreUnavailableError(
            f"at {address}", f"{what} ({error.code().name}: {error.details()})"
        ) from error
    least, most = info.minimum_supported_protocol_version, info.current_protocol_version
    if not 1 <= least <= most or least > _PROTOCOLS[1] or most < _PROTOCOLS[0]:
        raise IncompatibleDexError(
            f"The protocol of the Dex server at {address}",
            f"{least} to {most}",
            f"one of {_PROTOCOLS[0]} to {_PROTOCOLS[1]}",
        )


async def _until_listening(worker: dex.AsyncWorker) -> None:
    """Return once a worker's port takes connections."""
    async with asyncio.timeout(_READY_SECONDS):
        while not await _is_listening(worker):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_LOOK_SECONDS)


async def _is_listening(worker: dex.AsyncWorker) -> bool:
    if not worker._bound_port:  # noqa: SLF001 - until then somebody else may answer there
        return False
    host, _, port = worker.worker_target.address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
