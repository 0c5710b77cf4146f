"""The one writer of a process: what waits together is committed together.

Statements run in the event loop, where they cost microseconds. The commit
waits for the disk. As long as the disk is quick, the loop waits with it, which
takes less time than to hand it to a thread and back. A slow disk is left to a
thread, and whatever arrives meanwhile is the next group. A lock that another
process holds is tried again from the loop, which never blocks on it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw

from dex_agents.errors import StoreError
from dex_agents.executor import Done
from dex_agents_sqlite.connection import DRIVER_ERRORS, translated
from dex_agents_sqlite.files import OpenFiles

__all__ = ("Operation", "Writer")

_LOCK_PATIENCE_SECONDS = 10.0
_QUICK_COMMIT_SECONDS = 0.001
"""The longest average commit that the event loop waits for by itself."""
_MEMORY = 0.9
"""How much the average commit is that of the commits before the last."""


class Operation:
    """Something to write.

    Args:
        write: Runs inside the transaction. What it raises is told to ``done``
            alone, and it must not have written anything then.
        done: Told once it is durable, or why it is not.
    """

    __slots__ = ("done", "refusal", "write")

    def __init__(self, write: Callable[[apsw.Connection], None], done: Done) -> None:
        self.write = write
        self.done = done
        self.refusal: BaseException | None = None


class Writer:
    """Writes in groups.

    Args:
        path: The store's file.
        connection: Used by this writer alone.
        files: Looked at before a group is written, and again before it counts as durable.
        committed: Called after each group.
        measure: Told how many seconds a commit took, and how many operations were in it.
    """

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        files: OpenFiles,
        committed: Callable[[], None],
        measure: Callable[[float, int], None],
    ) -> None:
        self._path = path
        self._connection = connection
        self._files = files
        self._committed = committed
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "dex-agents-commit")
        self._commit_seconds = self._last_seconds = 0.0
        self._waiting: list[Operation] = []
        self._alone = 0  # how many operations to write one by one, after a group failed
        self._is_scheduled = False
        self._is_committing = False
        self._locked_since: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, operation: Operation) -> None:
        """Queue something to write; the group is closed when the loop next turns."""
        self._waiting.append(operation)
        self._idle.clear()
        if not self._is_scheduled and not self._is_committing:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def data_version(self) -> int | None:
        """Return a number that changes when another process commits; None while committing."""
        if self._is_committing:
            return None
        return int(self._connection.pragma("data_version"))

    async def close(self) -> None:
        """Write what waits, then stop."""
        await self._idle.wait()
        self._thread.shutdown()

    def _begin(self) -> None:
        self._is_scheduled = False
        try:
            self._files.look()
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            self._wait_for_lock(error)
            return
        except (apsw.Error, StoreError) as error:
            self._finish(self._take(), translated(self._path, error))
            return
        self._locked_since = None
        group = self._take()
        try:
            for operation in group:
                self._write(operation)
        except Exception as error:  # noqa: BLE001 - the disk's refusal concerns the whole group
            self._roll_back()
            self._fail(group, error)
            return
        self._is_committing = True
        if self._commit_seconds <= _QUICK_COMMIT_SECONDS:
            self._end(group, self._commit())
        else:
            self._thread.submit(self._commit).add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(self._end, group, future.result())
            )

    def _commit(self) -> Exception | None:
        begun = time.perf_counter()
        try:
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - told to whoever waits, in the loop
            return error
        took = self._last_seconds = time.perf_counter() - begun
        self._commit_seconds = _MEMORY * self._commit_seconds + (1 - _MEMORY) * took
        return None

    def _take(self) -> list[Operation]:
        count = 1 if self._alone else len(self._waiting)
        self._alone = max(self._alone - 1, 0)
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _fail(self, group: list[Operation], error: BaseException) -> None:
        """Tell one operation why it failed; of several, find the one that is to blame."""
        if len(group) == 1:
            self._finish(group, translated(self._path, error))
            return
        for operation in group:
            operation.refusal = None
        self._waiting[:0] = group
        self._alone = len(group)
        self._finish([], None)

    def _write(self, operation: Operation) -> None:
        try:
            operation.write(self._connection)
        except (*DRIVER_ERRORS, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - its own refusal concerns nobody else
            operation.refusal = error

    def _wait_for_lock(self, error: apsw.Error) -> None:
        now = self._loop.time()
        self._locked_since = self._locked_since or now
        if now - self._locked_since > _LOCK_PATIENCE_SECONDS:
            self._locked_since = None
            self._finish(self._take(), translated(self._path, error))
            return
        self._is_scheduled = True
        self._loop.call_later(random.uniform(0.0005, 0.003), self._begin)  # noqa: S311 - jitter

    def _end(self, group: list[Operation], error: Exception | None) -> None:
        self._is_committing = False
        if error is not None:
            self._roll_back()
            self._fail(group, error)
        else:
            self._measure(self._last_seconds, len(group))
            self._finish(group, self._loss())
            self._committed()

    def _loss(self) -> StoreError | None:
        """Return why what was committed is lost all the same: the file went away under it."""
        try:
            self._files.look()
        except StoreError as error:
            return error
        return None

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # SQLite has rolled back by itself, as it does after some errors

    def _finish(self, group: list[Operation], error: StoreError | None) -> None:
        for operation in group:
            try:
                operation.done(error or operation.refusal)
            except Exception as fault:  # noqa: BLE001 - the others must be told all the same
                context = {"message": "A caller of the store met a fault", "exception": fault}
                self._loop.call_exception_handler(context)
        if not self._waiting:
            self._idle.set()
        elif not self._is_scheduled and not self._is_committing:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)
