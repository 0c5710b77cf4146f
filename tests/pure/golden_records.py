"""Makes the records that tests/pure/golden keeps: ``python -m tests.pure.golden_records``.

Run it once for each released version, before the release. What a version wrote
stands for the stores of people who have not upgraded, so a file that is there
is never written again.
"""

from __future__ import annotations

import enum
import importlib.metadata
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from dex_agents import records
from dex_agents.encoding import encode
from dex_agents.machine import (
    ChannelWait,
    Consumed,
    Execution,
    ExecutionOptions,
    Failure,
    FlowHeader,
    HistoryEntry,
    StoredWait,
    TimerWait,
)
from dex_agents.table import RetryPolicy

FOLDER = Path(__file__).parent / "golden"
_MACHINE = (
    ChannelWait,
    Consumed,
    Execution,
    ExecutionOptions,
    Failure,
    FlowHeader,
    HistoryEntry,
    RetryPolicy,
    StoredWait,
    TimerWait,
)
"""What a store keeps of a flow. The machine's events and changes are taken apart before."""
_DEPTH = 3
"""How deep a record that holds its own kind is filled."""


def stored_types() -> dict[str, type[msgspec.Struct]]:
    """Return every record by name, the session's and the machine's."""
    session = (getattr(records, name) for name in records.__all__)
    found = [
        each for each in session if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    return {each.__name__: each for each in (*found, *_MACHINE)}


def holds(read: Any, stored: Any) -> bool:
    """Return whether every value of a stored record is in what is written of it now."""
    if isinstance(stored, dict):
        return isinstance(read, dict) and all(
            key in read and holds(read[key], each) for key, each in stored.items()
        )
    if isinstance(stored, list):
        return len(read) == len(stored) and all(map(holds, read, stored))
    return read == stored


def full(tp: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value of a type in which every field is set, to something else than its default."""
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        hints = typing.get_type_hints(tp)
        return tp(**{each: full(hints[each], each, depth + 1) for each in tp.__struct_fields__})
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return list(tp)[-1]
    return _plain(tp, name) if typing.get_origin(tp) is None else _generic(tp, name, depth)


def _plain(tp: Any, name: str) -> Any:
    plain = {
        str: f"{name} ☃",
        int: 7,
        float: 1.5,
        bool: True,
        Raw: Raw(b'{"any":[1,null,"\xe2\x98\x83"]}'),
        Any: {"any": [1, None, "☃", 1.5]},
        datetime: datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
    }
    return plain[tp]


def _generic(tp: Any, name: str, depth: int) -> Any:
    arguments = typing.get_args(tp)
    origin = typing.get_origin(tp)
    if origin in (typing.Union, types.UnionType):
        if depth > _DEPTH and type(None) in arguments:
            return None
        return full(next(each for each in arguments if each is not type(None)), name, depth)
    if origin is tuple and Ellipsis not in arguments:
        return tuple(full(each, name, depth) for each in arguments)
    if origin in (list, tuple):
        return origin([full(arguments[0], name, depth)])
    assert issubclass(origin, dict | Mapping), tp
    return {full(arguments[0], name, depth): full(arguments[1], name, depth)}


def main() -> None:
    """Write the file of this version."""
    FOLDER.mkdir(exist_ok=True)
    version = importlib.metadata.version("dex-agents")
    path = FOLDER / f"records-{version}.json"
    written = {name: full(tp) for name, tp in stored_types().items()}
    with path.open("xb") as file:
        file.write(msgspec.json.format(encode(written)) + b"\n")


if __name__ == "__main__":
    main()
