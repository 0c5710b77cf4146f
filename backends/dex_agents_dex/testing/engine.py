"""The engine of a stack: the emulator as a child process, and what every engine does."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from dex.dexpb import dex_pb2_grpc
from google.protobuf import empty_pb2

from dex_agents_dex.testing.process import ChildProcess, sweep

__all__ = ("EmulatorEngine", "Engine", "answers")

_ANSWER_SECONDS = 1.0
_ANNOUNCEMENT = re.compile(r"^listening on (\S+)\n", re.MULTILINE)


class Engine:
    """A server of the Dex protocol in a child process.

    Subclasses say what the child is and how to see that it serves.

    Args:
        folder: Where it keeps its files; must exist.
        ready_seconds: How long it may take to start.
        stop_seconds: How long it may take to stop before it is killed.

    Attributes:
        address: ``host:port`` of its FlowService, once it has started.
        log_path: What it writes.
    """

    def __init__(
        self, folder: Path, *, ready_seconds: float = 60.0, stop_seconds: float = 10.0
    ) -> None:
        self.folder = folder
        self.address = ""
        self.log_path = folder / "engine.log"
        self._ready_seconds = ready_seconds
        self._stop_seconds = stop_seconds
        self._child: ChildProcess | None = None

    async def start(self) -> None:
        """Start it, and return once it serves.

        Raises:
            BinaryMissingError: Its program is not there.
            ChildExitedError: It ended while it should have started.
            ChildNotReadyError: It takes too long.
        """
        sweep(self.folder)
        child = ChildProcess(
            self.folder, "engine", self.command(), cwd=self.folder, env=self.environment()
        )
        self._child = child
        self.address = await child.ready(self.look, self._ready_seconds)

    async def stop(self) -> None:
        """Stop it. When this returns or raises, it is gone."""
        if self._child is not None:
            await self._child.stop(self._stop_seconds)

    def command(self) -> Sequence[str | Path]:
        """Return the program and its arguments."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str] | None:
        """Return its environment; None for this process's own."""
        return None

    async def look(self) -> str | None:
        """Return its address if it serves."""
        raise NotImplementedError


class EmulatorEngine(Engine):
    """The emulator, with everything in memory, on a port that it chooses itself.

    Args:
        folder: Where it keeps its log; must exist.
        arguments: For its command line, for example ``("--dispatch-wait", "60")``.
        ready_seconds: How long it may take to start.
    """

    def __init__(
        self, folder: Path, arguments: Sequence[str] = (), *, ready_seconds: float = 60.0
    ) -> None:
        super().__init__(folder, ready_seconds=ready_seconds)
        self._arguments = arguments

    def command(self) -> Sequence[str | Path]:
        """Return the emulator's command line."""
        return (sys.executable, "-m", "dex_agents_dex.emulator", "--port", "0", *self._arguments)

    async def look(self) -> str | None:
        """Return the address that it has announced."""
        announced = _ANNOUNCEMENT.search(self.log_path.read_text(errors="replace"))
        return announced[1] if announced else None


async def answers(address: str) -> bool:
    """Return whether a Dex server answers at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)  # type: ignore[no-untyped-call]
        with suppress(grpc.RpcError):
            await stub.GetServerInfo(empty_pb2.Empty(), timeout=_ANSWER_SECONDS)
            return True
    return False
