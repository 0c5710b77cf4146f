"""Flows in one SQLite file that several worker and client processes may share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from dex_agents.encoding import encode
from dex_agents.errors import StoreCorruptError, StoreError, StoreUnavailableError
from dex_agents.executor import (
    LONGEST_LEASE_SECONDS,
    ChangeSignal,
    Clock,
    Commit,
    CommitConflict,
    Done,
    StepWatch,
    StoredEvent,
    StreamAppend,
    Transact,
)
from dex_agents.machine import FlowHeader, FlowState, HistoryEntry
from dex_agents_sqlite.connection import DRIVER_ERRORS, connect_twice, prepare, translated
from dex_agents_sqlite.rows import (
    SqliteAttributes,
    load_state,
    read_header,
    read_history,
    write_changes,
)
from dex_agents_sqlite.sql import QUERIES
from dex_agents_sqlite.stream import StreamBuffer
from dex_agents_sqlite.writer import Operation, Writer

__all__ = ("SqliteStore",)

_BUSY_POLL_SECONDS = 0.003
_IDLE_POLL_SECONDS = 0.02
_BUSY_FOR_SECONDS = 1.0
_FILES_POLL_SECONDS = 1.0


class SqliteStore:
    """Keeps flows in a file: WAL, ``synchronous=FULL``, one writer a process, group commit.

    Args:
        path: The file; created with mode 0600 when it is not there.
        clock: The time that workers go by.

    Attributes:
        measure: Told how many seconds each commit took, and how many changes were in it.
    """

    name = "sqlite"

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.measure: Callable[[float, int], None] = _measure_nothing
        self.changed = ChangeSignal()
        self.changed_elsewhere = ChangeSignal()
        self._path = path
        self._is_open = False
        self._poll: asyncio.TimerHandle | None = None
        self._data_version: int | None = None
        self._changed_at = 0.0
        self._files_due_at = 0.0
        self._clock_steps = StepWatch(clock)

    # Life

    async def open(self) -> None:
        """Open or create the file."""
        prepare(self._path)
        self._reader, self._writes, self._files = connect_twice(self._path)
        self._writer = Writer(
            self._path, self._writes, self._files, self.changed.notify, self.measure
        )
        self._streams = StreamBuffer(self._writer)
        self._is_open = True
        self._look()

    async def close(self) -> None:
        """Write what waits and close the file."""
        self._is_open = False
        if self._poll is not None:
            self._poll.cancel()
        self._streams.flush()
        await self._writer.close()
        self._reader.close()
        self._writes.close()

    def _look(self) -> None:
        """Notice commits of other processes; SQLite tells by a number in shared memory."""
        loop = asyncio.get_running_loop()
        if self._is_lost(loop.time()):
            self.changed.notify()  # whoever follows or serves reads now, and is told
            self.changed_elsewhere.notify()
            return
        try:
            version = self._writer.data_version()
        except apsw.Error:
            version = None  # whoever reads or writes next gets the error
        has_stepped = self._clock_steps.has_stepped()  # leases and Timers are to be judged anew
        if has_stepped or (version is not None and version != self._data_version):
            self._data_version = version
            self._changed_at = loop.time()
            self.changed.notify()
            self.changed_elsewhere.notify()
        is_busy = loop.time() - self._changed_at < _BUSY_FOR_SECONDS
        delay = _BUSY_POLL_SECONDS if is_busy else _IDLE_POLL_SECONDS
        self._poll = loop.call_later(delay, self._look)

    def _is_lost(self, now: float) -> bool:
        """Look now and then whether the files are still there; every commit looks by itself."""
        if now >= self._files_due_at:
            self._files_due_at = now + _FILES_POLL_SECONDS
            with suppress(StoreUnavailableError):
                self._files.look_at_all()
        return self._files.is_lost

    @property
    def _reads(self) -> apsw.Connection:
        if not self._is_open:
            raise StoreUnavailableError(str(self._path), "it is not open; use 'async with'")
        self._files.require()
        return self._reader

    # Reading

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let every read inside the block see one committed state."""
        if self._reads.in_transaction:
            yield
            return
        try:
            self._reads.execute("BEGIN")
            try:
                yield
            finally:
                if self._reader.in_transaction:  # SQLite ends it by itself after an I/O error
                    self._reader.execute("COMMIT")
        except DRIVER_ERRORS as error:
            raise translated(self._path, error) from error

    def load(self, flow_id: str) -> FlowState | None:
        """Return a flow's committed state."""
        with self.snapshot():
            return load_state(self._reads, flow_id)

    def header(self, flow_id: str) -> FlowHeader | None:
        """Return a flow's committed header."""
        with self.snapshot():
            for header, version in self._reads.execute(QUERIES["load_flow"], (flow_id,)):
                return read_header(header, version)
        return None

    def headers(self) -> Sequence[FlowHeader]:
        """Return every flow's header, oldest first."""
        with self.snapshot():
            rows = self._reads.execute(QUERIES["load_headers"])
            return [read_header(header, version) for header, version in rows]

    def reader(self, flow_id: str) -> SqliteAttributes:
        """Return a reader of a flow's committed Attributes."""
        return SqliteAttributes(self._reads, flow_id)

    def history(self, flow_id: str) -> Sequence[HistoryEntry]:
        """Return a flow's history."""
        with self.snapshot():
            return read_history(self._reads, flow_id)

    def stream(self, flow_id: str, stream: str, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return messages of a Stream behind a position, oldest first."""
        with self.snapshot():
            rows = self._reads.execute(QUERIES["read_stream"], (flow_id, stream, after, limit))
            return [StoredEvent(position, payload) for position, payload in rows]

    # Writing

    def commit(self, commit: Commit) -> None:
        """Queue the changes of an owned flow."""

        def write(connection: apsw.Connection) -> None:
            is_broken = commit.lineage.is_broken
            if is_broken or not write_changes(connection, commit.changes, commit.owner):
                commit.lineage.is_broken = True  # before the next one of this group is written
                raise CommitConflict
            self._streams.write(connection, [(commit.flow_id, each) for each in commit.streamed])

        self._add(write, commit.finish)

    def transact(self, flow_id: str, transact: Transact, done: Done) -> None:
        """Queue a change that is decided inside the transaction, on the newest state."""

        def write(connection: apsw.Connection) -> None:
            state = load_state(connection, flow_id) or FlowState.absent(flow_id)
            changes = transact(state, SqliteAttributes(connection, flow_id))
            if changes is not None and not write_changes(connection, [changes], None):
                # Nobody writes between the reading and the writing of one transaction.
                reason = f"what it says of session {flow_id!r} contradicts itself"
                raise StoreCorruptError(str(self._path), reason)

        self._add(write, done)

    def append(self, flow_id: str, message: StreamAppend) -> None:
        """Queue a Stream message; it rides along with the next commit, or follows shortly."""
        if self._is_open:
            self._streams.append(flow_id, message)

    def _add(self, write: Callable[[apsw.Connection], None], done: Done) -> None:
        if not self._is_open:
            done(StoreUnavailableError(str(self._path), "it is not open; use 'async with'"))
            return
        self._streams.flush()
        self._writer.add(Operation(write, done))

    # Owning

    def claim(
        self,
        worker: str,
        lease_seconds: float,
        flow_types: Sequence[str],
        limit: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """Make a worker the owner of flows that need one now and that no living worker owns."""
        try:
            due = self._due(flow_types, limit)
        except StoreError:
            due = []  # looked for again shortly
        if not due:
            done([])
            return
        claimed: list[str] = []

        def write(connection: apsw.Connection) -> None:
            bounds = self._extend_lease(connection, worker, lease_seconds)
            for flow_id in due:
                names = {"worker": worker, "flow_id": flow_id, **bounds}
                connection.execute(QUERIES["claim_flow"], names)
                if connection.changes():
                    claimed.append(flow_id)

        self._add(write, lambda error: done([] if error else claimed))

    def _due(self, flow_types: Sequence[str], limit: int) -> list[str]:
        names = {
            "flow_types": encode(flow_types).decode(),
            "limit": limit,
            **self._lease_bounds(),
        }
        with self.snapshot():
            return [row[0] for row in self._reads.execute(QUERIES["find_due_flows"], names)]

    def unclaimed(self) -> frozenset[str]:
        """Return the flows that need a worker now and that no living worker owns."""
        with self.snapshot():
            rows = self._reads.execute(QUERIES["find_unclaimed_flows"], self._lease_bounds())
            return frozenset(row[0] for row in rows)

    def _lease_bounds(self) -> dict[str, float]:
        """Return between which times a lease ends that counts."""
        now = self.clock.now()
        return {"now": now, "latest": now + LONGEST_LEASE_SECONDS}

    def owned_versions(self, worker: str, flow_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the version of these flows, as far as the worker owns them, and of due ones."""
        with self.snapshot():
            due = self._reads.execute(QUERIES["find_owned_due_flows"], (self.clock.now(), worker))
            versions = dict(due)
            for flow_id in flow_ids:
                found = self._reads.execute(QUERIES["find_owned_flow"], (flow_id, worker)).get
                if found is not None:
                    versions[flow_id] = found
        return versions

    def renew(self, worker: str, lease_seconds: float) -> None:
        """Queue a new end of a worker's lease."""

        def write(connection: apsw.Connection) -> None:
            bounds = self._extend_lease(connection, worker, lease_seconds)
            connection.execute(QUERIES["forget_dead_workers"], bounds)

        self._add(write, _ignore)

    def _extend_lease(
        self, connection: apsw.Connection, worker: str, lease_seconds: float
    ) -> dict[str, float]:
        """Write a worker's lease from now on; return the bounds of this moment."""
        bounds = self._lease_bounds()
        connection.execute(QUERIES["renew_lease"], (worker, bounds["now"] + lease_seconds))
        return bounds

    def release(self, worker: str, done: Done) -> None:
        """Queue the end of a worker."""

        def write(connection: apsw.Connection) -> None:
            connection.execute(QUERIES["release_flows"], (worker,))
            connection.execute(QUERIES["end_lease"], (worker,))

        self._add(write, done)

    def next_wake(self, flow_types: Sequence[str]) -> float | None:
        """Return the earliest time after now at which a flow needs a worker."""
        names = {"now": self.clock.now(), "flow_types": encode(flow_types).decode()}
        with self.snapshot():
            found = self._reads.execute(QUERIES["find_next_wake"], names).get
        return None if found is None else float(found)


def _measure_nothing(_seconds: float, _changes: int) -> None:
    """Take measures where nothing watches."""


def _ignore(error: BaseException | None) -> None:
    """A lease that could not be written is written again soon."""
