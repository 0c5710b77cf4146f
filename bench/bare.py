"""What can this disk do? Commits per second of SQLite alone, one row of 1 KB each."""

from __future__ import annotations

import tempfile
from pathlib import Path

import apsw

from bench.workload import PAYLOAD, STEPS_PER_TURN, Sizes, Stopwatch

__all__ = ("measure",)


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``bare_commits`` a second, WAL at ``synchronous=FULL``, and what one costs."""
    commits = sizes.turns * STEPS_PER_TURN * 2
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        connection = apsw.Connection(str(Path(folder) / "bare.db"))
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, payload TEXT)")
        with Stopwatch() as watch:
            for _ in range(commits):
                connection.execute("INSERT INTO bare (payload) VALUES (?)", (PAYLOAD,))
        connection.close()
    return {
        "bare_commits": commits / watch.seconds,
        "bare_cpu": 1e6 * watch.cpu_seconds / commits,
    }
