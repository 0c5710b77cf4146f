"""An engine and worker processes of a test's own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Self

import dex

from dex_agents.backend import StepHistoryEntry
from dex_agents.client import AgentSessionClient
from dex_agents.table import FlowTable
from dex_agents_dex.backend import NoBlobCache
from dex_agents_dex.compiler import CompiledFlow, compile_flow
from dex_agents_dex.testing.dexcli import DEXCLI_VARIABLE, DexcliEngine
from dex_agents_dex.testing.engine import EmulatorEngine, Engine
from dex_agents_dex.testing.history import read_step_history
from dex_agents_dex.testing.process import ChildProcess, try_lock
from dex_agents_dex.testing.worker import (
    READY_VARIABLE,
    SERVER_ADDRESS_VARIABLE,
    WORKER_ADDRESS_VARIABLE,
    WORKER_MODE_VARIABLE,
)

__all__ = ("AgentTestStack",)

_READY_SECONDS = 60.0
_RECONNECT_SECONDS = 0.3
"""How long a server may take to call an address again that did not answer before."""
_NOT_OPEN = "The stack has not been opened; use 'async with'."
_MODES = ("pull", "listening")


class AgentTestStack:
    """Runs an engine while the block runs, and workers that the test may kill.

    With ``DEXCLI`` set the engine is ``dexcli dev --engine zd``, which has never
    been tried with the real program; otherwise it is the emulator. Nothing that
    the stack has started is left when the block ends, however it ends.

    Args:
        tmp_path: Everything that is written goes to a folder below.
        flows: The flows that the test talks to; the worker module builds the same.
        worker_module: What ``python -m`` runs as a worker; it calls `run_agent_worker`.
        worker_cwd: The workers' directory, from which the module is found.
        worker_env: Added to the workers' environment.
        mode: ``"pull"`` or ``"listening"``. Workers that listen share one port, so
            that a replacement is found where its predecessor was.
        emulator_arguments: For the emulator's command line. A Step loses an attempt
            if no pull worker takes it within ``--dispatch-wait``, so set that
            higher than a replacement takes to start.

    Attributes:
        folder: Where logs are kept: ``engine.log`` and ``worker-N.log``.

    Raises:
        ValueError: There is no such mode.
    """

    def __init__(
        self,
        tmp_path: str | Path,
        flows: Iterable[FlowTable | CompiledFlow],
        worker_module: str,
        *,
        worker_cwd: str | Path | None = None,
        worker_env: Mapping[str, str] | None = None,
        mode: Literal["pull", "listening"] = "pull",
        emulator_arguments: Sequence[str] = (),
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"{mode!r} is no mode; there are {' and '.join(_MODES)}.")
        self.folder = Path(tmp_path).absolute()
        self._flows = [(flow, _compiled(flow)) for flow in flows]
        self._module = worker_module
        self._cwd = Path(worker_cwd or ".").absolute()
        self._worker_env = dict(worker_env or {})
        self._mode = mode
        self._emulator_arguments = tuple(emulator_arguments)
        self._workers: list[ChildProcess] = []
        self._worker_address = ""
        self._engine: Engine | None = None
        self._client: dex.AsyncClient | None = None
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            self.folder = _claim_folder(self.folder, exits)
            self._engine = self._new_engine()
            exits.push_async_callback(self._engine.stop)
            await self._engine.start()
            if self._mode == "listening":
                self._worker_address = _reserve_address(exits)
            self._client = self._new_client()
            exits.push_async_callback(self._client.close)
            exits.callback(self._kill_workers)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exits.aclose()

    @property
    def server_address(self) -> str:
        """``host:port`` of the engine."""
        return self._opened_engine.address

    @property
    def engine_log(self) -> Path:
        """What the engine writes."""
        return self._opened_engine.log_path

    def sessions(self, flow: FlowTable | CompiledFlow) -> AgentSessionClient:
        """Return a client of the sessions of one of the stack's flows.

        Raises:
            ValueError: The flow is none of the stack's.
        """
        if self._client is None:
            raise RuntimeError(_NOT_OPEN)
        for given, compiled in self._flows:
            if given is flow:
                return AgentSessionClient(self._client, compiled)
        raise ValueError("That flow is none of those that the stack was given.")

    async def start_worker(self) -> ChildProcess:
        """Start a worker, and return once tasks can reach it.

        Its ``kill()`` sends SIGKILL to its process group, and returns when it is gone.

        Raises:
            ChildExitedError: It ended; the error quotes what it wrote.
            ChildNotReadyError: It takes too long.
        """
        name = f"worker-{len(self._workers) + 1}"
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        settings = {
            SERVER_ADDRESS_VARIABLE: self.server_address,
            WORKER_MODE_VARIABLE: self._mode,
            WORKER_ADDRESS_VARIABLE: self._worker_address,
            READY_VARIABLE: str(ready),
        }
        worker = ChildProcess(
            self.folder,
            name,
            (sys.executable, "-m", self._module),
            cwd=self._cwd,
            env={**os.environ, **self._worker_env, **settings},
        )
        is_replacement = any(each.status is not None for each in self._workers)
        self._workers.append(worker)

        async def look() -> bool | None:
            return ready.exists() or None

        await worker.ready(look, _READY_SECONDS)
        if is_replacement and self._mode == "listening":
            # Its predecessor's address was found dead, and nobody but the server can tell
            # when the server looks there again.
            await asyncio.sleep(_RECONNECT_SECONDS)
        return worker

    async def read_step_history(self, session_id: str) -> list[StepHistoryEntry]:
        """Return the Step methods of a session that have ended, oldest first.

        Raises:
            FlowNotFoundError: There is no such session.
        """
        return await read_step_history(self.server_address, session_id)

    @property
    def _opened_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError(_NOT_OPEN)
        return self._engine

    def _new_engine(self) -> Engine:
        dexcli = os.environ.get(DEXCLI_VARIABLE)
        if dexcli:
            return DexcliEngine(self.folder, dexcli)
        return EmulatorEngine(self.folder, self._emulator_arguments)

    def _new_client(self) -> dex.AsyncClient:
        registry = dex.Registry([flow for _, flow in self._flows], allow_async_handlers=True)
        is_pull = self._mode == "pull"
        target = dex.WorkerTarget(address=self._worker_address, pull=is_pull)
        options = dex.ClientOptions(server_address=self.server_address, worker_target=target)
        return dex.AsyncClient(registry, NoBlobCache(), options)

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()


def _compiled(flow: FlowTable | CompiledFlow) -> CompiledFlow:
    return flow if isinstance(flow, CompiledFlow) else compile_flow(flow)


def _claim_folder(parent: Path, exits: AsyncExitStack) -> Path:
    """Return a folder that no other living stack uses; it may be that of a dead one."""
    number = 1
    while True:
        folder = parent / f"dex-stack-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        lock = exits.enter_context((folder / "stack.lock").open("wb"))
        if try_lock(lock):
            return folder
        number += 1


def _reserve_address(exits: AsyncExitStack) -> str:
    """Return an address that only workers of this stack get, several of them at once.

    A socket that shares its port but does not listen keeps everybody else away
    from the port, and gets none of the connections.
    """
    reserved: Any = exits.enter_context(socket.socket())
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{reserved.getsockname()[1]}"
