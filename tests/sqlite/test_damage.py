"""A store cut short or with flipped bytes: refused or read, never with the driver's error."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest

from dex_agents import AgentSessionClient, session_table
from dex_agents.errors import (
    FlowNotActiveError,
    FlowNotFoundError,
    StoreCorruptError,
    StoredRecordError,
    StoreError,
)
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot
from dex_agents_sqlite import SqliteBackend

SESSIONS = 12
PAGE = 4096


def flow():
    return session_table(ScriptedRunner(lambda turn: "answer " * 200), flow_type="Damage")


@pytest.fixture
async def store(tmp_path):
    """A store of some pages, with all that was acknowledged in the database itself."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend, backend.worker([flow()]):
        sessions = AgentSessionClient(backend, "Damage")
        for n in range(SESSIONS):
            await sessions.start_session(f"s{n}", "question " * 50)
        for n in range(SESSIONS):
            await wait_for_agent_snapshot(
                sessions, f"s{n}", lambda s: len(s.messages) == 2, description="the answer"
            )
    assert path.stat().st_size > 10 * PAGE
    return path


async def use(path):
    """Do what clients do; return the errors, which must be ours."""
    errors = []
    try:
        async with SqliteBackend(path) as backend:
            sessions = AgentSessionClient(backend, "Damage")
            for n in range(SESSIONS):
                for call in (
                    sessions.get_agent_snapshot,
                    sessions.read_history,
                    lambda name: sessions.send_user_message(name, "more"),
                ):
                    try:
                        await call(f"s{n}")
                    except (StoreError, FlowNotFoundError, FlowNotActiveError) as error:
                        errors.append(error)
            try:
                await backend.list_flows()
            except StoreError as error:
                errors.append(error)
    except StoreError as error:
        errors.append(error)
    return errors


@pytest.mark.parametrize("pages", [0.2, 1, 3, 10])
async def test_a_store_that_is_cut_short_is_refused(store, pages):
    """Whatever is missing, the error says that the store is damaged, or no store."""
    raw = store.read_bytes()
    store.write_bytes(raw[: int(pages * PAGE)])
    errors = await use(store)
    assert errors
    assert all(
        str(store) in str(error) for error in errors if not isinstance(error, FlowNotFoundError)
    )


async def test_a_header_of_noise_is_refused_and_left_alone(store):
    """The first page decides whether it is a store at all."""
    raw = bytearray(store.read_bytes())
    raw[:100] = bytes(100)
    store.write_bytes(raw)
    with pytest.raises(StoreError, match="not a dex-agents store"):
        async with SqliteBackend(store):
            pass
    assert store.read_bytes() == bytes(raw)


@pytest.mark.parametrize("seed", range(8))
async def test_a_page_of_noise_harms_nobody_but_its_readers(store, seed):
    """Noise in one inner page is an error of ours wherever it is met."""
    noise = random.Random(seed)
    raw = bytearray(store.read_bytes())
    page = noise.randrange(1, len(raw) // PAGE)
    raw[page * PAGE : (page + 1) * PAGE] = noise.randbytes(PAGE)
    store.write_bytes(raw)
    await asyncio.wait_for(use(store), 30)


@pytest.mark.parametrize("seed", range(8))
async def test_flipped_bytes_are_an_error_of_ours(store, seed):
    """Of a hundred flipped bytes each is passed over or told in our words."""
    noise = random.Random(seed)
    raw = bytearray(store.read_bytes())
    for _ in range(100):
        raw[noise.randrange(100, len(raw))] ^= 1 << noise.randrange(8)
    store.write_bytes(raw)
    await asyncio.wait_for(use(store), 30)


async def test_noise_in_the_log_is_passed_over(tmp_path):
    """SQLite takes the log up to the first frame that is not whole; what is before it is there."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Damage")
        await sessions.start_session("first")
        kept = path.with_name("s.db-wal").stat().st_size
        for n in range(20):
            await sessions.start_session(f"s{n}", "x" * 2000)
        shutil.copy(path, copy)
        raw = bytearray(path.with_name("s.db-wal").read_bytes())
    raw[kept + 100] ^= 0xFF
    copy.with_name("copy.db-wal").write_bytes(raw)
    async with SqliteBackend(copy) as backend:
        assert [each.flow_id for each in await backend.list_flows()] == ["first"]
        assert await AgentSessionClient(backend, "Damage").send_user_message("first", "on")


async def test_a_worker_says_that_its_store_is_damaged(store):
    """Whoever runs it can end it and restore the store."""
    raw = bytearray(store.read_bytes())
    raw[PAGE:] = b"\xff" * (len(raw) - PAGE)
    async with SqliteBackend(store) as backend:
        with store.open("r+b") as file:
            file.write(raw)
        backend._store._reads.pragma("cache_size", 0)
        backend._store._reads.execute("PRAGMA shrink_memory")
        async with backend.worker([flow()], grace_seconds=0.0) as worker:
            error = await asyncio.wait_for(worker.end_of_store(), 20)
    assert isinstance(error, StoreCorruptError)
    assert "Restore it from a backup" in str(error)


async def test_rows_that_contradict_each_other_are_damage(store):
    """A session whose columns and header disagree is told of, and the others go on."""
    async with SqliteBackend(store) as backend:
        execute = backend._store._writes.execute
        execute(
            "UPDATE flow SET header = CAST(json_set(CAST(header AS TEXT), '$.flow_type', 'Other') "
            "AS BLOB) WHERE flow_id = 's0'"
        )
        execute("DELETE FROM attribute WHERE flow_id = 's1' AND name LIKE 'AgentMessages/%1'")
        sessions = AgentSessionClient(backend, "Damage")
        with pytest.raises(StoredRecordError, match="message 1"):
            await sessions.get_agent_snapshot("s1")
        async with backend.worker([flow()]):
            for name in ("s0", "s2"):
                await sessions.send_user_message(name, "more")
            await wait_for_agent_snapshot(
                sessions, "s2", lambda s: len(s.messages) == 4, description="the answer"
            )
