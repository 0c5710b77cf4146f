"""The disk that simulated processes share, and what each of them sees of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from dex_agents.errors import StoreUnavailableError
from dex_agents.executor import (
    AttributeReader,
    ChangeSignal,
    Clock,
    Commit,
    Done,
    StoredEvent,
    StreamAppend,
    Transact,
)
from dex_agents.executor.store import LONGEST_LEASE_SECONDS
from dex_agents.machine import Changes, FlowHeader, FlowState, HistoryEntry
from dex_agents_memory.store import MemoryStore

__all__ = ("Disk", "Fate", "Host", "SimulatedStore")


class Fate(StrEnum):
    """What becomes of a group of writes."""

    WRITTEN = "written"
    REFUSED = "refused"  # an error, and nothing was written
    UNTOLD = "untold"  # an error, although everything was written


class Host(Protocol):
    """What a store asks of the process that it is in."""

    @property
    def clock(self) -> Clock:
        """What its worker and clients take for the time."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Arrange a call in the process."""
        ...

    def write_delay(self) -> float:
        """Return how long the next group of writes takes, in seconds."""
        ...

    def fate(self) -> Fate:
        """Return what becomes of the group of writes that is at the disk now."""
        ...

    def committed(self, flow_id: str, changes: Changes) -> None:
        """Learn of what is durable from now on."""
        ...

    def wrote(self) -> None:
        """Learn that something was written, so that other processes can notice it."""
        ...


class Disk:
    """What is durable: a `MemoryStore`, with leases that end."""

    def __init__(self, clock: Clock) -> None:
        self.flows = MemoryStore(clock)
        self.leases: dict[str, float] = {}

    def look_at_leases(self, now: float) -> None:
        """Let only those workers count as alive whose lease goes on, by somebody's clock."""
        for worker, end in self.leases.items():
            if now < end <= now + LONGEST_LEASE_SECONDS:
                self.flows.renew(worker, end - now)
            else:
                self.flows.release(worker, _ignore)


Operation: TypeAlias = tuple[Callable[[], BaseException | None], Done]


