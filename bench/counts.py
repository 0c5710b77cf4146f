"""What does a Step write? Commits, rows, bytes and handler calls: counted, not timed.

The driver counts: every connection that is opened meanwhile reports its
commits and the rows that it changes, so nothing is asked of the store itself,
and nothing here knows a table of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace as replace_table
from functools import partial
from typing import Any

import apsw
from msgspec import Struct
from msgspec.structs import replace

from bench.depth import messages_around
from bench.workload import STEPS_PER_TURN, Sizes, pause, serving
from dex_agents.table import FlowTable, Step

__all__ = ("LIMITS", "grown", "measure")

LIMITS = {
    "commits_per_step": 0.43,
    "rows_per_step": 9.0,
    "bytes_per_step": 2_695.0,
    "handler_calls_per_step": 1.29,
    "stored_bytes_per_turn_near": 8_845.0,
    "stored_bytes_per_turn_far": 8_845.0,
}
"""The most that the checks let through: 3 commits, 63 rows and 9 handler calls a turn.

Bytes have one part in a hundred to spare, for the digits of times. Whoever makes a
count smaller lowers its limit.
"""

_TURNS = 20


class Counts(Struct, frozen=True):
    """What has been done since the counting began."""

    commits: int = 0
    rows: int = 0
    bytes: int = 0
    statements: int = 0
    handler_calls: int = 0


class Counter:
    """Counts what every connection opened since does, and how often a table's handlers run."""

    def __init__(self) -> None:
        self._commits = self._rows = self._bytes = self._statements = self._handler_calls = 0
        self._files: set[str] = set()

    def watch(self, connection: apsw.Connection) -> None:
        """Count what a connection does."""
        connection.set_commit_hook(self._committed)
        connection.preupdate_hook(self._changed)
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._executed)
        self._files.add(connection.filename)

    def wrap(self, table: FlowTable) -> FlowTable:
        """Return the table with every Step's handlers counted."""
        return replace_table(table, steps=tuple(self._wrap_step(step) for step in table.steps))

    def now(self) -> Counts:
        """Return the counts so far."""
        return Counts(self._commits, self._rows, self._bytes, self._statements, self._handler_calls)

    def stored_bytes(self) -> int:
        """Return the bytes of every value in every table, without pages that are half full."""
        (file,) = self._files
        hooks, apsw.connection_hooks[:] = list(apsw.connection_hooks), []
        try:
            with apsw.Connection(file, apsw.SQLITE_OPEN_READONLY) as connection:
                return sum(_table_bytes(connection, name) for name in _table_names(connection))
        finally:
            apsw.connection_hooks[:] = hooks

    def _wrap_step(self, step: Step[Any]) -> Step[Any]:
        wait_for = None if step.wait_for is None else partial(self._call, step.wait_for)
        return replace(step, wait_for=wait_for, execute=partial(self._call, step.execute))

    async def _call(self, handler: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        self._handler_calls += 1
        return await handler(*arguments)

    def _committed(self) -> bool:
        self._commits += 1
        return False

    def _changed(self, update: apsw.PreUpdate) -> None:
        self._rows += 1
        self._bytes += sum(map(_size, update.new or ()))

    def _executed(self, _: object) -> None:
        self._statements += 1


def _size(value: object) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(str(value).encode()) if value is not None else 0


def _table_names(connection: apsw.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return [name for (name,) in found]


def _table_bytes(connection: apsw.Connection, table: str) -> int:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    sizes = " + ".join(f'coalesce(octet_length("{column}"), 0)' for column in columns)
    return int(connection.execute(f'SELECT coalesce(sum({sizes}), 0) FROM "{table}"').get)


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return what is written for each Step, and for each turn early and late, on SQLite."""
    figures = await _count("near", sizes.near)
    late = await _count("far", sizes.far)
    return {**figures, "stored_bytes_per_turn_far": late["stored_bytes_per_turn_far"]}


def grown(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the counts that are over their limit."""
    return {
        name: figures[name] for name in LIMITS if name in figures and figures[name] > LIMITS[name]
    }


async def _count(name: str, depth: int) -> dict[str, float]:
    counter = Counter()
    apsw.connection_hooks.append(counter.watch)
    try:
        async with serving("sqlite", wrap=counter.wrap, lease_seconds=300.0) as bench:
            # The last messages are sent later, so that what is stored of them counts.
            session = await bench.paused("counted", messages_around(depth, _TURNS)[:-_TURNS])
            bytes_before = counter.stored_bytes()
            for _ in range(_TURNS):
                await bench.client.send_user_message("counted", pause())
            before = counter.now()
            for _ in range(_TURNS):
                await session.to_next_pause()
            after = counter.now()
            bytes_after = counter.stored_bytes()
            await session.stop()
    finally:
        apsw.connection_hooks.remove(counter.watch)
    steps = _TURNS * STEPS_PER_TURN
    figures = {
        f"{what}_per_step": (getattr(after, what) - getattr(before, what)) / steps
        for what in Counts.__struct_fields__
    }
    return {**figures, f"stored_bytes_per_turn_{name}": (bytes_after - bytes_before) / _TURNS}
