"""A flow's state in memory: the stored rows, and indexes that are derived from them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw

from dex_agents.machine.records import (
    Changes,
    ChannelWait,
    Execution,
    FlowHeader,
    Phase,
    TimerWait,
)

__all__ = ("FlowState",)


class FlowState:
    """The rows of one flow, Attributes aside, which the machine never reads.

    A state is changed only through `put`, `enqueue`, `dequeue`, `discard` and the header, so the
    indexes always agree with the rows. A state that is loaded from a store and
    one that was driven there by events are equal.

    Args:
        header: The flow's header; version 0 for a flow that does not exist yet.
        executions: Its Step executions.
        messages: Its queued messages as ``(channel, number, payload)``, oldest first.
    """

    __slots__ = (
        "executions",
        "header",
        "locks",
        "queues",
        "runnable",
        "running",
        "timed",
        "waiting_on",
    )

    def __init__(
        self,
        header: FlowHeader,
        executions: Iterable[Execution] = (),
        messages: Iterable[tuple[str, int, Raw]] = (),
    ) -> None:
        self.header = header
        self.executions: dict[str, Execution] = {}
        self.queues: dict[str, dict[int, Raw]] = {}
        self.runnable: dict[str, None] = {}
        self.running: dict[str, None] = {}
        self.timed: dict[str, float] = {}
        self.waiting_on: dict[str, dict[str, None]] = {}
        self.locks: dict[str, str] = {}
        for channel, number, payload in messages:
            self.enqueue(channel, number, payload)
        for execution in sorted(executions, key=lambda each: each.order):
            self.put(execution)

    @classmethod
    def absent(cls, flow_id: str) -> FlowState:
        """Return the state of a flow that does not exist yet."""
        return cls(FlowHeader(flow_id=flow_id))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlowState):
            return NotImplemented
        return (self.header, self.executions, self.queues, self.locks) == (
            other.header,
            other.executions,
            other.queues,
            other.locks,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        header = self.header
        steps = ", ".join(
            f"{each.id}:{each.phase}#{each.attempt}{'*' if each.is_running else ''}"
            for each in self.executions.values()
        )
        return f"<FlowState {header.flow_id!r} v{header.version} {header.status} [{steps}]>"

    def put(self, execution: Execution) -> None:
        """Insert or replace an execution."""
        self.remove(execution.id)
        self.executions[execution.id] = execution
        if execution.is_running:
            self.running[execution.id] = None
        elif execution.phase is Phase.WAITING:
            self._index_wait(execution)
        else:
            self.runnable[execution.id] = None
            if execution.due_at:
                self.timed[execution.id] = execution.due_at
        for name in execution.locks:
            self.locks[name] = execution.id

    def remove(self, execution_id: str) -> None:
        """Remove an execution, if it is there."""
        execution = self.executions.pop(execution_id, None)
        if execution is None:
            return
        self.running.pop(execution_id, None)
        self.runnable.pop(execution_id, None)
        self.timed.pop(execution_id, None)
        if execution.wait is not None:
            for condition in execution.wait.conditions:
                if isinstance(condition, ChannelWait):
                    self._forget_waiter(condition.channel, execution_id)
        for name in execution.locks:
            self.locks.pop(name, None)

    def enqueue(self, channel: str, number: int, payload: Raw) -> None:
        """Put a message at the end of a Channel."""
        self.queues.setdefault(channel, {})[number] = payload

    def dequeue(self, channel: str) -> tuple[int, Raw]:
        """Take the oldest message of a Channel."""
        queue = self.queues[channel]
        number = next(iter(queue))
        payload = queue.pop(number)
        if not queue:
            del self.queues[channel]
        return number, payload

    def discard(self, channel: str, number: int) -> bool:
        """Remove a queued message; return False when it is not there."""
        queue = self.queues.get(channel, {})
        if number not in queue:
            return False
        del queue[number]
        if not queue:
            del self.queues[channel]
        return True

    def lock(self, holder: str, names: Iterable[str]) -> None:
        """Hold locks for something that is no Step; they are not stored."""
        self.locks.update(dict.fromkeys(names, holder))

    def unlock(self, holder: str) -> None:
        """Release every lock of a holder."""
        for name in [name for name, by in self.locks.items() if by == holder]:
            del self.locks[name]

    def apply(self, changes: Changes) -> None:
        """Replay what a transition changed, as a store would."""
        self.header = changes.header
        for execution_id, execution in changes.executions.items():
            if execution is None:
                self.remove(execution_id)
            else:
                self.put(execution)
        for (channel, number), payload in changes.messages.items():
            if payload is not None:
                self.enqueue(channel, number, payload)
            else:
                self.discard(channel, number)

    def _forget_waiter(self, channel: str, execution_id: str) -> None:
        waiters = self.waiting_on.get(channel, {})
        waiters.pop(execution_id, None)
        if not waiters:
            self.waiting_on.pop(channel, None)

    def _index_wait(self, execution: Execution) -> None:
        if execution.wait is None:
            return
        timers = [c.fire_at for c in execution.wait.conditions if isinstance(c, TimerWait)]
        if timers:
            self.timed[execution.id] = min(timers)
        for condition in execution.wait.conditions:
            if isinstance(condition, ChannelWait):
                self.waiting_on.setdefault(condition.channel, {})[execution.id] = None
