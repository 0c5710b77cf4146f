"""Stores of earlier versions stay readable, and their sessions go on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from dex_agents import AgentSessionClient
from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_sqlite import SqliteBackend
from tests.pure.golden_records import holds
from tests.sqlite.golden_store import FOLDER, flow, snapshots

STORES = sorted(FOLDER.glob("schema-*.sqlite"))
TABLES = {"flow": "header", "execution": "execution", "history": "entry"}


@pytest.fixture(params=STORES, ids=[store.stem for store in STORES])
def store(request, tmp_path):
    """A copy of a store that an earlier version wrote, and what it held."""
    path = shutil.copy(request.param, tmp_path / "store.db")
    return path, json.loads(request.param.with_suffix(".json").read_text())


async def test_an_earlier_store_is_read(store):
    """Every session, message, record, event and line of history."""
    path, expected = store
    async with SqliteBackend(path) as backend:
        assert holds(await snapshots(AgentSessionClient(backend, "Golden")), expected)


async def test_what_a_later_version_adds_is_ignored(store):
    """Fields that this version does not know do no harm."""
    path, expected = store
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, column in TABLES.items():
            connection.execute(
                f"UPDATE {table} SET {column} = CAST("
                f"json_set(CAST({column} AS TEXT), '$.from_the_future', 1) AS BLOB)"
            )
        connection.execute(
            "UPDATE attribute SET value = CAST(json_set(CAST(value AS TEXT), "
            "'$.from_the_future', 1) AS BLOB) WHERE CAST(value AS TEXT) LIKE '{%'"
        )
    async with SqliteBackend(path) as backend:
        assert holds(await snapshots(AgentSessionClient(backend, "Golden")), expected)


async def test_earlier_sessions_go_on(store):
    """What waited for an answer, for a message or for a worker gets it."""
    path, _ = store
    async with SqliteBackend(path) as backend:
        table = flow()
        sessions = AgentSessionClient(backend, table)
        async with backend.worker([table]):
            await sessions.resolve_interrupt("asking", "turn-1.call-1", approved=True)
            await sessions.send_user_message("failed", "go")
            for name, turns in (("asking", 1), ("failed", 2), ("queued", 2)):
                snapshot = await wait_for_agent_snapshot(
                    sessions,
                    name,
                    lambda seen, turns=turns: (
                        seen
                        if seen.state
                        and seen.state.turn_number == turns
                        and seen.state.status == "waiting_for_user_message"
                        else None
                    ),
                    description=f"{name} going on",
                )
                assert snapshot.messages[-1].text == "done"
