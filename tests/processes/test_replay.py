"""Sixty recorded conversations through a worker that is killed at twenty random moments."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dex_agents import AgentSessionClient
from dex_agents.testing import InvocationLog, wait_until
from dex_agents_sqlite import SqliteBackend

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "airline-trajectories.jsonl"
READS = (
    "get_user_details,get_reservation_details,search_direct_flight,search_onestop_flight,"
    "list_all_airports,calculate,think"
)
KILLS = 20
UNKNOWN = "It is unknown whether the tool call took effect"


def tool_call_count() -> int:
    lines = [json.loads(line) for line in DATA.read_text().splitlines()]
    return sum(len(m.get("tool_calls") or ()) for line in lines for m in line["messages"])


class Child:
    """A command line in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str, env: dict[str, str]) -> Child:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dex_agents.cli",
                *arguments,
                cwd=ROOT,
                env={**os.environ, **env},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def kill_unless(self, is_unfair: Callable[[], bool]) -> None:
        """Freeze it, look, and SIGKILL it; as long as that is unfair, let it go on."""
        while True:
            self.process.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            if not is_unfair():
                return await self.kill()
            self.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.communicate()


@pytest.mark.timeout(240)
@pytest.mark.skipif(not DATA.exists(), reason="the recorded conversations are not here")
async def test_recordings_survive_twenty_kills(tmp_path):
    """Transcripts are equal, no once-only effect is doubled, and no call is lost."""
    path = tmp_path / "s.db"
    store = f"sqlite:///{path}"
    log = InvocationLog(tmp_path / "calls.jsonl")
    env = {
        "DEX_AGENTS_REPLAY_FILE": str(DATA),
        "DEX_AGENTS_REPLAY_READS": READS,
        "DEX_AGENTS_REPLAY_LOG": str(tmp_path / "calls.jsonl"),
    }

    async def worker() -> Child:
        flow = "dex_agents.cli.replay:flow"
        return await Child.start("--store", store, "worker", flow, "--lease", "0.5", env=env)

    seed = random.randrange(10**6)
    moments = sorted(random.Random(seed).sample(range(1, tool_call_count() * 9 // 10), KILLS))
    arguments = ("replay", str(DATA), "--reads", READS, "--no-worker", "--allow-unknown", "--json")
    driver = await Child.start("--store", store, *arguments, env=env)
    current = await worker()
    try:
        for moment in moments:
            reached = f"tool call {moment} (seed {seed})"
            # Calls that were cut off before they ran are never logged, so there may be fewer.
            await wait_until(
                reached, lambda m=moment: len(log.entries()) >= m or has_ended(driver), timeout=60
            )
            if has_ended(driver):
                break
            await current.kill_unless(lambda: runs_last_attempt(path))
            current = await worker()
        output, _ = await asyncio.wait_for(driver.process.communicate(), 120)
    finally:
        await current.kill()
        await driver.kill()

    summary = json.loads(output)
    assert driver.process.returncode == 0, summary["differences"]
    assert summary["sessions"] == 60
    once_only = Counter(entry["key"] for entry in log.entries() if entry["effect"] != "read")
    assert set(once_only.values()) == {1}
    told = await tool_results(path)
    assert len(told) == summary["tool_calls"]
    known = sum(not text.startswith(UNKNOWN) for text in told)
    # What is known has run, and what has run is either known or among the unknown.
    effects = {entry["key"] for entry in log.entries()}
    assert known <= len(effects) <= len(told)


def has_ended(child: Child) -> bool:
    return child.process.returncode is not None


def runs_last_attempt(path: Path) -> bool:
    """Tell whether a Step that has lost two attempts runs its third: a kill would fail its turn."""
    query = """
        SELECT count(*) FROM execution
        WHERE CAST(execution AS TEXT) ->> 'attempt' >= 3
          AND CAST(execution AS TEXT) ->> 'is_running'
    """
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchone()[0] > 0


async def tool_results(path: Path) -> list[str]:
    """Return what the models were told by every tool call of every session."""
    told = []
    async with SqliteBackend(path) as backend:
        for flow in await backend.list_flows():
            sessions = AgentSessionClient(backend, flow.flow_type)
            after: int | None = 0
            while after is not None:
                page = await sessions.list_agent_messages(
                    flow.flow_id, after_sequence=after, limit=200
                )
                told += [m.framework_item["content"] for m in page.messages if m.role == "tool"]
                after = page.next_after_sequence
    return told
