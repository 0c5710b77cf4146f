"""What does a Step write? Commits and rows for each Step, bytes for each turn: counted, not timed.

The driver counts: every connection that is opened meanwhile reports its
commits and changed rows, so nothing is asked of the store itself.
"""

from __future__ import annotations

import apsw

from bench.depth import messages_around
from bench.workload import STEPS_PER_TURN, Sizes, serving

__all__ = ("measure",)

_TURNS = 20

_STORED = """
SELECT (SELECT coalesce(sum(length(name) + length(value)), 0) FROM attribute)
     + (SELECT coalesce(sum(length(execution)), 0) FROM execution)
     + (SELECT coalesce(sum(length(entry)), 0) FROM history)
     + (SELECT coalesce(sum(length(payload)), 0) FROM stream)
     + (SELECT coalesce(sum(length(header)), 0) FROM flow)
"""
"""Every table but the Channels' messages, which were there before."""


class _Counter:
    """Counts the commits, rows and statements of every connection opened since."""

    def __init__(self) -> None:
        self.commits = 0
        self.statements = 0
        self._connections: list[apsw.Connection] = []

    def watch(self, connection: apsw.Connection) -> None:
        connection.set_commit_hook(self._committed)
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._executed)
        self._connections.append(connection)

    def _committed(self) -> bool:
        self.commits += 1
        return False

    def _executed(self, _: object) -> None:
        self.statements += 1

    def now(self) -> tuple[int, int, int]:
        rows = sum(_total_changes(connection) for connection in self._connections)
        return self.commits, rows, self.statements

    def stored_bytes(self) -> int:
        before = self.statements
        found = int(self._connections[-1].execute(_STORED).get)
        self.statements = before
        return found


def _total_changes(connection: apsw.Connection) -> int:
    try:
        return int(connection.total_changes())
    except apsw.ConnectionClosedError:
        return 0  # it only created the file


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return what is written for each Step, and for each turn early and late, on SQLite."""
    figures = await _count("near", sizes.near)
    late = await _count("far", sizes.far)
    return {**figures, "stored_bytes_per_turn_far": late["stored_bytes_per_turn_far"]}


async def _count(name: str, depth: int) -> dict[str, float]:
    counter = _Counter()
    apsw.connection_hooks.append(counter.watch)
    try:
        async with serving("sqlite") as bench:
            session = await bench.paused("counted", messages_around(depth, _TURNS))
            before, bytes_before = counter.now(), counter.stored_bytes()
            for _ in range(_TURNS):
                await session.to_next_pause()
            after, bytes_after = counter.now(), counter.stored_bytes()
            await session.stop()
    finally:
        apsw.connection_hooks.remove(counter.watch)
    steps = _TURNS * STEPS_PER_TURN
    commits, rows, statements = ((b - a) / steps for a, b in zip(before, after, strict=True))
    return {
        "commits_per_step": commits,
        "rows_per_step": rows,
        "statements_per_step": statements,
        f"stored_bytes_per_turn_{name}": (bytes_after - bytes_before) / _TURNS,
    }
