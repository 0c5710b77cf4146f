"""DBOS on SQLite: a workflow for each turn, a step for each model and tool call.

The file is in WAL mode, which DBOS does not set by itself, and twice as fast.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from dbos import DBOS, DBOSConfig

from bench.contenders.driver import Turn, drive
from bench.contenders.work import PAYLOAD, Work


@asynccontextmanager
async def _serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
    path = folder / "dbos.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    config = DBOSConfig(name="bench", system_database_url=f"sqlite:///{path}", log_level="ERROR")
    DBOS(config=config)

    @DBOS.step()
    async def ask(text: str) -> list[int]:  # noqa: ARG001 - stored with the workflow
        return work.ask()

    @DBOS.step()
    async def look(at: int) -> str:
        return work.look(at)

    @DBOS.step()
    async def answer(results: list[str]) -> str:  # noqa: ARG001 - as a model would get them
        return work.answer()

    @DBOS.workflow()
    async def one_turn(text: str) -> str:
        calls = await ask(text)
        return await answer(await asyncio.gather(*map(look, calls)))

    DBOS.launch()

    async def turn(_: str) -> None:
        await one_turn(PAYLOAD)

    try:
        yield turn
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    drive(_serve)
