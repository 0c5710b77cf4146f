"""dex-agents on SQLite."""

from __future__ import annotations

from bench.contenders.driver import drive
from bench.contenders.sessions import serving_sessions
from dex_agents_sqlite import SqliteBackend

if __name__ == "__main__":
    drive(serving_sessions(lambda folder: SqliteBackend(folder / "sessions.db")))
