"""The real engine, by its command line: ``dexcli dev --engine zd`` and ``dexcli flow history``.

This has never been run against the real programs, which no package index has.
The flags of ``dev`` and of ``flow history``, and the JSON that the latter
prints, follow the public documentation of dexcli; ``--engine zd`` and the place
of ``dex-server-zd`` do not stand there and are taken on trust. Everything that
is written into a command line is in this module.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from dex_agents.backend import StepHistoryEntry
from dex_agents.errors import FlowNotFoundError
from dex_agents_dex.testing.engine import Engine, answers
from dex_agents_dex.testing.errors import BinaryMissingError, ChildExitedError

__all__ = ("DEXCLI_VARIABLE", "SERVER_VARIABLE", "DexcliEngine", "read_dexcli_history")

DEXCLI_VARIABLE = "DEXCLI"
SERVER_VARIABLE = "DEX_SERVER_ZD_BINARY"

_HOST = "127.0.0.1"
_SERVER_NAME = "dex-server-zd"
_NOT_FOUND = re.compile("not_?found", re.IGNORECASE)


class DexcliEngine(Engine):
    """A private ``dexcli dev --engine zd``.

    It gets free ports, and a home folder of its own, so that its data, which it
    keeps under ``$HOME/.dex``, stays below the test's folder.

    Args:
        folder: Where it keeps its data and its log; must exist.
        dexcli: The program: a path, or a name to be looked up.
        ready_seconds: How long it may take to start.
        stop_seconds: How long it may take to stop before it is killed.
    """

    def __init__(
        self,
        folder: Path,
        dexcli: str | Path,
        *,
        ready_seconds: float = 60.0,
        stop_seconds: float = 10.0,
    ) -> None:
        super().__init__(folder, ready_seconds=ready_seconds, stop_seconds=stop_seconds)
        self._dexcli = dexcli
        self._port = 0

    def command(self) -> Sequence[str | Path]:
        """Return the command line of ``dexcli dev``."""
        program = _require_program("dexcli", self._dexcli, f"Set {DEXCLI_VARIABLE} to its path.")
        self._port, web_port = _free_ports(2)
        return (
            program,
            "dev",
            "--engine=zd",
            f"--bind-address={_HOST}",
            f"--dex-port={self._port}",
            f"--web-port={web_port}",
            "--open=false",
        )

    def environment(self) -> Mapping[str, str]:
        """Return this process's environment, with a home of its own and the server's path."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {**os.environ, "HOME": str(home), SERVER_VARIABLE: str(self._server())}

    async def look(self) -> str | None:
        """Return the address if the server answers there."""
        address = f"{_HOST}:{self._port}"
        return address if await answers(address) else None

    def _server(self) -> Path:
        beside = Path(shutil.which(self._dexcli) or self._dexcli).with_name(_SERVER_NAME)
        path = os.environ.get(SERVER_VARIABLE) or beside
        way_out = f"Put it beside dexcli, or set {SERVER_VARIABLE} to its path."
        return _require_program(_SERVER_NAME, path, way_out)


async def read_dexcli_history(
    dexcli: str | Path, server_address: str, flow_id: str
) -> list[StepHistoryEntry]:
    """Return what ``dexcli flow history`` lists, oldest first.

    Raises:
        BinaryMissingError: There is no such dexcli.
        FlowNotFoundError: There is no such flow.
        ChildExitedError: It failed otherwise.
    """
    program = _require_program("dexcli", dexcli, f"Set {DEXCLI_VARIABLE} to its path.")
    arguments = ("--all", "--no-hydrate", f"--server={server_address}", "--output=json")
    process = await asyncio.create_subprocess_exec(
        program,
        *("flow", "history", flow_id, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        printed, complaint = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        told = complaint.decode(errors="replace")
        if _NOT_FOUND.search(told):
            raise FlowNotFoundError(flow_id)
        raise ChildExitedError("dexcli flow history", process.returncode, told)
    page = msgspec.json.decode(printed, type=_History, strict=False)
    return [_entry(event) for event in page.events]


class _Context(Struct, rename="camel"):
    step_type: str = ""
    step_execution_id: str = ""
    from_step_execution_id: str = ""
    final_attempt: int = 0
    started_time: str | None = None


class _Details(Struct, rename="camel"):
    original_worker_error_detail: str | None = None
    original_worker_error_type: str | None = None


class _Failure(Struct):
    details: _Details | None = None


class _Output(Struct):
    failure: _Failure | None = None


class _Payload(Struct, rename="camel"):
    context: _Context = field(default_factory=_Context)
    output: _Output | None = None
    rpc_name: str = ""


class _Event(Struct, rename="camel"):
    type: str
    payload: _Payload = field(default_factory=_Payload)
    event_time: str | None = None


class _History(Struct):
    events: list[_Event] = field(default_factory=list)


def _entry(event: _Event) -> StepHistoryEntry:
    context, output = event.payload.context, event.payload.output
    details = output.failure.details if output is not None and output.failure is not None else None
    return StepHistoryEntry(
        event_type=re.sub(r"(?<!^)(?=[A-Z])", "_", event.type).lower(),
        step_type=context.step_type or event.payload.rpc_name,
        step_execution_id=context.step_execution_id,
        final_attempt=context.final_attempt,
        at=_seconds(event.event_time),
        begun_at=_seconds(context.started_time),
        origin=context.from_step_execution_id,
        error=details.original_worker_error_detail if details else None,
        error_type=details.original_worker_error_type if details else None,
    )


def _seconds(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _require_program(name: str, path: str | Path, way_out: str) -> Path:
    found = shutil.which(path)
    if found is None:
        raise BinaryMissingError(name, str(path), way_out)
    return Path(found).absolute()


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different."""
    with ExitStack() as sockets:
        ports = []
        for _ in range(count):
            each = sockets.enter_context(socket.socket())
            each.bind((_HOST, 0))
            ports.append(each.getsockname()[1])
        return ports