class SimulatedStore:
    """The `Store` of one process: reads what is durable, writes later, and perhaps in vain.

    Args:
        disk: Shared.
        host: The process.
    """

    name = "simulated"

    def __init__(self, disk: Disk, host: Host) -> None:
        self.clock = host.clock
        self.changed = ChangeSignal()
        self.changed_elsewhere = ChangeSignal()
        self._disk = disk
        self._host = host
        self._waiting: list[Operation] = []
        self._is_writing = False

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    @property
    def _flows(self) -> MemoryStore:
        """The disk's rows, which go by the clock of whoever asks."""
        self._disk.flows.clock = self.clock
        return self._disk.flows

    # Reading

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a block in which nobody else writes: there is one thread."""
        return self._flows.snapshot()

    def load(self, flow_id: str) -> FlowState | None:
        """Return a flow's durable state."""
        return self._flows.load(flow_id)

    def header(self, flow_id: str) -> FlowHeader | None:
        """Return a flow's durable header."""
        return self._flows.header(flow_id)

    def headers(self) -> Sequence[FlowHeader]:
        """Return every flow's durable header."""
        return self._flows.headers()

    def reader(self, flow_id: str) -> AttributeReader:
        """Return a reader of a flow's durable Attributes."""
        return self._flows.reader(flow_id)

    def history(self, flow_id: str) -> Sequence[HistoryEntry]:
        """Return a flow's history."""
        return self._flows.history(flow_id)

    def stream(self, flow_id: str, stream: str, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return messages of a Stream."""
        return self._flows.stream(flow_id, stream, after, limit)

    # Writing

    def commit(self, commit: Commit) -> None:
        """Queue the changes of an owned flow."""

        def write() -> BaseException | None:
            refusals: list[BaseException | None] = []
            self._flows.commit(replace(commit, done=refusals.append))
            if refusals[0] is None:
                for changes in commit.changes:
                    self._host.committed(commit.flow_id, changes)
            return refusals[0]

        self._add(write, commit.finish)

    def transact(self, flow_id: str, transact: Transact, done: Done) -> None:
        """Queue a change that is decided on the newest state."""

        def write() -> BaseException | None:
            found: list[Changes | None] = []
            refusals: list[BaseException | None] = []

            def decide(state: FlowState, reader: AttributeReader) -> Changes | None:
                found.append(transact(state, reader))
                return found[0]

            self._flows.transact(flow_id, decide, refusals.append)
            if found and found[0] is not None:
                self._host.committed(flow_id, found[0])
            return refusals[0]

        self._add(write, done)

    def append(self, flow_id: str, message: StreamAppend) -> None:
        """Append a Stream message, if the flow is there."""
        if self._flows.header(flow_id) is not None:
            self._flows.append(flow_id, message)

    def _add(self, write: Callable[[], BaseException | None], done: Done) -> None:
        self._waiting.append((write, done))
        self._begin()

    def _begin(self) -> None:
        if self._waiting and not self._is_writing:
            self._is_writing = True
            self._host.call_later(self._host.write_delay(), self._write)

    def _write(self) -> None:
        """Write what waits; whoever waits for it is told later, or never if the process dies."""
        group, self._waiting = self._waiting, []
        fate = self._host.fate()
        error = None
        if fate is not Fate.WRITTEN:
            error = StoreUnavailableError("the disk", "it is simulated")
        told: list[tuple[Done, BaseException | None]] = []
        for write, done in group:
            refusal = None if fate is Fate.REFUSED else write()
            told.append((done, error or refusal))
        self._host.call_later(0.0, lambda: self._tell(told))
        if fate is not Fate.REFUSED:
            self._host.wrote()

    def _tell(self, told: list[tuple[Done, BaseException | None]]) -> None:
        self._is_writing = False
        for done, error in told:
            done(error)
        self.changed.notify()
        self._begin()

    # Owning

    def claim(
        self,
        worker: str,
        lease_seconds: float,
        flow_types: Sequence[str],
        limit: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """Queue a claim, if there is something to claim."""
        claimed: list[str] = []
        if not self.unclaimed():
            done(claimed)
            return

        def write() -> None:
            now = self.clock.now()
            self._disk.leases[worker] = now + lease_seconds
            self._disk.look_at_leases(now)
            self._flows.claim(worker, lease_seconds, flow_types, limit, claimed.extend)
            for flow_id in claimed:
                self._flows.transact(flow_id, _fence, _ignore)

        self._add(write, lambda error: done([] if error else claimed))

    def unclaimed(self) -> frozenset[str]:
        """Return the flows that need a worker now and that no living worker owns."""
        self._disk.look_at_leases(self.clock.now())
        return self._flows.unclaimed()

    def owned_versions(self, worker: str, flow_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the durable version of these flows, as far as the worker owns them."""
        return self._flows.owned_versions(worker, flow_ids)

    def renew(self, worker: str, lease_seconds: float) -> None:
        """Queue a new end of a worker's lease."""

        def write() -> None:
            self._disk.leases[worker] = self.clock.now() + lease_seconds
            self._flows.renew(worker, lease_seconds)

        self._add(write, _ignore)

    def release(self, worker: str, done: Done) -> None:
        """Queue the end of a worker."""

        def write() -> None:
            self._disk.leases.pop(worker, None)
            self._flows.release(worker, _ignore)

        self._add(write, done)

    def next_wake(self, flow_types: Sequence[str]) -> float | None:
        """Return the earliest time after now at which a flow needs a worker."""
        self._disk.look_at_leases(self.clock.now())
        return self._flows.next_wake(flow_types)


def _fence(state: FlowState, _reader: AttributeReader) -> Changes:
    """Return a new version, so that what a former owner still wants to write is refused."""
    return Changes(replace(state.header, version=state.header.version + 1))


def _ignore(_error: BaseException | None) -> None:
    pass
