"""Every backend keeps every rule."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dex_agents.testing import BackendContract
from dex_agents_dex.emulator import DexEmulator


class TestMemory(BackendContract):
    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        yield "memory:"


class TestSQLite(BackendContract):
    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        yield f"sqlite:///{folder / 'store.db'}"


class TestDexPulling(BackendContract):
    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        async with DexEmulator(dispatch_wait=60) as emulator:
            yield f"dex://{emulator.address}"


class TestDexListening(BackendContract):
    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        with socket.socket() as probe:  # a worker that comes back needs its address
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with DexEmulator() as emulator:
            yield f"dex://{emulator.address}?worker=127.0.0.1:{port}"
