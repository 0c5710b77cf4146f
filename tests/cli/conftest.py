"""The command line in this process and in others, over a store of the test's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from dex_agents import AgentSessionClient, AgentSnapshot, open_backend
from dex_agents.cli.app import app
from dex_agents.testing import wait_for_agent_snapshot
from tests.cli.agent import FLOW_TYPE, STATE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


class CommandLine:
    """Runs ``dex-agents`` on one store."""

    def __init__(self, folder: Path, exits: ExitStack) -> None:
        self.folder = folder
        self.path = folder / "store.db"
        self.store = f"sqlite:///{self.path}"
        self._exits = exits

    def __call__(self, *arguments: str, status: int = 0) -> Result:
        """Run a command in this process, and check how it ends."""
        result = CliRunner().invoke(app, ["--store", self.store, *arguments])
        assert result.exit_code == status, result.output
        return result

    def json(self, *arguments: str) -> Any:
        """Run a command with ``--json`` and return what it prints."""
        return msgspec.json.decode(self(*arguments, "--json").stdout)

    def fails(self, *arguments: str, status: int = 1) -> str:
        """Run a command that must fail, and return what it says about that."""
        result = self(*arguments, status=status)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return result.stderr

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own, which the test's end kills.

        Without a ``store`` of its own it works on the test's; None names none.
        """
        store = options.pop("store", self.store)
        chosen = [] if store is None else ["--store", store]
        env = {**os.environ, STATE_VARIABLE: str(self.folder), **options.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, "-m", "dex_agents.cli", *chosen, *arguments],
            cwd=ROOT,
            env=env,
            text=True,
            **{**pipes, **options},
        )
        self._exits.callback(_end, process)
        return process

    def worker(self, *options: str, flow: str = "tests.cli.agent:flow") -> subprocess.Popen[str]:
        """Start a worker process, and return once it serves."""
        process = self.process("worker", flow, *options)
        assert process.stdout is not None
        line = process.stdout.readline()
        if "serves" not in line:
            pytest.fail(f"{line}{process.communicate()[1]}")
        return process

    def until(self, session: str, predicate: Callable[[AgentSnapshot], Any]) -> Any:
        """Wait for something in a session's snapshot."""

        async def wait() -> Any:
            async with open_backend(self.store) as backend:
                client = AgentSessionClient(backend, FLOW_TYPE)
                return await wait_for_agent_snapshot(
                    client, session, predicate, description="the session to get there"
                )

        return asyncio.run(wait())

    def until_answered(self, session: str, turn: int = 1) -> AgentSnapshot:
        """Wait for the end of a turn."""
        return self.until(session, lambda snapshot: _has_answered(snapshot, turn))


def _has_answered(snapshot: AgentSnapshot, turn: int) -> AgentSnapshot | None:
    state = snapshot.state
    if state is None or state.turn_number < turn or state.status != "waiting_for_user_message":
        return None
    return snapshot


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEX_AGENTS_STORE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    with ExitStack() as exits:
        yield CommandLine(tmp_path, exits)
