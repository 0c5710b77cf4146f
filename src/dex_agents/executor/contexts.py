"""What handlers see on a local backend: reads as of a moment, writes that wait for the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Raw

from dex_agents.encoding import decode, encode, require_type
from dex_agents.errors import NotLoadedError, UndeclaredError
from dex_agents.executor.attributes import Attributes, AttributeView
from dex_agents.machine import Execution, FlowState, Published, Writes
from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    FlowTable,
    Observation,
    RecoveryError,
    Stream,
)

__all__ = ("AttemptContext", "CallContext", "Entries", "encoded")

T = TypeVar("T")

_OWNERS = (AttributeMap, ChannelMap, Stream)
"""The rows that are nobody's instance."""


def encoded(value: Any, tp: Any, name: str) -> Raw:
    """Return the JSON of a value for a row of this type.

    Raises:
        EncodingError: It is of another type, or has no JSON form.
    """
    return Raw(json_of(value, tp, name))


def json_of(value: Any, tp: Any, name: str) -> bytes:
    """Return what `encoded` does, as bytes."""
    require_type(value, tp, name)
    return encode(value, name)


class _DataContext:
    """Reads through an Attribute source, and collects writes and publishes."""

    def __init__(
        self,
        reader: str,
        flow_id: str,
        table: FlowTable,
        loads: frozenset[str],
        attributes: Attributes | AttributeView,
        sizes: Mapping[str, int],
        now: Callable[[], float],
    ) -> None:
        self.flow_id = flow_id
        self.now = now
        self._reader = reader
        self._table = table
        self._rows = table.rows
        self._loads = loads
        self._attributes = attributes
        self._sizes = sizes
        self._values: dict[str, Any] = {}
        self._writes: dict[str, Raw | None] = {}
        self._published: list[Published] = []

    def writes(self) -> Writes:
        """Return what the handler changed."""
        return Writes(self._writes, tuple(self._published))

    def get(self, attribute: Attribute[T]) -> T | None:
        self._require_loaded(attribute)
        if attribute.name in self._values:
            return self._values[attribute.name]  # type: ignore[no-any-return]
        return self._attributes.value(attribute.name, attribute.type)

    def set(self, attribute: Attribute[T], value: T) -> None:
        self._require_declared(attribute)
        self._writes[attribute.name] = encoded(value, attribute.type, attribute.name)
        self._values[attribute.name] = value

    def delete(self, attribute: Attribute[T]) -> None:
        self._require_declared(attribute)
        self._writes[attribute.name] = None
        self._values[attribute.name] = None

    def entries(self, attribute_map: AttributeMap[T]) -> Mapping[str, T]:
        self._require_declared(attribute_map)
        if attribute_map.prefix not in self._loads:
            raise NotLoadedError(self._reader, attribute_map.name)
        return Entries(attribute_map, self._attributes, self._values)

    def publish(self, channel: Channel[T], message: T) -> None:
        self._require_declared(channel)
        payload = encoded(message, channel.type, channel.name)
        self._published.append(Published(channel.name, payload))

    def queue_size(self, channel: Channel[T]) -> int:
        self._require_declared(channel)
        return self._sizes.get(channel.name, 0)

    def _require_declared(self, row: Any) -> None:
        owner = row if isinstance(row, _OWNERS) or row.map is None else row.map
        if self._rows.get(owner.name) is not owner and not self._table.declares(row):
            raise UndeclaredError(self._reader, row.name)

    def _require_loaded(self, attribute: Attribute[Any]) -> None:
        self._require_declared(attribute)
        owner = attribute.map
        if owner is None or attribute.name in self._loads or owner.prefix in self._loads:
            return
        raise NotLoadedError(self._reader, attribute.name)


class Entries(Mapping[str, T]):
    """A loaded map by key, decoded as it is read, the handler's own writes included."""

    def __init__(
        self,
        attribute_map: AttributeMap[T],
        attributes: Attributes | AttributeView,
        written: Mapping[str, Any],
    ) -> None:
        self._map = attribute_map
        self._attributes = attributes
        self._written = written

    def __getitem__(self, key: str) -> T:
        value = self._value(self._map[key].name)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return (self._map.key_of(name) for name in self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _value(self, name: str) -> T | None:
        if name in self._written:
            return self._written[name]  # type: ignore[no-any-return]
        return self._attributes.value(name, self._map.type)

    def _names(self) -> list[str]:
        prefix, written = self._map.prefix, self._written
        stored = self._attributes.names(prefix)
        if not written:
            return list(stored)
        names = {name for name in stored if name not in written}
        names |= {n for n, value in written.items() if value is not None and n.startswith(prefix)}
        return sorted(names)


class CallContext(_DataContext):
    """What an RPC's handler sees."""


class Liveness(Protocol):
    """What an attempt does for its handler's context."""

    def now(self) -> float: ...
    def beat(self) -> None: ...
    def write(self, stream: Stream[Any], payload: bytes) -> None: ...
    def keep_alive(self, seconds: float) -> AbstractContextManager[None]: ...
    def trace_carrier(self) -> dict[str, str]: ...
    def observe(self, describe: Callable[[], Observation]) -> None: ...


class AttemptContext(_DataContext):
    """What the handlers of one Step attempt see.

    Args:
        execution: The attempt.
        table: The flow's table.
        state: Where queue sizes are read.
        view: The Attributes as of when the attempt was handed out.
        loads: What its options load.
        liveness: Records signs of life and writes Streams; see `Attempt`.
    """

    def __init__(
        self,
        execution: Execution,
        table: FlowTable,
        state: FlowState,
        view: AttributeView,
        loads: tuple[str, ...],
        liveness: Liveness,
    ) -> None:
        queues = {name: len(queue) for name, queue in state.queues.items()}
        super().__init__(
            execution.id,
            state.header.flow_id,
            table,
            frozenset(loads),
            view,
            queues,
            liveness.now,
        )
        self.step_execution_id = execution.id
        self.attempt = execution.attempt
        self._execution = execution
        self._liveness = liveness

    @property
    def recovery_error(self) -> RecoveryError | None:
        failure = self._execution.recovery
        return RecoveryError(failure.detail, failure.error_type) if failure else None

    def results(self, channel: Channel[T]) -> tuple[T, ...]:
        self._require_declared(channel)
        return tuple(
            decode(bytes(message.payload), channel.type, channel.name)
            for message in self._execution.consumed
            if message.channel == channel.name
        )

    def write(self, stream: Stream[T], message: T) -> None:
        self._require_declared(stream)
        self._liveness.write(stream, json_of(message, stream.type, stream.name))

    async def heartbeat(self) -> None:
        self._liveness.beat()

    def keep_alive(self, seconds: float) -> AbstractContextManager[None]:
        return self._liveness.keep_alive(seconds)

    def trace_carrier(self) -> dict[str, str]:
        return self._liveness.trace_carrier()

    def observe(self, describe: Callable[[], Observation]) -> None:
        self._liveness.observe(describe)
