"""Temporal with its development server on SQLite: a workflow for each session, an update for each
turn, an activity for each model and tool call.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.contenders.driver import Turn, drive
from bench.contenders.work import PAYLOAD, SESSIONS, Work

_PATIENCE_SECONDS = 60.0
_TIMEOUT = timedelta(minutes=1)
_QUEUE = "bench"
_PRAGMAS = ("journal_mode=wal", "synchronous=2")


@workflow.defn(sandboxed=False)
class _Session:
    def __init__(self) -> None:
        self._turns = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(
            lambda: (
                workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()
            )
        )
        workflow.continue_as_new()

    @workflow.update
    async def turn(self, text: str) -> str:
        def call(name: str, argument: object) -> asyncio.Future:
            return workflow.start_activity(name, argument, start_to_close_timeout=_TIMEOUT)

        calls = await call("ask", text)
        results = await asyncio.gather(*(call("look", at) for at in calls))
        return await call("answer", results)


class _Activities:
    def __init__(self, work: Work) -> None:
        self._work = work

    @activity.defn
    async def ask(self, text: str) -> list[int]:  # noqa: ARG002 - stored with the activity
        return self._work.ask()

    @activity.defn
    async def look(self, at: int) -> str:
        return self._work.look(at)

    @activity.defn
    async def answer(self, results: list[str]) -> str:  # noqa: ARG002 - as a model would get them
        return self._work.answer()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def _connected(address: str, server: subprocess.Popen[bytes]) -> Client:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            return await Client.connect(address)
        except (RuntimeError, RPCError):
            if server.poll() is not None or loop.time() > deadline:
                raise
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("temporal")),
        "server",
        "start-dev",
        "--headless",
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--db-filename={folder / 'temporal.db'}",
        "--log-level=never",
        *(f"--sqlite-pragma={each}" for each in _PRAGMAS),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        client = await _connected(f"127.0.0.1:{port}", server)
        activities = _Activities(work)
        worker = Worker(
            client,
            task_queue=_QUEUE,
            workflows=[_Session],
            activities=[activities.ask, activities.look, activities.answer],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=4 * SESSIONS,
            max_concurrent_workflow_tasks=2 * SESSIONS,
            max_cached_workflows=4 * SESSIONS,
        )
        started: set[str] = set()

        async def turn(name: str) -> None:
            if name not in started:
                started.add(name)
                await client.start_workflow(_Session.run, id=name, task_queue=_QUEUE)
            await client.get_workflow_handle(name).execute_update(_Session.turn, PAYLOAD)

        async with worker:
            yield turn
            for name in started:
                await client.get_workflow_handle(name).terminate()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    drive(_serve)
