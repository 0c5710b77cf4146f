"""A worker child: serves the gated flow on a store until it is killed or told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import structlog

from dex_agents_sqlite import SqliteBackend
from tests.processes.flows import STATE_DIR, flow


def warn_to(path) -> None:
    """Write the worker's warnings to a file, one JSON object a line."""
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.WriteLoggerFactory(path.open("a")),
    )


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
    warn_to(STATE_DIR / f"warnings-{os.getpid()}.jsonl")
    asyncio.run(serve(sys.argv[1], float(sys.argv[2])))
