"""The worker child: what a test's worker module runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dex

from dex_agents.table import FlowTable
from dex_agents_dex.backend import NoBlobCache
from dex_agents_dex.compiler import compile_flow
from dex_agents_dex.testing.errors import WorkerSettingError

__all__ = (
    "READY_VARIABLE",
    "SERVER_ADDRESS_VARIABLE",
    "WORKER_ADDRESS_VARIABLE",
    "WORKER_MODE_VARIABLE",
    "run_agent_worker",
)

SERVER_ADDRESS_VARIABLE = "DEX_AGENTS_SERVER_ADDRESS"
WORKER_MODE_VARIABLE = "DEX_AGENTS_WORKER_MODE"
WORKER_ADDRESS_VARIABLE = "DEX_AGENTS_WORKER_ADDRESS"
READY_VARIABLE = "DEX_AGENTS_WORKER_READY_FILE"

_SLOTS = 256
_STOP_SECONDS = 10
_LOOK_SECONDS = 0.005


def run_agent_worker(flows: Iterable[FlowTable | dex.Flow[Any]]) -> None:
    """Serve flows until the process is killed, or told to stop by SIGTERM or Ctrl-C.

    Where and how to serve is told by `AgentTestStack`, in environment variables.

    Args:
        flows: Compiled flows, such as `dex_agents.AgentSessionFlow`, or tables.

    Raises:
        WorkerSettingError: A variable is missing: no stack has started this process.
    """
    asyncio.run(
        _serve([each if isinstance(each, dex.Flow) else compile_flow(each) for each in flows])
    )


async def _serve(flows: list[dex.Flow[Any]]) -> None:
    registry = dex.Registry(flows, allow_async_handlers=True)
    worker = dex.AsyncWorker(registry, NoBlobCache(), _options())
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    tasks = [
        asyncio.create_task(each)
        for each in (worker.start(), _announce(worker, worker.worker_target), stopped.wait())
    ]
    serving, announcing, stopping = tasks
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    announcing.cancel()
    stopping.cancel()
    await worker.stop()
    await serving


def _options() -> dex.WorkerOptions:
    server = _setting(SERVER_ADDRESS_VARIABLE)
    if _setting(WORKER_MODE_VARIABLE) == "listening":
        address = _setting(WORKER_ADDRESS_VARIABLE)
        return dex.WorkerOptions(bind_address=address, server_address=server)
    pull = dex.PullWorkerOptions(
        max_concurrent_tasks=_SLOTS,
        idle_streams_per_queue=2,
        stop_drain_timeout=timedelta(seconds=_STOP_SECONDS),
    )
    return dex.WorkerOptions(server_address=server, pull=pull)


async def _announce(worker: dex.AsyncWorker, unbound: dex.WorkerTarget) -> None:
    """Put up the file that says that tasks can reach the worker."""
    if unbound.pull:
        await worker.wait_pull_registered()
    else:
        # Nothing tells that the port is bound, but the SDK makes its target anew then.
        while worker.worker_target is unbound:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_SECONDS)
    Path(_setting(READY_VARIABLE)).touch()  # noqa: ASYNC240 - one empty file


def _setting(variable: str) -> str:
    if variable not in os.environ:
        raise WorkerSettingError(variable)
    return os.environ[variable]
