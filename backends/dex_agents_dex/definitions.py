"""The SDK's definition of every row that holds data."""

from __future__ import annotations

from typing import Any, TypeAlias

import dex

from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    FlowTable,
    Loadable,
    PersistenceRow,
    Stream,
)
from dex_agents_dex.wire import Json, hint_of

__all__ = ("Definitions", "Loads")

Definition: TypeAlias = (
    dex.Attribute[Any]
    | dex.AttributeMap[Any]
    | dex.Channel[Any]
    | dex.ChannelMap[Any]
    | dex.Stream[Any]
)


class Loads:
    """What a handler asks for, sorted as the SDK wants it."""

    def __init__(self) -> None:
        self.attribute_maps: list[dex.AttributeMap[Any]] = []
        self.attribute_map_instances: list[dex.AttributeMapLoad] = []
        self.channels: list[dex.Channel[Any]] = []
        self.channel_maps: list[dex.ChannelMap[Any]] = []
        self.channel_map_instances: list[dex.ChannelMapLoad] = []

    def for_method(self, prefix: str = "") -> dict[str, Any]:
        """Return keyword arguments, such as ``execute_load_channels``."""
        return {f"{prefix}load_{name}": tuple(found) for name, found in vars(self).items()}


class Definitions:
    """The SDK's definitions of one table, which it knows by identity.

    Args:
        table: Whose rows they are.
    """

    def __init__(self, table: FlowTable) -> None:
        self._made = {row.name: _definition(row) for row in table.persistence}

    def schema(self) -> dex.PersistenceSchema:
        """Return all of them."""
        return dex.PersistenceSchema.of(*self._made.values())

    def attribute(self, row: Attribute[Any]) -> tuple[Any, tuple[str, ...]]:
        """Return an Attribute's definition, and the key if it is an instance of a map."""
        if row.map is None:
            return self._made[row.name], ()
        return self._made[row.map.name], (row.map.key_of(row.name),)

    def attribute_map(self, row: AttributeMap[Any]) -> Any:
        """Return a map's definition."""
        return self._made[row.name]

    def channel(self, row: Channel[Any]) -> tuple[Any, tuple[str, ...]]:
        """Return a Channel's definition, and the key if it is an instance of a map."""
        if row.map is None:
            return self._made[row.name], ()
        return self._made[row.map.name], (row.map.key_of(row.name),)

    def stream(self, row: Stream[Any]) -> Any:
        """Return a Stream's definition."""
        return self._made[row.name]

    def locks(self, rows: tuple[Attribute[Any], ...]) -> tuple[dex.AttributeLock, ...]:
        """Return the locks of Attributes."""
        found = [self.attribute(row) for row in dict.fromkeys(rows)]  # the SDK takes none twice
        return tuple(definition.lock(*key) for definition, key in found)

    def loads(self, rows: tuple[Loadable, ...]) -> Loads:
        """Return what a row or a movement loads."""
        loads = Loads()
        for row in dict.fromkeys(rows):  # the SDK takes nothing twice
            if isinstance(row, AttributeMap):
                loads.attribute_maps.append(self._made[row.name])  # type: ignore[arg-type]
            elif isinstance(row, ChannelMap):
                loads.channel_maps.append(self._made[row.name])  # type: ignore[arg-type]
            elif isinstance(row, Attribute):
                definition, key = self.attribute(row)
                loads.attribute_map_instances.append(definition.load(*key))
            else:
                definition, key = self.channel(row)
                if key:
                    loads.channel_map_instances.append(definition.load_messages(*key))
                else:
                    loads.channels.append(definition)
        return loads


def _definition(row: PersistenceRow) -> Definition:
    if isinstance(row, Stream):
        return dex.Stream(row.name, Json, row.capacity_bytes)
    if isinstance(row, Channel | ChannelMap):
        kind = dex.Channel if isinstance(row, Channel) else dex.ChannelMap
        return kind(row.name, hint_of(row.type))
    # A number or a boolean that has no value would be read as 0 or False.
    kind_of_attribute = dex.Attribute if isinstance(row, Attribute) else dex.AttributeMap
    return kind_of_attribute(row.name, str if row.type is str else Json)
