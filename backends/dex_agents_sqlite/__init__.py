"""The SQLite backend: durable sessions in one file, shared by several processes of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dex_agents import signals
from dex_agents.backend import Capability
from dex_agents.errors import StoreForeignError
from dex_agents.executor import Clock, LocalBackend, SystemClock
from dex_agents_sqlite.store import SqliteStore

__all__ = ("SqliteBackend",)

_SCHEME = "sqlite:///"


class SqliteBackend(LocalBackend):
    """Runs sessions over a SQLite file.

    Args:
        path: The file; created with mode 0600 when it is not there.
        clock: The time that workers go by; None for the system's.
        options: See `LocalBackend`.
    """

    def __init__(self, path: str | Path, clock: Clock | None = None, **options: Any) -> None:
        self.path = Path(path)
        capabilities = (Capability.DURABLE, Capability.MULTI_PROCESS)
        store = SqliteStore(self.path, clock or SystemClock())
        super().__init__(store, capabilities, **options)
        store.measure = self._measure_commit

    def _measure_commit(self, seconds: float, changes: int) -> None:
        self._telemetry.count(signals.COMMIT_DURATION, seconds)
        self._telemetry.count(signals.COMMIT_BATCH, changes)

    @classmethod
    def from_url(cls, url: str) -> SqliteBackend:
        """Return the backend for ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

        Raises:
            StoreForeignError: The URL names no file.
        """
        if not url.startswith(_SCHEME) or not url[len(_SCHEME) :]:
            raise StoreForeignError(url, "a store is named sqlite:///PATH")
        return cls(url[len(_SCHEME) :])
