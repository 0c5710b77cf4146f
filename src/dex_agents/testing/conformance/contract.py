"""`BackendContract`: one class of tests, of which every backend makes its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dex_agents.backend import Backend, open_backend
from dex_agents.testing.conformance.flows import FlowRules
from dex_agents.testing.conformance.lab import Lab
from dex_agents.testing.conformance.sessions import SessionRules

__all__ = ("BackendContract",)


class BackendContract(FlowRules, SessionRules):
    """Every rule of ``docs/semantics.md``, and the behaviour of a session, as tests.

    Make a class of it in a test module of your own, named ``Test...``, and say
    how to reach your backend:

        class TestMine(BackendContract):
            @asynccontextmanager
            async def serving(self, folder: Path) -> AsyncIterator[str]:
                yield f"mine:///{folder / 'store'}"

    The tests need pytest and pytest-asyncio, run in real time, and open the
    backend through its entry point. A test that needs a capability which the
    backend does not declare is skipped, and says so.
    """

    @pytest_asyncio.fixture
    async def url(self, tmp_path: Path) -> AsyncIterator[str]:
        """The URL of a backend of the test's own."""
        async with self.serving(tmp_path) as url:
            yield url

    @pytest_asyncio.fixture
    async def backend(self, url: str) -> AsyncIterator[Backend]:
        """The backend, open."""
        async with open_backend(url) as backend:
            yield backend

    @pytest_asyncio.fixture
    async def capable(self, backend: Backend, request: pytest.FixtureRequest) -> None:
        """Skip a test that needs what the backend cannot do."""
        needed = request.function.dex_agents_needs
        if needed not in backend.capabilities:
            pytest.skip(f"{backend.name} does not declare {needed.value}")

    @pytest_asyncio.fixture
    async def lab(self, backend: Backend) -> AsyncIterator[Lab]:
        """A flow whose handlers the test writes, with a worker."""
        lab = Lab(backend, "Lab")
        async with lab.worker():
            yield lab
