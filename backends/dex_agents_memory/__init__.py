"""The memory backend: sessions in this process, on a real or a virtual clock, nothing on disk."""

from __future__ import annotations

from typing import Any

from dex_agents.backend import Capability
from dex_agents.executor import Clock, LocalBackend, SystemClock, VirtualClock
from dex_agents_memory.store import MemoryStore

__all__ = ("MemoryBackend",)


class MemoryBackend(LocalBackend):
    """Runs sessions in memory.

    Args:
        clock: `VirtualClock` for tests that move time; None for the system's.
        options: See `LocalBackend`.
    """

    def __init__(self, clock: Clock | None = None, **options: Any) -> None:
        self.clock = clock or SystemClock()
        capabilities = [Capability.VIRTUAL_TIME] if isinstance(clock, VirtualClock) else []
        super().__init__(MemoryStore(self.clock), capabilities, **options)

    @classmethod
    def from_url(cls, url: str) -> MemoryBackend:  # noqa: ARG003 - there is nothing to say
        """Return a new backend for ``memory:``."""
        return cls()
