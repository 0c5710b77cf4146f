"""Flows in dictionaries: nothing on disk, every commit at once. The oracle for other stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from msgspec import Raw

from dex_agents.executor import (
    ChangeSignal,
    Clock,
    Commit,
    CommitConflict,
    Done,
    StoredEvent,
    StreamAppend,
    Transact,
)
from dex_agents.machine import Changes, Execution, FlowHeader, FlowState, FlowStatus, HistoryEntry

__all__ = ("MemoryStore",)

K = TypeVar("K")
V = TypeVar("V")


class _Flow:
    """The rows of one flow."""

    def __init__(self) -> None:
        self.header: FlowHeader | None = None
        self.owner: str | None = None
        self.executions: dict[str, Execution] = {}
        self.messages: dict[tuple[str, int], Raw] = {}
        self.attributes: dict[str, dict[str, Raw]] = {}
        self.history: list[HistoryEntry] = []
        self.streams: dict[str, list[StoredEvent]] = {}
        self.stream_sizes: dict[str, int] = {}
        self.next_position = 1

    def get(self, name: str) -> Raw | None:
        return self.attributes.get(_prefix(name), {}).get(name)

    def scan(self, prefix: str) -> Mapping[str, Raw]:
        return dict(sorted(self.attributes.get(prefix, {}).items()))

    def write(self, changes: Changes) -> None:
        self.header = changes.header
        _upsert(self.executions, changes.executions)
        _upsert(self.messages, changes.messages)
        for name, raw in changes.attributes.items():
            bucket = self.attributes.setdefault(_prefix(name), {})
            if raw is None:
                bucket.pop(name, None)
            else:
                bucket[name] = raw
        self.history += changes.history


class MemoryStore:
    """Keeps every flow in memory, for the life of the store.

    Args:
        clock: The time that workers go by.
    """

    name = "memory"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.changed = ChangeSignal()
        self.changed_elsewhere = ChangeSignal()
        self._flows: dict[str, _Flow] = {}
        self._waking: dict[str, float] = {}
        self._workers: set[str] = set()

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: what was written stays readable."""

    # Reading

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a block that does nothing: no write can come between two reads."""
        return nullcontext()

    def load(self, flow_id: str) -> FlowState | None:
        """Return a flow's state."""
        flow = self._flows.get(flow_id)
        if flow is None or flow.header is None:
            return None
        messages = [(channel, n, raw) for (channel, n), raw in sorted(flow.messages.items())]
        return FlowState(flow.header, flow.executions.values(), messages)

    def header(self, flow_id: str) -> FlowHeader | None:
        """Return a flow's header."""
        flow = self._flows.get(flow_id)
        return flow.header if flow is not None else None

    def headers(self) -> Sequence[FlowHeader]:
        """Return every flow's header, oldest first."""
        return [flow.header for flow in self._flows.values() if flow.header is not None]

    def reader(self, flow_id: str) -> _Flow:
        """Return a reader of a flow's Attributes."""
        return self._flows.setdefault(flow_id, _Flow())

    def history(self, flow_id: str) -> Sequence[HistoryEntry]:
        """Return a flow's history."""
        return list(self._flows[flow_id].history)

    def stream(self, flow_id: str, stream: str, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return messages of a Stream behind a position, oldest first."""
        events = self._flows[flow_id].streams.get(stream, [])
        return [event for event in events if event.position > after][:limit]

    # Writing

    def commit(self, commit: Commit) -> None:
        """Write the changes of an owned flow at once."""
        flow = self._flows.setdefault(commit.flow_id, _Flow())
        version = flow.header.version if flow.header is not None else 0
        is_new = version == 0
        is_owner = is_new or flow.owner == commit.owner
        is_next = commit.changes[0].header.version == version + 1
        if commit.lineage.is_broken or not is_next or not is_owner:
            commit.finish(CommitConflict())
            return
        flow.owner = commit.owner
        for changes in commit.changes:
            self._write(flow, changes)
        for message in commit.streamed:
            self.append(commit.flow_id, message)
        commit.finish(None)

    def transact(self, flow_id: str, transact: Transact, done: Done) -> None:
        """Change a flow that no worker of this store has in memory."""
        flow = self._flows.setdefault(flow_id, _Flow())
        state = self.load(flow_id) or FlowState.absent(flow_id)
        try:
            changes = transact(state, flow)
        except Exception as error:  # noqa: BLE001 - the caller's own refusal
            if flow.header is None:
                del self._flows[flow_id]
            done(error)
            return
        if changes is not None:
            self._write(flow, changes)
        done(None)

    def append(self, flow_id: str, message: StreamAppend) -> None:
        """Append a Stream message."""
        flow = self._flows[flow_id]
        events = flow.streams.setdefault(message.stream, [])
        events.append(StoredEvent(flow.next_position, message.payload))
        flow.next_position += 1
        size = flow.stream_sizes.get(message.stream, 0) + len(message.payload)
        surplus = 0
        while size > message.capacity_bytes and surplus < len(events) - 1:
            size -= len(events[surplus].payload)
            surplus += 1
        del events[:surplus]
        flow.stream_sizes[message.stream] = size
        self.changed.notify()

    def _write(self, flow: _Flow, changes: Changes) -> None:
        flow.write(changes)
        header = changes.header
        if header.wake_at is None or header.status is not FlowStatus.RUNNING:
            self._waking.pop(header.flow_id, None)
        else:
            self._waking[header.flow_id] = header.wake_at
        self.changed.notify()

    # Owning

    def claim(
        self,
        worker: str,
        lease_seconds: float,
        flow_types: Sequence[str],
        limit: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """Make a worker the owner of flows that need one now."""
        self.renew(worker, lease_seconds)
        now = self.clock.now()
        claimed: list[str] = []
        for flow_id, wake_at in self._waking.items():
            if wake_at <= now and len(claimed) < limit and self._is_free(flow_id, flow_types):
                self._flows[flow_id].owner = worker
                claimed.append(flow_id)
        done(claimed)

    def unclaimed(self) -> frozenset[str]:
        """Return the flows that need a worker now and that no living worker owns."""
        now = self.clock.now()
        return frozenset(
            flow_id
            for flow_id, wake_at in self._waking.items()
            if wake_at <= now and self._flows[flow_id].owner not in self._workers
        )

    def owned_versions(self, worker: str, flow_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the version of these flows, as far as the worker owns them, and of due ones."""
        now = self.clock.now()
        due = [flow_id for flow_id, wake_at in self._waking.items() if wake_at <= now]
        found = ((flow_id, self._flows.get(flow_id)) for flow_id in (*due, *flow_ids))
        return {
            flow_id: flow.header.version
            for flow_id, flow in found
            if flow is not None and flow.header is not None and flow.owner == worker
        }

    def renew(self, worker: str, lease_seconds: float) -> None:  # noqa: ARG002 - it dies with us
        """Register a worker."""
        self._workers.add(worker)

    def release(self, worker: str, done: Done) -> None:
        """Forget a worker: its flows are free."""
        self._workers.discard(worker)
        done(None)

    def next_wake(self, flow_types: Sequence[str]) -> float | None:
        """Return when the next flow is due that no worker of this store owns."""
        now = self.clock.now()
        later = [
            wake_at
            for flow_id, wake_at in self._waking.items()
            if wake_at > now and self._is_free(flow_id, flow_types)
        ]
        return min(later, default=None)

    def _is_free(self, flow_id: str, flow_types: Sequence[str]) -> bool:
        flow = self._flows[flow_id]
        return (
            flow.owner not in self._workers
            and flow.header is not None
            and flow.header.flow_type in flow_types
        )


def _prefix(name: str) -> str:
    return name[: name.find("/") + 1]


def _upsert(rows: dict[K, V], changes: Mapping[K, V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
