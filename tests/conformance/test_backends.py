"""Every backend keeps every rule."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dex_agents.testing import BackendContract
from dex_agents_dex.emulator import DexEmulator
from tests.addresses import free_address


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
        async with DexEmulator(store=f"sqlite:///{folder}/dex.db", dispatch_wait=60) as emulator:
            yield f"dex://{emulator.address}"


class TestDexListening(BackendContract):
    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator[str]:
        address = folder / "worker"  # one that comes back is looked for where it was
        if not address.exists():
            address.write_text(free_address())
        async with DexEmulator(store=f"sqlite:///{folder}/dex.db") as emulator:
            yield f"dex://{emulator.address}?worker={address.read_text()}"
