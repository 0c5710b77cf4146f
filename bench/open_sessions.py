"""What do sessions cost that only wait? 10,000 of them in one file, and a worker that is new to it.

The worker runs in a process of its own: ``python -m bench.open_sessions FILE COUNT``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.latency import BusyRunner, busy
from bench.workload import Ends, Runner, Sizes, grow
from dex_agents import AgentSessionClient, session_table
from dex_agents_sqlite import SqliteBackend

__all__ = ("measure",)

_AT_ONCE = 256
_ASKED = 50
"""How many different sessions are sent a message."""


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return what a worker needs for the open sessions of a file."""
    full = await asyncio.to_thread(_served, sizes.open_sessions)
    one = await asyncio.to_thread(_served, 1)
    more = sizes.open_sessions - 1
    return {
        "open_ready": full["ready"],
        "open_memory": max(full["memory"] - one["memory"], 1.0) / more,
        "open_answer": full["answer"],
        "open_answer_busy": full["answer_busy"],
    }


def _served(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        file = Path(folder) / "open.db"
        file.write_bytes(_prepared(count))
        file.chmod(0o600)
        command = [sys.executable, "-m", "bench.open_sessions", str(file), str(count)]
        command.append(str(time.time()))
        done = subprocess.run(command, check=True, capture_output=True)
    return dict(json.loads(done.stdout))


@functools.cache
def _prepared(count: int) -> bytes:
    """Return a file with so many sessions that wait for their user."""
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        file = Path(folder) / "open.db"
        asyncio.run(_prepare(file, count))
        return file.read_bytes()


async def _prepare(file: Path, count: int) -> None:
    ends = Ends()
    table = ends.told_by(session_table(Runner(), flow_type="Bench"))
    async with SqliteBackend(file) as backend, backend.worker([table]):
        client = AgentSessionClient(backend, table)
        for first in range(0, count, _AT_ONCE):
            names = [_name(i) for i in range(first, min(first + _AT_ONCE, count))]
            await asyncio.gather(*map(client.start_session, names))
            await asyncio.gather(*(ends.of(name).wait() for name in names))


def _name(number: int) -> str:
    return f"open-{number}"


async def _serve(file: Path, count: int, spawned: float) -> dict[str, float]:
    runner, ends = BusyRunner(), Ends()
    table = ends.told_by(session_table(runner, flow_type="Bench"))
    asked = [_name(i * count // _ASKED) for i in range(_ASKED)] if count > _ASKED else [_name(0)]
    async with SqliteBackend(file) as backend, backend.worker([table]):
        client = AgentSessionClient(backend, table)
        await _answered(client, ends, _name(count - 1))
        ready = time.time() - spawned
        gc.collect()
        memory = _resident_bytes()
        alone = [await _answered(client, ends, name) for name in asked]
        async with busy(runner, client, ends):
            among = [await _answered(client, ends, name) for name in asked]
    return {
        "ready": ready,
        "memory": memory,
        "answer": median(alone),
        "answer_busy": median(among),
    }


async def _answered(client: AgentSessionClient, ends: Ends, name: str) -> float:
    """Send a message that one model call answers; return the milliseconds until that is stored."""
    end = ends.of(name)
    end.clear()
    begun = time.perf_counter()
    await client.send_user_message(name, grow(2))
    await end.wait()
    return (time.perf_counter() - begun) * 1000


def _resident_bytes() -> int:
    """Return the memory of this process; where the system does not tell, the most that it had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("spawned", type=float, help="When, in seconds since 1970.")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(_serve(arguments.file, arguments.count, arguments.spawned))))


if __name__ == "__main__":
    _main()
