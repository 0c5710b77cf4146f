"""LangGraph with `AsyncSqliteSaver`, which sets WAL itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.contenders.driver import Turn, drive
from bench.contenders.langgraph_graph import turns_of
from bench.contenders.work import Work


@asynccontextmanager
async def _serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
    async with AsyncSqliteSaver.from_conn_string(str(folder / "graph.db")) as saver:
        yield turns_of(work, saver)


if __name__ == "__main__":
    drive(_serve)
