"""When the disk refuses: callers are told, workers keep what was done, nothing is half-written."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from dex_agents import AgentSessionClient, session_table
from dex_agents.errors import StoreUnavailableError
from dex_agents.executor import handle
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot, wait_until
from dex_agents_sqlite import SqliteBackend, writer
from tests.sqlite.turns import answered, writing_flow

SMALLEST = 1  # SQLite never lowers the limit below the present size: no page more


def full(backend, pages=SMALLEST):
    """Let the disk be full: SQLite may not make the file any larger."""
    backend._store._writes.pragma("max_page_count", pages)


def heal(backend):
    backend._store._writes.pragma("max_page_count", 1_000_000)


async def test_a_result_outlives_a_full_disk(tmp_path):
    """The effect happened and its record was refused: once there is room it is stored, once."""
    effects = []
    async with SqliteBackend(tmp_path / "s.db") as backend:

        async def fill():
            full(backend)

        flow = writing_flow(effects, fill)
        async with backend.worker([flow]):
            sessions = AgentSessionClient(backend, flow)
            await sessions.start_session("a", "write")
            await wait_until("the effect", lambda: effects)
            await asyncio.sleep(0.2)  # some refused commits
            assert (await sessions.get_agent_snapshot("a")).tool_calls[0].status == "pending"
            heal(backend)

            snapshot = await answered(sessions)

    assert effects == ["a/turn-1/call-1"]
    tool = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert tool == ["x" * 50_000]


async def test_a_caller_is_told_that_the_disk_is_full(tmp_path):
    """A message that could not be stored is an error, and is not there afterwards."""
    async with SqliteBackend(tmp_path / "s.db") as backend:
        flow = writing_flow([], lambda: asyncio.sleep(0))
        sessions = AgentSessionClient(backend, flow)
        await sessions.start_session("a")
        async with backend.worker([flow]):
            await wait_until("an idle session", lambda: (h := backend._resident("a")) and h.is_idle)
            full(backend)
            with pytest.raises(StoreUnavailableError, match="full"):
                await sessions.send_user_message("a", "y" * 50_000)
            with pytest.raises(StoreUnavailableError, match="full"):
                await sessions.start_session("b", "z" * 50_000)
            heal(backend)
            assert await sessions.send_user_message("a", "small")

            snapshot = await answered(sessions)

            assert snapshot.messages[0].text == "small"
            assert [each.flow_id for each in await backend.list_flows()] == ["a"]


async def test_one_request_too_large_fails_alone(tmp_path):
    """What waits in the same group as the request that spoils it is stored all the same."""
    async with SqliteBackend(tmp_path / "s.db") as backend:
        sessions = AgentSessionClient(backend, "Writer")
        await sessions.start_session("first")
        pages = backend._store._writes.pragma("page_count")
        full(backend, pages + 8)
        results = await asyncio.gather(
            sessions.start_session("big", "y" * 200_000),
            *(sessions.start_session(f"small-{n}") for n in range(3)),
            return_exceptions=True,
        )
        assert isinstance(results[0], StoreUnavailableError)
        assert results[1:] == [None, None, None]


async def test_a_lock_of_another_program_is_waited_for(tmp_path):
    """A short lock costs time, and nothing else; the loop goes on meanwhile."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Writer")
        await sessions.start_session("a")
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        sending = asyncio.create_task(sessions.send_user_message("a", "hello"))
        await asyncio.sleep(0.1)
        assert not sending.done()
        other.execute("COMMIT")
        other.close()
        assert await asyncio.wait_for(sending, 5)


async def test_a_lock_that_stays_is_an_error(tmp_path, monkeypatch):
    """After a while the caller is told that another program keeps the file locked."""
    monkeypatch.setattr(writer, "_LOCK_PATIENCE_SECONDS", 0.1)
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Writer")
        await sessions.start_session("a")
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            await sessions.send_user_message("a", "hello")
        other.execute("COMMIT")
        other.close()
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 0


@pytest.mark.parametrize("quick", [0.0, 1.0], ids=["in a thread", "in the loop"])
async def test_both_ways_to_commit_keep_the_order(tmp_path, monkeypatch, quick):
    """A slow disk is written from a thread, a quick one from the loop; sessions do not notice."""
    monkeypatch.setattr(writer, "_QUICK_COMMIT_SECONDS", quick - 0.5)
    effects = []
    flow = writing_flow(effects, lambda: asyncio.sleep(0))
    async with SqliteBackend(tmp_path / "s.db") as backend, backend.worker([flow]):
        sessions = AgentSessionClient(backend, flow)
        names = [f"s{n}" for n in range(10)]
        await asyncio.gather(*(sessions.start_session(name, "write") for name in names))
        for name in names:
            snapshot = await answered(sessions, name)
            assert [m.sequence for m in snapshot.messages] == [1, 2, 3, 4]
    assert len(effects) == 10


async def test_nobody_waits_for_a_worker_that_ends_while_the_disk_is_full(tmp_path, monkeypatch):
    """A request that could not be written is refused when the worker ends."""
    monkeypatch.setattr(handle, "_RETRY_SECONDS", (60.0,))

    def answer(turn):
        return "x" * 200_000

    table = session_table(ScriptedRunner(answer), flow_type="Writer")
    async with SqliteBackend(tmp_path / "s.db") as backend:
        sessions = AgentSessionClient(backend, table)
        async with backend.worker([table], grace_seconds=0.0):
            await sessions.start_session("a")
            await wait_for_agent_snapshot(
                sessions, "a", lambda seen: seen.state, description="the start"
            )
            full(backend)
            with pytest.raises(StoreUnavailableError):
                await sessions.send_user_message("a", "y" * 50_000)
            # The worker waits now before it tries again, and keeps what is asked of it.
            asked = asyncio.create_task(sessions.send_user_message("a", "y" * 50_000))
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(asked, 5)
        heal(backend)
