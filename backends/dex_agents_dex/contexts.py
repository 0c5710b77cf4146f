"""What a table's handlers see on Dex: the protocols of `dex_agents.table` over SDK contexts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import dex

from dex_agents.errors import NotLoadedError, UndeclaredError
from dex_agents.executor import Clock
from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    FlowTable,
    Observation,
    RecoveryError,
    Stream,
)
from dex_agents.telemetry import AttemptTelemetry
from dex_agents_dex.definitions import Definitions
from dex_agents_dex.wire import Sized, from_wire, require_size, to_wire

__all__ = ("DexRpcContext", "DexStepContext")

T = TypeVar("T")

_FRAME_BYTES = 64
"""At most what the wire puts around one value: its kind, its encoding, its lengths."""


class _DexDataContext:
    """Reads and writes the flow's data through an SDK context, and counts what it writes."""

    def __init__(
        self,
        context: dex.Context,
        reader: str,
        table: FlowTable,
        definitions: Definitions,
        clock: Clock,
    ) -> None:
        self.flow_id = context.flow_id
        self.now = clock.now
        self._context = context
        self._reader = reader
        self._table = table
        self._definitions = definitions
        self._written_bytes = 0
        self._attribute_bytes: dict[str, int] = {}
        self._published: Counter[str] = Counter()

    def get(self, attribute: Attribute[T]) -> T | None:
        self._require_declared(attribute)
        definition, key = self._definitions.attribute(attribute)
        try:
            value = definition.get(self._context, *key)
        except dex.AttributeMapNotLoadedError as error:
            raise NotLoadedError(self._reader, attribute.name) from error
        return None if value is None else from_wire(value, attribute.type, attribute.name)

    def set(self, attribute: Attribute[T], value: T) -> None:
        self._require_declared(attribute)
        definition, key = self._definitions.attribute(attribute)
        sent = self._sent(value, attribute, definition)
        self._recount(attribute.name, sent.size)
        definition.set(self._context, *key, sent.value)

    def delete(self, attribute: Attribute[T]) -> None:
        self._require_declared(attribute)
        definition, key = self._definitions.attribute(attribute)
        self._recount(attribute.name, 0)
        definition.delete(self._context, *key)

    def entries(self, attribute_map: AttributeMap[T]) -> Mapping[str, T]:
        self._require_declared(attribute_map)
        definition = self._definitions.attribute_map(attribute_map)
        try:
            keys = definition.get_all_instance_keys(self._context)
        except dex.AttributeMapNotLoadedError as error:
            raise NotLoadedError(self._reader, attribute_map.name) from error
        return _Entries(self, attribute_map, keys)

    def publish(self, channel: Channel[T], message: T) -> None:
        self._require_declared(channel)
        definition, key = self._definitions.channel(channel)
        sent = self._sent(message, channel, definition)
        self.count(sent.size + len(channel.name))
        definition.publish(self._context, *key, sent.value)
        self._published[channel.name] += 1

    def queue_size(self, channel: Channel[T]) -> int:
        self._require_declared(channel)
        definition, key = self._definitions.channel(channel)
        # The SDK counts what the handler itself has published. No other backend does.
        return int(definition.size(self._context, *key)) - self._published[channel.name]

    def count(self, size: int) -> None:
        """Add to what the result holds; raise `EncodingError` if it would be too large."""
        total = self._written_bytes + size + _FRAME_BYTES
        require_size(total, f"the result of {self._reader}")
        self._written_bytes = total

    def _recount(self, name: str, size: int) -> None:
        """Count an Attribute's last write in place of the one before."""
        size += len(name)
        self.count(size - self._attribute_bytes.get(name, 0))
        self._attribute_bytes[name] = size

    def _sent(self, value: Any, row: Any, definition: Any) -> Sized:
        return to_wire(value, row.type, definition.value_type, row.name)

    def _require_declared(self, row: Any) -> None:
        if not self._table.declares(row):
            raise UndeclaredError(self._reader, row.name)


class _Entries(Mapping[str, T]):
    """A loaded map by key, decoded as it is read."""

    def __init__(
        self, context: _DexDataContext, attribute_map: AttributeMap[T], keys: tuple[str, ...]
    ) -> None:
        self._context = context
        self._map = attribute_map
        self._keys = dict.fromkeys(keys)

    def __getitem__(self, key: str) -> T:
        value = self._context.get(self._map[key]) if key in self._keys else None
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class DexRpcContext(_DexDataContext):
    """What an RPC's handler sees."""

    def forget_changes(self) -> None:
        """Drop what a read-only RPC has written: Dex would keep it."""
        self._context.attribute_writes.clear()  # type: ignore[attr-defined]
        self._context.publications.clear()  # type: ignore[attr-defined]


class DexStepContext(_DexDataContext):
    """What a Step's handlers see.

    A heartbeat carries the trace context of its attempt, so that the next
    attempt can link to it: Dex hands the last one on.
    """

    _context: dex.AsyncContext

    def __init__(
        self,
        context: dex.AsyncContext,
        table: FlowTable,
        definitions: Definitions,
        clock: Clock,
    ) -> None:
        super().__init__(context, context.step_execution_id, table, definitions, clock)
        self.step_execution_id = context.step_execution_id
        self.attempt = context.attempt
        self.watched: AttemptTelemetry | None = None
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def recovery_error(self) -> RecoveryError | None:
        error = self._context.recovery_error
        if error is None:
            return None
        return RecoveryError(error.detail, error.error_type.removeprefix("builtins."))

    def results(self, channel: Channel[T]) -> tuple[T, ...]:
        self._require_declared(channel)
        definition, key = self._definitions.channel(channel)
        found = definition.results(self._context, *key)
        return tuple(from_wire(each, channel.type, channel.name) for each in found)

    def write(self, stream: Stream[T], message: T) -> None:
        self._require_declared(stream)
        definition = self._definitions.stream(stream)
        sent = to_wire(message, stream.type, definition.value_type, stream.name)
        if threading.get_ident() == self._thread:
            definition.write(self._context, sent.value)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(definition.write, self._context, sent.value)

    async def heartbeat(self) -> None:
        if self.is_over:
            return  # nobody waits for a sign of life any more
        carrier = self.watched.carrier() if self.watched is not None else {}
        if carrier:
            await self._context.heartbeat(carrier)
        else:
            await self._context.heartbeat()

    @contextmanager
    def keep_alive(self, seconds: float) -> Iterator[None]:
        task = self._loop.create_task(self._beat_every(seconds))
        try:
            yield
        finally:
            task.cancel()

    async def _beat_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.heartbeat()

    def trace_carrier(self) -> dict[str, str]:
        return self.watched.trace_carrier() if self.watched is not None else {}

    def observe(self, describe: Callable[[], Observation]) -> None:
        if self.watched is not None:
            self.watched.observe(describe)
