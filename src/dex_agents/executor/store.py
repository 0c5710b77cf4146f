"""The seam between the executor and a store: what a store keeps, and what it must promise.

A store holds rows and knows nothing of what they mean. It is called from one
event loop. Reads answer at once; writes are queued, and what waits together
may be committed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from msgspec import Raw, Struct

from dex_agents.executor.clock import Clock
from dex_agents.machine import Changes, FlowHeader, FlowState, HistoryEntry

__all__ = (
    "LONGEST_LEASE_SECONDS",
    "AttributeReader",
    "ChangeSignal",
    "Commit",
    "CommitConflict",
    "Done",
    "Lineage",
    "Store",
    "StoredEvent",
    "StreamAppend",
    "Transact",
)

LONGEST_LEASE_SECONDS = 300.0
"""A lease that seems to last longer was written before the clock was set back: it has ended."""

Done: TypeAlias = Callable[[BaseException | None], None]
"""Called in the event loop once a write is durable, or with why it is not."""


class CommitConflict(Exception):  # noqa: N818 - control flow inside the executor, not a failure
    """Somebody else changed the flow first, or owns it now; nothing was written."""


class Lineage:
    """A row of commits of one flow, each made on the state that the one before it left.

    When one of them is refused, so is every later one. The versions would not
    tell: somebody else's change may have taken the refused commit's number.
    """

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class StreamAppend(Struct, frozen=True, gc=False):
    """A message for a Stream that keeps the newest so many bytes."""

    stream: str
    payload: bytes
    capacity_bytes: int


class Commit(Struct, frozen=True):
    """The changes of one transition, or of several in a row, all or nothing.

    Attributes:
        flow_id: Whose they are.
        owner: The worker that must own the flow; the new owner of a new flow.
        changes: What each transition changed. The first one's version is one above the
            version that must be stored.
        lineage: What they follow; the store breaks it when it refuses them.
        done: Told how it went.
        streamed: What inline Steps appended to Streams; written with the changes.
    """

    flow_id: str
    owner: str
    changes: Sequence[Changes]
    lineage: Lineage
    done: Done
    streamed: Sequence[StreamAppend] = ()

    def finish(self, error: BaseException | None) -> None:
        """Tell whoever waits, and let nothing follow a commit that failed."""
        if error is not None:
            self.lineage.is_broken = True
        self.done(error)


class StoredEvent(Struct, frozen=True, gc=False):
    """One message of a Stream; positions rise within a flow's Stream."""

    position: int
    payload: bytes


class AttributeReader(Protocol):
    """Reads the committed Attributes of one flow."""

    def get(self, name: str) -> Raw | None:
        """Return the value of a physical name."""
        ...

    def scan(self, prefix: str) -> Mapping[str, Raw]:
        """Return every value whose physical name begins so, in the order of names."""
        ...


Transact: TypeAlias = Callable[[FlowState, AttributeReader], Changes | None]
"""Looks at a flow's committed state, and returns what to change. What it raises changes nothing."""


class ChangeSignal:
    """Wakes whoever waits for a store to change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake everybody who waits."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next change; return False when the time is over first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class Store(Protocol):
    """What an executor needs of a store.

    A store must make a commit durable before it calls ``done``, write all of a
    commit or nothing, refuse with `CommitConflict` one that follows another
    version than the stored one, comes from a worker that is not the owner, or
    is of a broken lineage, and keep the order in which commits of one flow were
    handed to it. It breaks a lineage as soon as it refuses one of its commits.
    """

    @property
    def name(self) -> str:
        """The backend's name, for telemetry."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that its workers go by."""
        ...

    @property
    def changed(self) -> ChangeSignal:
        """Notified when anything was written, by this process or another."""
        ...

    @property
    def changed_elsewhere(self) -> ChangeSignal:
        """Notified when another process wrote something."""
        ...

    # Life

    async def open(self) -> None:
        """Get ready; raise a `StoreError` that says why not."""
        ...

    async def close(self) -> None:
        """Write what waits and let go."""
        ...

    # Reading

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a block in which every read sees one committed state."""
        ...

    def load(self, flow_id: str) -> FlowState | None:
        """Return a flow's committed state."""
        ...

    def header(self, flow_id: str) -> FlowHeader | None:
        """Return a flow's committed header."""
        ...

    def headers(self) -> Sequence[FlowHeader]:
        """Return every flow's header, oldest first."""
        ...

    def reader(self, flow_id: str) -> AttributeReader:
        """Return a reader of a flow's committed Attributes."""
        ...

    def history(self, flow_id: str) -> Sequence[HistoryEntry]:
        """Return a flow's history."""
        ...

    def stream(self, flow_id: str, stream: str, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return messages of a Stream behind a position, oldest first."""
        ...

    # Writing

    def commit(self, commit: Commit) -> None:
        """Queue the changes of an owned flow."""
        ...

    def transact(self, flow_id: str, transact: Transact, done: Done) -> None:
        """Queue a change of a flow that this process does not own, decided on its newest state."""
        ...

    def append(self, flow_id: str, message: StreamAppend) -> None:
        """Queue a Stream message; it rides along with the next commit, or follows shortly."""
        ...

    # Owning

    def claim(
        self,
        worker: str,
        lease_seconds: float,
        flow_types: Sequence[str],
        limit: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """Make a worker the owner of flows that need one now and that no living worker owns.

        Its lease is renewed in the same write. Otherwise, when the clock was
        set forward and every lease seems to have ended, workers would take
        flows from each other until each had renewed its own.
        """
        ...

    def unclaimed(self) -> frozenset[str]:
        """Return the flows that need a worker now and that no living worker owns."""
        ...

    def owned_versions(self, worker: str, flow_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the committed version of these flows, as far as the worker still owns them.

        Flows of this worker that need one now are included without being asked for.
        """
        ...

    def renew(self, worker: str, lease_seconds: float) -> None:
        """Queue a new end of a worker's lease; without one its flows are free for others."""
        ...

    def release(self, worker: str, done: Done) -> None:
        """Queue the end of a worker: its lease, and its ownership of every flow."""
        ...

    def next_wake(self, flow_types: Sequence[str]) -> float | None:
        """Return the earliest time after now at which a flow needs a worker."""
        ...
