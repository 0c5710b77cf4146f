"""The SQLite file: created safely, refused when it is somebody else's, readable for a person."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from dex_agents import AgentSessionClient, session_table
from dex_agents.errors import (
    FlowAlreadyStartedError,
    FlowNotFoundError,
    StoreCorruptError,
    StoreForeignError,
    StoreNewerError,
    StoreUnavailableError,
)
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot
from dex_agents_sqlite import SqliteBackend


def flow():
    return session_table(ScriptedRunner(lambda turn: f"turn {turn.turn_id}"), flow_type="File")


def open_to_all(folder: Path) -> None:
    """Let everybody enter a folder of pytest's, whatever the depth."""
    while folder != Path(tempfile.gettempdir()):
        folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent


def bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None  # no file, or none that may be read


async def refused(path, error) -> str:
    """Open a store that must be refused; return what was said. The file must stay as it was."""
    before = bytes_of(path)
    with pytest.raises(error) as caught:
        async with SqliteBackend(path):
            pass
    assert (bytes_of(path)) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


@contextmanager
def without_root():
    """Do something as a user whom permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_the_files_are_for_their_owner_alone(tmp_path):
    """The database and the files beside it have mode 0600, whatever the umask says."""
    old = os.umask(0)
    try:
        path = tmp_path / "s.db"
        async with SqliteBackend(path) as backend:
            await AgentSessionClient(backend, "File").start_session("a")
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(old)
    assert set(modes) == {"s.db", "s.db-wal", "s.db-shm"}
    assert set(modes.values()) == {0o600}


async def test_a_session_outlives_its_process(tmp_path):
    """What one backend wrote, the next one reads and goes on with."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        await AgentSessionClient(backend, "File").start_session("a", "hello")
    async with SqliteBackend(path) as backend, backend.worker([flow()]):
        sessions = AgentSessionClient(backend, "File")
        await wait_for_agent_snapshot(
            sessions, "a", lambda s: len(s.messages) == 2, description="the answer"
        )
    async with SqliteBackend(path) as backend:
        snapshot = await AgentSessionClient(backend, "File").get_agent_snapshot("a")
    assert [m.text for m in snapshot.messages] == ["hello", "turn turn-1"]


async def test_an_operator_can_read_it(tmp_path):
    """Every value is JSON text in plain tables."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend, backend.worker([flow()]):
        sessions = AgentSessionClient(backend, "File")
        await sessions.start_session("a", "hello")
        await wait_for_agent_snapshot(
            sessions, "a", lambda s: len(s.messages) == 2, description="the answer"
        )
    plain = sqlite3.connect(path)
    try:
        query = (
            "SELECT json_extract(value, '$.text') FROM attribute WHERE name LIKE ? ORDER BY name"
        )
        assert plain.execute(query, ("AgentMessages/%",)).fetchall() == [
            ("hello",),
            ("turn turn-1",),
        ]
        assert plain.execute("SELECT status FROM flow").fetchall() == [("running",)]
    finally:
        plain.close()


async def test_a_folder_is_refused(tmp_path):
    """A store that is a folder is named as such."""
    assert "it is a folder" in await refused(tmp_path, StoreForeignError)


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000])
async def test_a_file_that_is_no_database_is_refused(tmp_path, content):
    """Text or noise is not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert "no SQLite database" in await refused(path, StoreForeignError)


async def test_another_programs_database_is_refused(tmp_path):
    """A SQLite database without our mark is left untouched."""
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE flow (x)")
    other.commit()
    other.close()
    assert "another program's database" in await refused(path, StoreForeignError)


async def test_a_newer_schema_is_refused(tmp_path):
    """A store of a later version is left untouched; the message says to upgrade."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path):
        pass
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 7")
    newer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    newer.close()
    message = await refused(path, StoreNewerError)
    assert "schema version 7" in message
    assert "Upgrade" in message


async def test_a_damaged_file_is_refused(tmp_path):
    """Overwritten pages are called damage, and not repaired silently."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        for n in range(50):
            await AgentSessionClient(backend, "File").start_session(f"a{n}", "x" * 500)
    raw = bytearray(path.read_bytes())
    raw[100:] = b"\xff" * (len(raw) - 100)
    path.write_bytes(raw)
    await refused(path, StoreCorruptError)


async def test_a_folder_that_is_not_there_is_refused(tmp_path):
    """No folders are created on the way."""
    await refused(tmp_path / "missing" / "s.db", StoreUnavailableError)
    assert not (tmp_path / "missing").exists()


async def test_a_read_only_folder_is_refused(tmp_path):
    """Without permission to write there is a clear error and no file."""
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    open_to_all(tmp_path)
    with without_root():
        assert "Permission denied" in await refused(folder / "s.db", StoreUnavailableError)
    assert not list(folder.iterdir())


async def test_a_folder_that_may_not_be_entered_is_refused(tmp_path):
    """It cannot even be told whether the file is there; that is the same clear error."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    open_to_all(tmp_path)
    with without_root():
        assert "Permission denied" in await refused(folder / "s.db", StoreUnavailableError)


async def test_a_store_that_is_not_open_says_so(tmp_path):
    """Forgetting `async with` is a clear error."""
    backend = SqliteBackend(tmp_path / "s.db")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await backend.describe_flow("a")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await AgentSessionClient(backend, "File").start_session("a")


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://host/s.db"])
def test_a_url_without_a_path_says_how_it_should_look(url):
    """The message shows the form."""
    with pytest.raises(StoreForeignError, match="sqlite:///PATH"):
        SqliteBackend.from_url(url)


async def test_two_clients_cannot_start_one_session_twice(tmp_path):
    """Across processes and within one, an ID is taken once."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as one, SqliteBackend(path) as two:
        await AgentSessionClient(one, "File").start_session("a")
        with pytest.raises(FlowAlreadyStartedError, match="'a'"):
            await AgentSessionClient(two, "File").start_session("a")
        with pytest.raises(FlowNotFoundError, match="'b'"):
            await AgentSessionClient(two, "File").send_user_message("b", "hello")
        assert [flow.flow_id for flow in await two.list_flows()] == ["a"]


OPENER = """
import asyncio, sys
from dex_agents import AgentSessionClient
from dex_agents_sqlite import SqliteBackend

async def main(path, name):
    async with SqliteBackend(path) as backend:
        await AgentSessionClient(backend, "File").start_session(name)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_may_create_one_store_together(tmp_path):
    """Whoever comes first writes the schema; all of them can use the store."""
    path = tmp_path / "s.db"
    names = [f"p{n}" for n in range(6)]
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", OPENER, str(path), name)
        for name in names
    ]
    assert [await process.wait() for process in processes] == [0] * 6
    async with SqliteBackend(path) as backend:
        assert sorted(flow.flow_id for flow in await backend.list_flows()) == names
