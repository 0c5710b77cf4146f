"""Real worker processes over one SQLite file, and clients of this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from dex_agents import AgentSessionClient
from dex_agents.testing import FileGate, InvocationLog, wait_for_agent_snapshot
from dex_agents_sqlite import SqliteBackend

ROOT = Path(__file__).resolve().parents[2]
LEASE_SECONDS = 1.0


class WorkerProcess:
    """One worker child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def wait(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)


class Workshop:
    """A store, the children that serve it, and what they really did."""

    def __init__(self, folder: Path, backend: SqliteBackend) -> None:
        self.folder = folder
        self.backend = backend
        self.path = backend.path
        self.sessions = AgentSessionClient(backend, "Gated")
        self.log = InvocationLog(folder / "invocations.jsonl")
        self.workers: list[WorkerProcess] = []

    def close_gate(self, name: str) -> FileGate:
        """Put up a gate at which children stop."""
        (self.folder / f"{name}.closed").touch()
        return FileGate(self.folder, name)

    def open_gate(self, name: str) -> None:
        """Take a gate away for whoever comes next."""
        (self.folder / f"{name}.closed").unlink()

    async def start_worker(self) -> WorkerProcess:
        """Start a child and wait until it serves."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.processes.worker",
            str(self.path),
            str(LEASE_SECONDS),
            cwd=ROOT,
            env={**os.environ, "DEX_TEST_STATE": str(self.folder)},
            stdout=asyncio.subprocess.PIPE,
        )
        worker = WorkerProcess(process)
        self.workers.append(worker)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert line.startswith(b"serving")
        return worker

    async def freeze(self, worker: WorkerProcess) -> None:
        """SIGSTOP a worker between two commits: inside one it would hold the file's lock."""
        while True:
            worker.signal(signal.SIGSTOP)
            await asyncio.to_thread(
                os.waitid, os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT
            )
            if not self._is_locked():
                return
            worker.signal(signal.SIGCONT)
            await asyncio.sleep(0.01)

    def _is_locked(self) -> bool:
        # By the library that the backend uses: another one that closes the same file in this
        # process would take the backend's locks away.
        with closing(apsw.Connection(str(self.path))) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                return True
            connection.execute("ROLLBACK")
            return False

    def effects(self, tool: str) -> list[dict]:
        return [entry for entry in self.log.entries("effect") if entry["tool"] == tool]

    async def settled(self, session_id: str, turns: int = 1):
        """Wait until the session has ended so many turns, and return its snapshot."""
        return await wait_for_agent_snapshot(
            self.sessions,
            session_id,
            lambda s: (
                s
                if s.state
                and s.state.turn_number == turns
                and s.state.status == "waiting_for_user_message"
                and not s.queued_message_count
                else None
            ),
            description=f"the end of turn {turns} of {session_id}",
            timeout=30,
        )

    async def finals(self, session_id: str) -> dict[str, int]:
        """Return the last attempt of every Step execution that ended."""
        history = await self.sessions.read_history(session_id)
        return {
            entry.step_execution_id: entry.final_attempt
            for entry in history
            if entry.event_type in ("step_execute_completed", "step_execute_failed")
        }


@pytest.fixture
async def workshop(tmp_path: Path):
    async with SqliteBackend(tmp_path / "sessions.db") as backend:
        shop = Workshop(tmp_path, backend)
        try:
            yield shop
        finally:
            for worker in shop.workers:
                await worker.kill()
                worker.process._transport.close()
