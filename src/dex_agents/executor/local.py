"""A backend in this process: an executor over a store. The memory and SQLite backends are this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from dex_agents.backend import (
    Capability,
    FlowSummary,
    StepHistoryEntry,
    StreamMessage,
    require_flow_id,
)
from dex_agents.encoding import decode
from dex_agents.errors import FlowNotFoundError, StreamPositionError
from dex_agents.executor.attributes import Attributes
from dex_agents.executor.contexts import encoded
from dex_agents.executor.executor import Executor
from dex_agents.executor.handle import FlowHandle
from dex_agents.executor.rpc import RpcCall
from dex_agents.executor.store import AttributeReader, CommitConflict, Store
from dex_agents.machine import (
    Changes,
    Event,
    ExecutionOptions,
    FlowHeader,
    FlowStarted,
    FlowState,
    FlowStatus,
    FlowStopped,
    HistoryEntry,
    Machine,
    ScheduledStep,
    TableRules,
)
from dex_agents.table import FlowTable
from dex_agents.telemetry import Telemetry, TelemetryOptions

__all__ = ("LocalBackend",)

_PAGE = 256
"""How many Stream messages are read at once."""


class LocalBackend:
    """Runs tables in this process, over a store.

    A flow that a worker of this process owns is changed in memory first; any
    other flow is changed in the store, where its owner, in whatever process,
    finds the change.

    Args:
        store: Where flows are kept.
        capabilities: What the store makes possible.
        telemetry: Where traces, metrics and logs go; None for the application's own providers.
    """

    def __init__(
        self,
        store: Store,
        capabilities: Iterable[Capability],
        *,
        telemetry: TelemetryOptions | None = None,
    ) -> None:
        self.name = store.name
        self.capabilities = frozenset(capabilities)
        self._store = store
        self._telemetry = Telemetry(store.name, telemetry)
        self._workers: list[Executor] = []

    async def __aenter__(self) -> Self:
        await self._store.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._store.close()

    @asynccontextmanager
    async def worker(
        self, tables: Iterable[FlowTable], *, grace_seconds: float = 10.0, **options: Any
    ) -> AsyncIterator[Executor]:
        """Serve these flows while the block runs.

        Args:
            tables: The flows.
            grace_seconds: How long running attempts may go on when the block ends.
            options: ``max_concurrent_steps``, ``lease_seconds``, ``max_resident_flows``;
                see `Executor`.
        """
        executor = Executor(self._store, tables, self._telemetry, **options)
        await executor.start()
        self._workers.append(executor)
        try:
            yield executor
        finally:
            try:
                await executor.stop(grace_seconds)
            finally:
                self._workers.remove(executor)
                for other in self._workers:
                    other.look()

    # Changing flows

    async def start_flow(self, table: FlowTable, flow_id: str, start_input: Any) -> None:
        """Start a flow."""
        require_flow_id(flow_id)
        row = table.start_step
        start = ScheduledStep(row.name, encoded(start_input, row.input, f"input of {row.name}"))
        event = FlowStarted(table.flow_type, start)
        worker = self._worker_for(table.flow_type)
        if worker is not None and self._store.header(flow_id) is None:
            handle = worker.resident(flow_id) or worker.found(flow_id, table.flow_type)
            try:
                await handle.request(lambda _: (event, None))
            except CommitConflict:
                pass  # somebody else started it at the same time: let the store say so
            else:
                return
        await self._transact(table, flow_id, lambda *_: (event, None))

    async def invoke_rpc(self, table: FlowTable, flow_id: str, rpc: str, rpc_input: Any) -> Any:
        """Call an RPC."""
        call = RpcCall(table, table.rpc(rpc), rpc_input)
        call.check_input()
        machine = Machine(TableRules(table))
        clock = self._store.clock
        if call.row.is_read_only:
            with self._store.snapshot():
                state = self._require(flow_id)
                attributes = Attributes(self._store.reader(flow_id))
                return call.run(state, attributes, machine, clock)[1]

        def decide(state: FlowState, attributes: Attributes) -> tuple[Event | None, Any]:
            if not state.header.version:
                raise FlowNotFoundError(flow_id)
            return call.run(state, attributes, machine, clock)

        return await self._change(table, flow_id, decide)

    async def stop_flow(self, flow_id: str, reason: str) -> None:
        """Stop a flow for good."""
        event = FlowStopped(reason)
        await self._change(None, flow_id, lambda *_: (event, None))

    async def _change(self, table: FlowTable | None, flow_id: str, decide: Any) -> Any:
        handle = self._resident(flow_id)
        if handle is not None:
            try:
                return await handle.request(lambda h: decide(h.state, h.attributes))
            except CommitConflict:
                pass  # another worker has taken the flow over
        return await self._transact(table, flow_id, decide)

    async def _transact(self, table: FlowTable | None, flow_id: str, decide: Any) -> Any:
        """Change a flow in the store, and let whoever owns it find out."""
        machine = Machine(TableRules(table) if table is not None else _NoRules())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        result: Any = None

        def transact(state: FlowState, reader: AttributeReader) -> Changes | None:
            nonlocal result
            event, result = decide(state, Attributes(reader))
            if event is None:
                return None
            return machine.apply(state, event, self._store.clock.now()).changes

        def done(error: BaseException | None) -> None:
            if error is None:  # wakes, whether or not the caller is still there
                for worker in self._workers:
                    worker.wake(flow_id)
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._store.transact(flow_id, transact, done)
        await future
        return result

    def _worker_for(self, flow_type: str) -> Executor | None:
        return next((each for each in self._workers if each.serves(flow_type)), None)

    def _resident(self, flow_id: str) -> FlowHandle | None:
        found = (worker.resident(flow_id) for worker in self._workers)
        return next((handle for handle in found if handle is not None), None)

    # Reading flows

    async def describe_flow(self, flow_id: str) -> FlowSummary:
        """Return a flow's summary."""
        with self._store.snapshot():
            return _summary(self._require_header(flow_id), self._store.unclaimed())

    async def list_flows(self) -> Sequence[FlowSummary]:
        """Return every flow, oldest first."""
        with self._store.snapshot():
            unclaimed = self._store.unclaimed()
            return [_summary(header, unclaimed) for header in self._store.headers()]

    async def read_history(self, flow_id: str) -> Sequence[StepHistoryEntry]:
        """Return a flow's history, oldest first."""
        self._require_header(flow_id)
        return [_history_entry(entry) for entry in self._store.history(flow_id)]

    async def read_stream(
        self, table: FlowTable, flow_id: str, stream: str, position: str | None, *, follow: bool
    ) -> AsyncGenerator[StreamMessage, None]:
        """Yield a Stream's messages behind a position; follow until the flow closes, if asked."""
        tp = next(row.type for row in table.persistence if row.name == stream)
        after = _position(position)
        while True:
            is_closed = self._require_header(flow_id).status is not FlowStatus.RUNNING
            events = self._store.stream(flow_id, stream, after, _PAGE)
            for event in events:
                after = event.position
                yield StreamMessage(str(after), decode(event.payload, tp, stream))
            if events:
                continue
            if is_closed or not follow:
                return
            await self._store.changed.wait(1.0)

    def _require(self, flow_id: str) -> FlowState:
        state = self._store.load(flow_id)
        if state is None:
            raise FlowNotFoundError(flow_id)
        return state

    def _require_header(self, flow_id: str) -> FlowHeader:
        header = self._store.header(flow_id)
        if header is None:
            raise FlowNotFoundError(flow_id)
        return header


class _NoRules:
    """For a change that schedules nothing, such as a stop."""

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:  # noqa: ARG002
        raise KeyError(step)

    def options(self, step: str) -> ExecutionOptions:
        raise KeyError(step)


def _position(position: str | None) -> int:
    try:
        return int(position or 0)
    except ValueError as error:
        raise StreamPositionError(position or "") from error


def _summary(header: FlowHeader, unclaimed: Container[str]) -> FlowSummary:
    return FlowSummary(
        header.flow_id,
        header.flow_type,
        str(header.status),
        header.started_at,
        header.closed_at,
        header.failure.detail if header.failure else None,
        header.flow_id in unclaimed,
    )


def _history_entry(entry: HistoryEntry) -> StepHistoryEntry:
    return StepHistoryEntry(
        event_type=str(entry.event_type),
        step_type=entry.step_type,
        step_execution_id=entry.step_execution_id,
        final_attempt=entry.final_attempt,
        at=entry.at,
        scheduled_at=entry.scheduled_at,
        begun_at=entry.begun_at,
        origin=entry.origin,
        error=entry.failure.detail if entry.failure else None,
        error_type=entry.failure.error_type if entry.failure else None,
        worker=entry.worker,
    )
