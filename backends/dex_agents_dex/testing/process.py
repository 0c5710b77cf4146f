"""Child processes that never outlive the test.

A child leads a process group of its own and writes to a file on which it holds
a lock. The lock is let go by the kernel when the last process that inherited
the file is gone, so a later run can tell what an earlier one has left behind
without trusting a process ID that may belong to somebody else by now.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from dex_agents_dex.testing.errors import ChildExitedError, ChildNotReadyError

__all__ = ("ChildProcess", "sweep", "try_lock")

T = TypeVar("T")

_POLL_SECONDS = 0.01
_DYING_POLL_SECONDS = 0.001
_DYING_SECONDS = 5.0
_SHOWN_BYTES = 4000
"""How much of a child's output an error quotes: the end of it."""


class ChildProcess:
    """A running child: it is started by the constructor.

    Args:
        folder: Where its output goes, as ``NAME.log``.
        name: Names it in files and errors; no two running children of a folder share one.
        command: The program and its arguments.
        cwd: Its working directory.
        env: Its whole environment.

    Attributes:
        log_path: What it wrote to standard output and standard error.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("wb") as log:
            try_lock(log)
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own program
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _pid_path(self.log_path).write_text(str(self.pid))

    @property
    def pid(self) -> int:
        """Its process ID, which is its group's too."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._signal_group(signal.SIGKILL)  # whatever it has left behind
        return self._process.returncode

    @property
    def output(self) -> str:
        """The end of what it has written."""
        with self.log_path.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _SHOWN_BYTES, 0))
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL it and its process group; when this returns, they are gone."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        with self.log_path.open("rb") as log:
            _wait_until_free(log)

    async def wait(self) -> int:
        """Return how it ended, as soon as it has."""
        while (status := self.status) is None:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(_POLL_SECONDS)
        return status

    async def stop(self, seconds: float) -> None:
        """Interrupt its group as Ctrl-C does, and kill it if that does not help in time."""
        try:
            if self.status is None:
                self._signal_group(signal.SIGINT)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wait()
        finally:
            self.kill()

    async def ready(self, look: Callable[[], Awaitable[T | None]], seconds: float) -> T:
        """Return what a look finds, as soon as it finds something.

        The child is killed if that does not come about.

        Raises:
            ChildExitedError: The child ended first.
            ChildNotReadyError: Nothing was found in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._found(look)
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise ChildNotReadyError(self.name, seconds, self.output, self.log_path) from error
            raise

    async def _found(self, look: Callable[[], Awaitable[T | None]]) -> T:
        while True:
            found = await look()
            if self.status is not None:
                raise ChildExitedError(self.name, self.status, self.output, self.log_path)
            if found is not None:
                return found
            await asyncio.sleep(_POLL_SECONDS)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def sweep(folder: Path) -> None:
    """Kill what an earlier run, which could not clean up, has left running in a folder."""
    for log_path in sorted(folder.glob("*.log")):
        pid_path = _pid_path(log_path)
        if not pid_path.exists():
            continue
        with log_path.open("rb") as log:
            if not try_lock(log):
                with suppress(ProcessLookupError):
                    os.killpg(int(pid_path.read_text()), signal.SIGKILL)
                _wait_until_free(log)
        pid_path.unlink()


def try_lock(file: IO[bytes]) -> bool:
    """Lock a file for as long as it is open here or in a child; return whether that worked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_until_free(log: IO[bytes]) -> None:
    """Wait, which takes milliseconds, until every process that was just killed is gone."""
    deadline = time.monotonic() + _DYING_SECONDS
    while not try_lock(log) and time.monotonic() < deadline:
        time.sleep(_DYING_POLL_SECONDS)


def _pid_path(log_path: Path) -> Path:
    return log_path.with_suffix(".pid")
