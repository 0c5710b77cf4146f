"""dex-agents in memory."""

from __future__ import annotations

from bench.contenders.driver import drive
from bench.contenders.sessions import serving_sessions
from dex_agents_memory import MemoryBackend

if __name__ == "__main__":
    drive(serving_sessions(lambda _: MemoryBackend()))
