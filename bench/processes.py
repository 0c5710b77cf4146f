"""What do more worker processes on one file bring? Steps per second of 64 sessions.

A worker is ``python -m bench.processes FILE``, and ends with its standard input.
The client is this process. The clock runs from its first message to the last
commit in the sessions' own history.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.contenders.work import SESSIONS, STEPS_PER_TURN
from bench.workload import Runner, turn
from dex_agents import AgentSessionClient, session_table
from dex_agents.testing import wait_until
from dex_agents_sqlite import SqliteBackend

__all__ = ("steps_per_second",)

_PATIENCE_SECONDS = 120.0


async def steps_per_second(workers: int, turns: int) -> float:
    """Return the Steps per second of so many workers together, each session so many turns."""
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        file = Path(folder) / "shared.db"
        async with SqliteBackend(file) as backend:
            processes = [await asyncio.to_thread(_started, file) for _ in range(workers)]
            try:
                return await _measured(backend, turns)
            finally:
                for process in processes:
                    process.communicate()


def _started(file: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.processes", str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None  # a pipe was asked for
    process.stdout.readline()
    return process


async def _measured(backend: SqliteBackend, turns: int) -> float:
    client = AgentSessionClient(backend, "Bench")
    names = [f"session-{i}" for i in range(SESSIONS)]
    for name in names:
        await client.start_session(name)
    await _until_turns(client, names, 0)
    begun = time.time()
    for _ in range(turns):
        await asyncio.gather(*(client.send_user_message(name, turn()) for name in names))
    await _until_turns(client, names, turns)
    ends = [(await client.read_history(name))[-1].at for name in names]
    return SESSIONS * turns * STEPS_PER_TURN / (max(ends) - begun)


async def _until_turns(client: AgentSessionClient, names: list[str], turns: int) -> None:
    """Wait until every session waits for its user, so many turns behind it."""
    open_names = set(names)

    async def all_done() -> bool:
        for name in list(open_names):
            history = await client.read_history(name)
            waits = sum(each.event_type == "step_wait_for_completed" for each in history)
            if sum(each.step_type == "RunModel" for each in history) < 2 * turns or not waits:
                return False
            open_names.discard(name)
        return True

    await wait_until("the sessions", all_done, timeout=_PATIENCE_SECONDS, interval=0.05)


async def _serve(file: Path) -> None:
    table = session_table(Runner(), flow_type="Bench")
    async with SqliteBackend(file) as backend, backend.worker([table]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
