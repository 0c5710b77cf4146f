"""Every backend in virtual time for most cases, and real workers that a case may kill."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dex_agents_sqlite import SqliteBackend
from tests.dex.conftest import Gated
from tests.processes.conftest import ROOT, Workshop
from tests.session.conftest import engine, open_engine, pytest_generate_tests

__all__ = ("engine", "open_engine", "pytest_generate_tests")


class Site:
    """Worker processes of the gated flow on one engine, and a few words for the cases."""

    def __init__(self, shop: Workshop | Gated, start: Any, url: str) -> None:
        self.shop = shop
        self.url = url
        self.sessions = shop.sessions
        self.log = shop.log
        self.settled = shop.settled
        self.finals = shop.finals
        self.close_gate = shop.close_gate
        self.open_gate = shop.open_gate
        self.start_worker = start

    async def kill(self, worker: Any) -> None:
        """SIGKILL a worker; when this returns, it is gone."""
        gone = worker.kill()
        if inspect.isawaitable(gone):
            await gone

    def effects(self, session_id: str) -> list[str]:
        """Return which tools took effect in a session, as often as they did."""
        effects = self.log.entries("effect")
        return [e["tool"] for e in effects if e["key"].startswith(f"{session_id}/")]

    def model_calls(self, session_id: str) -> int:
        """Return how many model calls a session has made, repeated ones too."""
        return sum(each["session"] == session_id for each in self.log.entries("model"))

    @asynccontextmanager
    async def forgotten(self) -> AsyncIterator[None]:
        """Let go of the store while the block runs, and serve it with a new worker afterwards.

        On Dex the server stays, and its RPCs need a worker: that starts with the block.
        """
        if isinstance(self.shop, Gated):
            await self.start_worker()
            yield
            return
        await self.shop.backend.__aexit__(None, None, None)
        yield
        await self.shop.backend.__aenter__()
        await self.start_worker()

    async def run(self, *command: str) -> str:
        """Run Python in a process of its own, and return what it prints once it has succeeded."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 0, output
        return output.decode()

    async def command(self, *words: str) -> str:
        """Run the command line on this engine, as an operator does, in a process of its own."""
        return await self.run("-m", "dex_agents.cli", "--store", self.url, *words)


@pytest.fixture
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """Real workers on SQLite and on Dex; a test may choose among them indirectly."""
    name = getattr(request, "param", "sqlite")
    async with AsyncExitStack() as exits:
        if name == "sqlite":
            backend = await exits.enter_async_context(SqliteBackend(tmp_path / "sessions.db"))
            workshop = Workshop(tmp_path, backend)
            exits.push_async_callback(_end_workers, workshop)
            yield Site(workshop, workshop.start_worker, f"sqlite:///{workshop.path}")
        else:
            gated = await exits.enter_async_context(Gated(tmp_path, name.removeprefix("dex-")))
            url = f"dex://{gated.stack.server_address}"
            yield Site(gated, gated.stack.start_worker, url)


async def _end_workers(workshop: Workshop) -> None:
    for worker in workshop.workers:
        await worker.kill()
        worker.process._transport.close()
