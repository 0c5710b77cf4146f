"""When the file is deleted or replaced while it is open: everybody is told, nobody is lied to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from dex_agents import AgentSessionClient, ToolEffect, session_table
from dex_agents.errors import StoreUnavailableError
from dex_agents.table import FlowTable
from dex_agents.telemetry import TelemetryOptions
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_for_agent_snapshot, wait_until
from dex_agents_sqlite import SqliteBackend, connection, files, store

LOST = "was deleted or replaced"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """The files are looked at more often, so that tests are quick."""
    monkeypatch.setattr(store, "_FILES_POLL_SECONDS", 0.02)


def flow():
    return session_table(ScriptedRunner(lambda turn: f"turn {turn.turn_id}"), flow_type="File")


async def new_store(path: Path, session_id: str) -> None:
    async with SqliteBackend(path) as backend:
        await AgentSessionClient(backend, "File").start_session(session_id)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    (path.parent / "other.db").replace(path)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.fixture
async def path(tmp_path):
    """A store with session ``a``, and ``other.db`` beside it with session ``b``."""
    folder = tmp_path / "folder"
    folder.mkdir()
    await new_store(folder / "other.db", "b")
    await new_store(folder / "s.db", "a")
    return folder / "s.db"


async def is_refused(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except StoreUnavailableError as error:
        return LOST in str(error)
    return False


LOSSES = pytest.mark.parametrize("lose", [delete, replace, move_folder])


@LOSSES
async def test_nothing_is_acknowledged_once_the_file_is_gone(path, monkeypatch, lose):
    """The very next write is refused, however long ago the files were looked at."""
    monkeypatch.setattr(store, "_FILES_POLL_SECONDS", 3600.0)
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        assert await sessions.send_user_message("a", "kept")
        lose(path)
        with pytest.raises(StoreUnavailableError, match=LOST) as caught:
            await sessions.send_user_message("a", "lost")
        assert str(path) in str(caught.value)
        assert "End every process" in str(caught.value)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.start_session("c")


@LOSSES
async def test_reads_are_refused_soon(path, lose):
    """A client that only reads is told too, without a write that finds out."""
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        lose(path)
        await wait_until(
            "a refused read", lambda: is_refused(lambda: sessions.get_agent_snapshot("a"))
        )
        for read in (
            backend.list_flows,
            lambda: sessions.describe_session("a"),
            lambda: sessions.read_history("a"),
            lambda: sessions.list_agent_messages("a"),
        ):
            assert await is_refused(read)


async def test_a_commit_into_a_deleted_file_does_not_count(path, monkeypatch):
    """A file that goes away between the write and the disk's answer is no durable store."""
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        commit = backend._store._writer._commit

        def delete_and_commit():
            path.unlink()
            return commit()

        monkeypatch.setattr(backend._store._writer, "_commit", delete_and_commit)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.send_user_message("a", "lost")


async def test_a_replacement_is_not_written_to(path):
    """What the worker and its clients still try leaves the new file as it was, and the log too."""
    log = path.with_name("s.db-wal")
    async with SqliteBackend(path) as backend, backend.worker([flow()], grace_seconds=0.0):
        sessions = AgentSessionClient(backend, "File")
        await sessions.send_user_message("a", "hello")
        await wait_for_agent_snapshot(
            sessions, "a", lambda s: len(s.messages) == 2, description="the answer"
        )
        replace(path)
        before = (path.read_bytes(), log.read_bytes())
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.send_user_message("a", "lost")
    assert (path.read_bytes(), log.read_bytes()) == before


@asynccontextmanager
async def serving(path: Path, table: FlowTable, log: CapturingLogger, **options: float):
    backend = SqliteBackend(path, telemetry=TelemetryOptions(logger=log))
    async with backend, backend.worker([table], grace_seconds=0.0, **options) as worker:
        yield backend, worker


async def test_a_worker_says_once_that_its_file_is_gone(path):
    """One line, though handlers end, leases are renewed and sessions try again; it stays up."""
    ends = [asyncio.Event(), asyncio.Event()]

    async def wait(call):
        await ends[int(call.tool_call.arguments)].wait()
        return "done"

    turn = [[ToolRequest("wait", n, effect=ToolEffect.READ) for n in range(2)], "done"]
    table = session_table(ScriptedRunner([turn], {"wait": wait}), flow_type="File")
    log = CapturingLogger()
    async with serving(path, table, log, lease_seconds=0.1) as (backend, worker):
        sessions = AgentSessionClient(backend, "File")
        await sessions.start_session("c", "hello")
        await wait_until("two tools", lambda: len(worker.running()) == 2)
        delete(path)
        ends[0].set()
        await wait_until("a refused result", lambda: len(worker.running()) == 1)
        await wait_until("a line", lambda: lost_lines(log))
        ends[1].set()
        await wait_until("another", lambda: not worker.running())
        await asyncio.sleep(0.3)  # leases and new tries, which must say nothing
        assert await is_refused(lambda: sessions.get_agent_snapshot("c"))
    assert len(lost_lines(log)) == 1


