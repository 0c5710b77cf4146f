"""A worker child: serves the gated flow on a store until it is killed or told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from dex_agents_sqlite import SqliteBackend
from tests.processes.flows import flow


async def serve(path: str, lease_seconds: float) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with (
        SqliteBackend(path) as backend,
        backend.worker([flow()], lease_seconds=lease_seconds),
    ):
        sys.stdout.write(f"serving {os.getpid()}\n")
        sys.stdout.flush()
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2])))
