"""LangGraph with its saver in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from langgraph.checkpoint.memory import InMemorySaver

from bench.contenders.driver import Turn, drive
from bench.contenders.langgraph_graph import turns_of
from bench.contenders.work import Work


@asynccontextmanager
async def _serve(_: Path, work: Work) -> AsyncIterator[Turn]:
    yield turns_of(work, InMemorySaver())


if __name__ == "__main__":
    drive(_serve)
