"""Fixtures: each test of the session runs on every local backend, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.session.engine import BACKENDS, Engine, open_local

OpenEngine: TypeAlias = Callable[..., Awaitable[Engine]]


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """The local backend that a test runs on."""
    return str(request.param)


@pytest.fixture
async def open_engine(backend_name: str, tmp_path: Path) -> AsyncIterator[OpenEngine]:
    """Opens an engine with backend options; workers and backend close after the test."""
    async with AsyncExitStack() as exits:

        async def open_with(**options: Any) -> Engine:
            backend, clock = open_local(backend_name, tmp_path, **options)
            await exits.enter_async_context(backend)
            engine = Engine(backend, clock)
            exits.push_async_callback(engine.retire)
            return engine

        yield open_with


@pytest.fixture
async def engine(open_engine: OpenEngine) -> Engine:
    """An open backend in virtual time; ``serve`` starts a worker."""
    return await open_engine()
