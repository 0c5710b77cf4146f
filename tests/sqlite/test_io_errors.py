"""When the disk fails to read, write or sync: told, never acknowledged, and over once it is mended.

A VFS under SQLite fails on command, at the place where the operating system would.
"""

# ruff: noqa: N802 - SQLite's names

from __future__ import annotations

import apsw
import pytest

from dex_agents import (
    AgentSessionClient,
)
from dex_agents.errors import StoreUnavailableError
from dex_agents.testing import wait_until
from dex_agents_sqlite import SqliteBackend
from tests.sqlite.turns import answered, writing_flow

ERRORS = {
    "xRead": apsw.SQLITE_IOERR_READ,
    "xWrite": apsw.SQLITE_IOERR_WRITE,
    "xSync": apsw.SQLITE_IOERR_FSYNC,
}


class Disk(apsw.VFS):
    """The system's files, of which some operations fail."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.failures = 0
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return _File(self, name, flags)

    def check(self, operation: str) -> None:
        if operation in self.broken:
            self.failures += 1
            raise apsw.exception_for(ERRORS[operation])


class _File(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self._disk = disk
        super().__init__("unix", name, flags)

    def xRead(self, amount, offset):
        self._disk.check("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):
        self._disk.check("xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags):
        self._disk.check("xSync")
        super().xSync(flags)


@pytest.fixture
def disk():
    before = apsw.vfs_names()[0]
    disk = Disk()
    yield disk
    apsw.set_default_vfs(before)
    disk.unregister()


@pytest.mark.parametrize("operation", ["xWrite", "xSync"])
async def test_what_cannot_be_written_is_not_acknowledged(tmp_path, disk, operation):
    """The caller is told; what was acknowledged before stays, and the next message gets through."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Disk")
        await sessions.start_session("a")
        assert await sessions.send_user_message("a", "kept")
        disk.broken.add(operation)
        with pytest.raises(StoreUnavailableError) as caught:
            await sessions.send_user_message("a", "refused")
        assert str(path) in str(caught.value)
        assert "SQLITE_IOERR" in str(caught.value)
        assert disk.failures
        disk.broken.clear()
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 1
        assert await sessions.send_user_message("a", "sent again")
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Disk")
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 2


async def test_what_cannot_be_read_is_an_error_of_ours(tmp_path, disk):
    """A read names the store; it works again as soon as the disk does."""
    path = tmp_path / "s.db"
    async with SqliteBackend(path) as backend:
        sessions = AgentSessionClient(backend, "Disk")
        await sessions.start_session("a")
        backend._store._reads.pragma("cache_size", 0)
        disk.broken.add("xRead")
        for read in (
            lambda: sessions.get_agent_snapshot("a"),
            lambda: sessions.read_history("a"),
            lambda: sessions.describe_session("a"),
            backend.list_flows,
        ):
            with pytest.raises(StoreUnavailableError) as caught:
                await read()
            assert str(path) in str(caught.value)
        disk.broken.clear()
        assert (await sessions.get_agent_snapshot("a")).queued_message_count == 0
        assert len(await backend.list_flows()) == 1


@pytest.mark.parametrize("operation", ["xRead", "xWrite", "xSync"])
async def test_a_result_outlives_a_disk_that_fails(tmp_path, disk, operation):
    """The effect happened, its record was refused for a while: it is stored, and runs once."""
    effects = []

    async def fail():
        disk.broken.add(operation)

    table = writing_flow(effects, fail)
    async with SqliteBackend(tmp_path / "s.db") as backend, backend.worker([table]):
        sessions = AgentSessionClient(backend, table)
        backend._store._writes.pragma("cache_size", 0)  # so that every commit reads
        await sessions.start_session("a", "write")
        await wait_until("some failures", lambda: disk.failures > 2)
        disk.broken.clear()
        snapshot = await answered(sessions, timeout=30)
    assert effects == ["a/turn-1/call-1"]
    told = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert told == ["x" * 50_000]
