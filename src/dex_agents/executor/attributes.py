"""The Attributes of one flow in memory: read when needed, kept, and seen as of a moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from msgspec import Raw

from dex_agents.encoding import decode
from dex_agents.executor.store import AttributeReader

__all__ = ("AttributeView", "Attributes")

T = TypeVar("T")


class Attributes:
    """A flow's Attributes as of its newest transition.

    Values come from the store the first time they are read. Afterwards they
    change only through `write`, which follows every transition at once, before
    it is durable. Decoded values are remembered until they are overwritten.

    Args:
        reader: Reads what is committed.
    """

    def __init__(self, reader: AttributeReader) -> None:
        self._reader = reader
        self._raw: dict[str, dict[str, Raw | None]] = {}  # by prefix: one map cannot slow another
        self._decoded: dict[str, Any] = {}
        self._complete: set[str] = set()  # prefixes of which every value is here
        self._views: set[AttributeView] = set()

    def raw(self, name: str) -> Raw | None:
        """Return the JSON of a physical name."""
        prefix = _prefix(name)
        bucket = self._raw.setdefault(prefix, {})
        if name in bucket:
            return bucket[name]
        if prefix in self._complete:
            return None
        found = bucket[name] = self._reader.get(name)
        return found

    def value(self, name: str, tp: type[T]) -> T | None:
        """Return the decoded value of a physical name."""
        if name in self._decoded:
            return self._decoded[name]  # type: ignore[no-any-return]
        raw = self.raw(name)
        if raw is None:
            return None
        value = self._decoded[name] = decode(bytes(raw), tp, name)
        return value

    def names(self, prefix: str) -> list[str]:
        """Return the physical names that begin so and have a value, in order."""
        bucket = self._raw.setdefault(prefix, {})
        if prefix not in self._complete:
            stored = {**self._reader.scan(prefix), **bucket}
            bucket = self._raw[prefix] = {n: raw for n, raw in stored.items() if raw is not None}
            self._complete.add(prefix)
        return sorted(bucket)

    def write(self, attributes: Mapping[str, Raw | None]) -> None:
        """Take over what a transition wrote; open views keep what they saw."""
        for view in self._views:
            for name in attributes:
                view.preserve(name)
        for name, raw in attributes.items():
            self._decoded.pop(name, None)
            prefix = _prefix(name)
            bucket = self._raw.get(prefix)
            if bucket is None:
                bucket = self._raw[prefix] = {}
            if raw is None and prefix in self._complete:
                bucket.pop(name, None)
            else:
                bucket[name] = raw

    def view(self) -> AttributeView:
        """Return the Attributes as of now; close it when done."""
        view = AttributeView(self)
        self._views.add(view)
        return view

    def forget(self, view: AttributeView) -> None:
        """Stop preserving what a view saw."""
        self._views.discard(view)


class AttributeView:
    """A flow's Attributes as of a moment, whatever is written while it is open."""

    __slots__ = ("_base", "_preserved")

    def __init__(self, base: Attributes) -> None:
        self._base = base
        self._preserved: dict[str, Raw | None] = {}

    def preserve(self, name: str) -> None:
        """Keep a value that is about to be overwritten."""
        if name not in self._preserved:
            self._preserved[name] = self._base.raw(name)

    def value(self, name: str, tp: type[T]) -> T | None:
        """Return the decoded value of a physical name."""
        if name in self._preserved:
            raw = self._preserved[name]
            return None if raw is None else decode(bytes(raw), tp, name)
        return self._base.value(name, tp)

    def names(self, prefix: str) -> Iterator[str]:
        """Return the physical names that begin so and had a value, in order."""
        kept = self._preserved
        if not kept:
            return iter(self._base.names(prefix))
        names = {n for n in self._base.names(prefix) if n not in kept}
        names |= {n for n, raw in kept.items() if raw is not None and n.startswith(prefix)}
        return iter(sorted(names))

    def close(self) -> None:
        """Stop preserving values."""
        self._base.forget(self)


def _prefix(name: str) -> str:
    return name[: name.find("/") + 1]
