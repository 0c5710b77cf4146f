"""The rows of a table that hold data: Attributes, Channels and Streams, and waits on Channels.

A map row is indexed to name one instance: ``AGENT_TOOL_CALLS["call-1"]`` is an
Attribute of its own, stored under the physical name ``AgentToolCalls/call-1``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from msgspec import Struct

__all__ = (
    "Attribute",
    "AttributeMap",
    "Channel",
    "ChannelCondition",
    "ChannelMap",
    "Loadable",
    "PersistenceRow",
    "Stream",
)

T = TypeVar("T")


@lru_cache(maxsize=8192)  # the same few keys are named several times in every Step
def _instance_name(name: str, key: str) -> str:
    if not key.strip() or "/" in key:
        raise ValueError(f"{key!r} cannot be a key of {name}: it is blank or holds a '/'.")
    return f"{name}/{quote(key, safe='')}"


def _instance_key(name: str, physical_name: str) -> str:
    return unquote(physical_name[len(name) + 1 :])


class Attribute(Struct, Generic[T], frozen=True, gc=False):
    """One named value of a flow, or one instance of an `AttributeMap`.

    Attributes:
        name: Its physical name.
        type: What `dex_agents.encoding` decodes it to.
        map: The map that it is an instance of, or None.
    """

    name: str
    type: type[T]
    map: AttributeMap[T] | None = None


class AttributeMap(Struct, Generic[T], frozen=True, gc=False):
    """Named values of one type under keys that are known at run time.

    Handlers see an instance only when their row, or the movement to it, loads
    the map or that instance.
    """

    name: str
    type: type[T]

    def __getitem__(self, key: str) -> Attribute[T]:
        return Attribute(_instance_name(self.name, key), self.type, self)

    @property
    def prefix(self) -> str:
        """What the physical names of its instances begin with."""
        return f"{self.name}/"

    def key_of(self, physical_name: str) -> str:
        """Return the key of an instance from its physical name."""
        return _instance_key(self.name, physical_name)


class ChannelCondition(Struct, frozen=True, gc=False):
    """Ready when a Channel holds enough messages; consumes them, oldest first, when chosen.

    Attributes:
        at_least: How many must be there.
        at_most: How many are taken, or None for all.
    """

    channel: Channel[Any]
    at_least: int
    at_most: int | None


class Channel(Struct, Generic[T], frozen=True, gc=False):
    """A first-in-first-out queue of messages, or one instance of a `ChannelMap`."""

    name: str
    type: type[T]
    map: ChannelMap[T] | None = None

    def for_one(self) -> ChannelCondition:
        """Wait for one message."""
        return self.for_n(1)

    def for_n(self, count: int) -> ChannelCondition:
        """Wait for exactly this many messages."""
        return ChannelCondition(self, count, count)

    def for_at_least(self, count: int) -> ChannelCondition:
        """Wait for this many messages, then take all that are there."""
        return ChannelCondition(self, count, None)

    def for_at_most(self, count: int) -> ChannelCondition:
        """Take up to this many messages without waiting."""
        return ChannelCondition(self, 0, count)


class ChannelMap(Struct, Generic[T], frozen=True, gc=False):
    """Channels of one type under keys that are known at run time."""

    name: str
    type: type[T]

    def __getitem__(self, key: str) -> Channel[T]:
        return Channel(_instance_name(self.name, key), self.type, self)

    def key_of(self, physical_name: str) -> str:
        """Return the key of an instance from its physical name."""
        return _instance_key(self.name, physical_name)

    def for_one(self, key: str) -> ChannelCondition:
        """Wait for one message on the instance of this key."""
        return self[key].for_one()


class Stream(Struct, Generic[T], frozen=True, gc=False):
    """A best-effort log beside the flow, trimmed from its old end to a capacity.

    Attributes:
        capacity_bytes: How much of it is kept.
    """

    name: str
    type: type[T]
    capacity_bytes: int


PersistenceRow: TypeAlias = (
    Attribute[Any] | AttributeMap[Any] | Channel[Any] | ChannelMap[Any] | Stream[Any]
)
"""Any row that holds data."""

Loadable: TypeAlias = Attribute[Any] | AttributeMap[Any] | Channel[Any] | ChannelMap[Any]
"""What a handler must ask for: a map, one instance, or the messages waiting on a Channel."""
