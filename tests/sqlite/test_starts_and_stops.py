"""Workers that come and go on one file leave nothing behind, and a process may run out of files."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dex_agents import AgentSessionClient, ToolEffect, session_table
from dex_agents.errors import StoreUnavailableError
from dex_agents.executor import ChangeSignal
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_for_agent_snapshot, wait_until
from dex_agents_sqlite import SqliteBackend
from tests.sqlite.turns import answered


def flow():
    return session_table(ScriptedRunner(lambda turn: turn.turn_id), flow_type="Often")


def descriptors():
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


@pytest.mark.timeout(240)
async def test_a_hundred_workers_in_a_row_leave_nothing(tmp_path):
    """No file, thread, lease, owner or task is left, and each of them did its work."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as watcher:
        sessions = AgentSessionClient(watcher, "Often")
        await sessions.start_session("a")
        found = []
        for n in range(1, 101):
            await sessions.send_user_message("a", "hello")
            async with SqliteBackend(path) as backend, backend.worker([flow()]):
                await wait_for_agent_snapshot(
                    sessions,
                    "a",
                    lambda s, n=n: len(s.messages) >= 2 * n,
                    description="the answer",
                    timeout=60,
                )
            found.append((len(descriptors()), threading.active_count(), len(asyncio.all_tasks())))
        rows = watcher._store._reads.execute
        assert rows("SELECT count(*) FROM worker").get == 0
        assert rows("SELECT count(*) FROM flow WHERE owner IS NOT NULL").get == 0
    files, threads, tasks = zip(*found, strict=True)
    assert files[-1] <= files[9]  # what an earlier test has left may be closed meanwhile
    assert tasks[-1] == tasks[9]
    assert threads[-1] <= threads[9] + 1  # a slow disk makes the watcher commit in a thread


async def test_a_cancellation_at_the_moment_of_a_change_is_not_lost():
    """Whoever is stopped while it waits stops, even if what it waited for has just come."""
    signal = ChangeSignal()
    waiting = asyncio.create_task(signal.wait(60))
    await asyncio.sleep(0)
    signal.notify()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@contextmanager
def room_for(count):
    """Let this process open so many more files and no more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 20, limits[1]))
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(fillers.pop())
        yield
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_store_opens_or_says_that_there_are_too_many_open_files(tmp_path):
    """Whichever file is one too many, the error is ours, and nothing stays open."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        await AgentSessionClient(backend, "Often").start_session("a")
    before = len(descriptors())
    outcomes = []
    for count in range(12):
        with room_for(count):
            try:
                async with SqliteBackend(path) as backend:
                    sessions = AgentSessionClient(backend, "Often")
                    assert await sessions.send_user_message("a", "hello")
                outcomes.append("open")
            except StoreUnavailableError as error:
                assert "open files" in str(error)
                outcomes.append("refused")
        assert len(descriptors()) == before
    assert outcomes == sorted(outcomes, reverse=True)
    assert {*outcomes} == {"open", "refused"}


async def test_a_worker_lives_on_while_no_file_can_be_opened(tmp_path):
    """Its own files are open; a tool that needs one more fails as tools do, and is tried again."""
    numbers = []

    def tool(call):
        numbers.append(call.attempt)
        with Path(os.devnull).open() as file:
            return file.read()

    turn = [[ToolRequest("open", effect=ToolEffect.READ)], "done"]
    table = session_table(ScriptedRunner([turn], {"open": tool}), flow_type="Often")
    async with SqliteBackend(tmp_path / "s.db") as backend, backend.worker([table]):
        sessions = AgentSessionClient(backend, table)
        with room_for(0):
            await sessions.start_session("a", "open")
            await wait_until("a failed attempt", lambda: numbers)
            assert (await sessions.get_agent_snapshot("a")).tool_calls[0].status == "pending"
        snapshot = await answered(sessions, timeout=30)
    assert numbers[:2] == [1, 2]
    assert [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"] == [""]