def lost_lines(log):
    return [call for call in log.calls if LOST in call.kwargs.get("error", "")]


async def test_an_idle_worker_says_so_too(path):
    """Nobody has to call for the line to be logged."""
    log = CapturingLogger()
    async with serving(path, flow(), log):
        await asyncio.sleep(0.1)  # until it has written its lease and rests
        delete(path)
        await wait_until("a line", lambda: lost_lines(log), timeout=2.0)  # a look is 5 s away
    (line,) = lost_lines(log)
    assert (line.method_name, line.args) == ("warning", ("dex_agents.store.unavailable",))


async def test_whoever_follows_events_is_told(path):
    """A follower ends with the error instead of waiting for ever."""
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")

        async def follow():
            async for _ in sessions.follow_events("a"):
                pass

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        delete(path)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await asyncio.wait_for(following, 5)


async def test_a_lost_file_stays_lost_when_it_comes_back(path):
    """Nobody knows who wrote to it meanwhile; a store opened anew has all that was acknowledged."""
    away = path.with_name("away.db")
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        await sessions.send_user_message("a", "kept")
        path.rename(away)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.send_user_message("a", "refused")
        away.rename(path)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.send_user_message("a", "refused")
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 1
        assert await sessions.send_user_message("a", "taken")


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@pytest.mark.parametrize("name", ["s.db", "link.db"])
async def test_the_files_beside_it_count(path, name, suffix):
    """A log that was tidied away holds what was acknowledged; the error names it."""
    path.with_name("link.db").symlink_to(path)
    beside = path.with_name(path.name + suffix)
    async with SqliteBackend(path.with_name(name)) as backend:
        sessions = AgentSessionClient(backend, "File")
        beside.unlink()
        await wait_until(
            "a refused read", lambda: is_refused(lambda: sessions.get_agent_snapshot("a"))
        )
        with pytest.raises(StoreUnavailableError, match=suffix):
            await sessions.send_user_message("a", "lost")


async def test_a_link_that_leads_elsewhere_is_a_replacement(path, tmp_path):
    """A store that is named by a link is watched at both ends."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteBackend(link) as backend:
        sessions = AgentSessionClient(backend, "File")
        assert await sessions.send_user_message("a", "kept")
        await asyncio.sleep(0.05)  # some looks, which must find nothing wrong
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 1
        new = tmp_path / "new"
        new.symlink_to(path.with_name("other.db"))
        new.replace(link)
        with pytest.raises(StoreUnavailableError, match=LOST):
            await sessions.send_user_message("a", "lost")


async def test_another_folder_of_the_process_is_no_loss(path, tmp_path, monkeypatch):
    """A relative path means the folder that the process was in when it opened the store."""
    monkeypatch.chdir(path.parent)
    async with SqliteBackend("s.db") as backend:
        sessions = AgentSessionClient(backend, "File")
        os.chdir(tmp_path)
        assert await sessions.send_user_message("a", "kept")
        await asyncio.sleep(0.05)  # some looks
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 1


async def test_what_cannot_be_told_is_no_loss(path, monkeypatch):
    """A folder that may no longer be entered does not make its file a lost one."""
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")

        def forbidden(name):
            raise PermissionError(name)

        monkeypatch.setattr(files.os, "stat", forbidden)
        assert await sessions.send_user_message("a", "kept")
        await asyncio.sleep(0.05)  # some looks
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 1
        monkeypatch.undo()


async def test_a_file_that_is_replaced_while_it_is_opened_is_refused(path, monkeypatch):
    """The two connections of a store never lead to two files."""
    connect = connection.connect
    calls = []

    def connect_and_replace(where):
        found = connect(where)
        if not calls:
            replace(path)
        calls.append(where)
        return found

    monkeypatch.setattr(connection, "connect", connect_and_replace)
    with pytest.raises(StoreUnavailableError, match="replaced"):
        async with SqliteBackend(path):
            pass


async def test_processes_that_come_and_go_are_no_loss(path):
    """Others open and close the same file, checkpoint and vacuum it: it is the same file."""
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "File")
        for n in range(3):
            await new_store(path, f"new-{n}")
        async with SqliteBackend(path) as other:
            other._store._writes.execute("VACUUM")
            other._store._writes.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await asyncio.sleep(0.05)  # some looks
        assert await sessions.send_user_message("a", "kept")
        assert len(await backend.list_flows()) == 4
