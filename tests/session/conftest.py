"""Fixtures: each test of the session runs on every backend, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.session.engine import BACKENDS, DEX, Engine, open_dex, open_local
from tests.session.watching import Watch

OpenEngine: TypeAlias = Callable[..., Awaitable[Engine]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every backend; one that is marked says why it cannot run on Dex."""
    if "backend_name" in metafunc.fixturenames:
        if metafunc.definition.get_closest_marker("local"):
            names = BACKENDS
        elif metafunc.definition.get_closest_marker("pulling"):
            names = (*BACKENDS, "dex-pull")
        else:
            names = (*BACKENDS, *DEX)
        metafunc.parametrize("backend_name", names)


@pytest.fixture
async def open_engine(backend_name: str, tmp_path: Path) -> AsyncIterator[OpenEngine]:
    """Opens an engine with backend options; workers and backend close after the test."""
    async with AsyncExitStack() as exits:

        async def open_with(**options: Any) -> Engine:
            if backend_name in DEX:
                return await exits.enter_async_context(open_dex(backend_name, **options))
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


@pytest.fixture
def watch() -> Watch:
    """Where an engine's spans, metrics and logs go."""
    return Watch()
