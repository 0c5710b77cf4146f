"""A flow that this worker owns: its state ahead of the store, and the commits under way.

A handle applies an event to the state in memory at once and queues the changes.
Effects are performed when the changes are durable. Several transitions of one
flow may be under way; they become durable in order. What is said on the
strength of one of them, a refusal too, is said once that one is durable.

When the store refuses a commit (another process changed the flow, or the disk
is full), everything behind it is refused too. The handle then loads fresh
state and applies the same events to it, in order. An event that no longer fits
is refused there, like one from a worker that was fenced off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from dex_agents.errors import DexAgentsError, StaleAttemptError, StoreError
from dex_agents.executor.attempt import Attempt
from dex_agents.executor.attributes import Attributes
from dex_agents.executor.clock import Alarm
from dex_agents.executor.store import Commit, CommitConflict, Lineage, Store, StreamAppend
from dex_agents.machine import (
    AttemptAbandoned,
    AttemptFailed,
    AttemptsLost,
    Begin,
    Cancel,
    Changes,
    Effect,
    Event,
    Execution,
    Failure,
    FlowState,
    FlowStatus,
    Machine,
    Phase,
    TimeAdvanced,
)
from dex_agents.table import FlowTable

__all__ = ("FlowHandle", "Owner", "Served")

WORKER_LOST = Failure("The worker that ran this attempt is gone.", "dex_agents.WorkerLost")

T = TypeVar("T")

_RETRY_SECONDS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""The delays before a refused store is tried again; the last one repeats."""

_MOST_INLINE = 64
"""After so many transitions in a row, inline Steps are handed out, so that others get a turn."""


class Served:
    """A table together with the machine that drives its flows."""

    def __init__(self, table: FlowTable, machine: Machine) -> None:
        self.table = table
        self.machine = machine
        self.inline_steps = frozenset(step.name for step in table.steps if step.is_inline)


class Owner(Protocol):
    """What a handle needs of the executor that it belongs to."""

    worker: str
    store: Store

    def free_slots(self) -> int:
        """Return how many attempts may begin now."""
        ...

    def take_slots(self, count: int) -> None:
        """Count attempts that are handed out."""
        ...

    def return_slots(self, count: int) -> None:
        """Count attempts that are over, or that never began."""
        ...

    def starve(self, handle: FlowHandle) -> None:
        """Remember a flow that waits for a slot."""
        ...

    def begin(self, handle: FlowHandle, execution: Execution) -> Attempt:
        """Start an attempt."""
        ...

    def run_inline(
        self, handle: FlowHandle, execution: Execution, append: Callable[[StreamAppend], None]
    ) -> Event:
        """Run an attempt here and now; return what came of it."""
        ...

    def refused(self, handle: FlowHandle, error: DexAgentsError) -> None:
        """Log a result that was refused, or would be."""
        ...

    def store_refused(self, handle: FlowHandle, error: StoreError) -> None:
        """Log that the store could not take a commit."""
        ...

    def rested(self, handle: FlowHandle) -> None:
        """Tell telemetry that nothing of a flow is left to do here for now."""
        ...

    def drop(self, handle: FlowHandle) -> None:
        """Forget a flow that this worker no longer owns."""
        ...


class _Entry:
    """One event on its way to the store.

    Attributes:
        decide: Gives the event, on the newest state; what it raises refuses the entry.
        future: The caller who waits for the outcome. An entry without one is a
            worker's own, and is kept while the store is unavailable.
        error: Why it was refused, by a state that may be ahead of the store.
        subject: The attempt that it reports of.
        is_finding: Whether it only says what fresh state showed, which the next fresh
            state may contradict.
        changes: What it changed, a transition each; none before it was applied.
        effects: What is to be done once that is durable.
        begun: How many attempts it hands out then.
    """

    __slots__ = (
        "begun",
        "changes",
        "decide",
        "effects",
        "error",
        "future",
        "is_finding",
        "result",
        "subject",
    )

    def __init__(
        self,
        decide: Callable[[FlowHandle], tuple[Event | None, Any]],
        future: asyncio.Future[Any] | None,
        subject: Execution | None = None,
        *,
        is_finding: bool = False,
    ) -> None:
        self.decide = decide
        self.future = future
        self.subject = subject
        self.is_finding = is_finding
        self.begun = 0
        self.result: Any = None
        self.error: Exception | None = None
        self.changes: list[Changes] = []
        self.effects: list[Effect] = []

    def refuse(self, error: BaseException) -> bool:
        """Tell whoever waits; return False when nobody does."""
        if self.future is None:
            return False
        if not self.future.done():
            self.future.set_exception(error)
        return True


class FlowHandle:
    """One owned flow in memory.

    Args:
        owner: The executor.
        served: Its table and machine.
        state: Its committed state.
    """

    def __init__(self, owner: Owner, served: Served, state: FlowState) -> None:
        self._owner = owner
        self._store = owner.store
        self.served = served
        self.flow_id = state.header.flow_id
        self.state = state
        self.durable_version = state.header.version
        self.attributes = Attributes(owner.store.reader(self.flow_id))
        self._lineage = Lineage()
        self.attempts: dict[str, Attempt] = {}
        self._entries: deque[_Entry] = deque()
        self._in_store = 0
        self._is_behind = False
        self._refusal: BaseException | None = None
        self._refusals = 0
        self._applied_at = 0.0
        self._alarm: Alarm | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._is_dropped = False
        self._inherited = frozenset(_running(state))

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way in this process."""
        return not self._entries and not self.attempts and not self._is_behind

    @property
    def has_timers(self) -> bool:
        """Whether it must stay in memory to wake by itself."""
        return self.state.header.wake_at is not None

    @property
    def is_settled(self) -> bool:
        """Whether everything that it has applied is durable."""
        return not self._entries

    # Events in

    def submit(self, event: Event, subject: Execution | None = None) -> None:
        """Take an event of this worker's own, of an attempt or not; it is kept until stored."""
        self._take(_Entry(lambda _: (event, None), None, subject))

    def take_over(self) -> bool:
        """Begin to serve a flow; return whether it was left with attempts running.

        Whoever ran them, this very worker before it lost the flow perhaps, is gone.
        """
        self._find(AttemptsLost(WORKER_LOST) if self._inherited else TimeAdvanced())
        return bool(self._inherited)

    def _find(self, event: Event) -> None:
        self._take(_Entry(lambda _: (event, None), None, is_finding=True))

    def request(self, decide: Callable[[FlowHandle], tuple[Event | None, T]]) -> asyncio.Future[T]:
        """Take a caller's request.

        Args:
            decide: Returns the event, or None when nothing changes, and what
                the caller gets once it is durable. It may run again, on
                fresher state.

        Returns:
            What ``decide`` returned, raised, or `CommitConflict` when the flow
            turned out to be another worker's.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._take(_Entry(decide, future))
        return future

    def tick(self) -> None:
        """Let what is due happen, as far as there are slots."""
        now = self._store.clock.now()
        state = self.state
        if self._is_behind or state.header.status is not FlowStatus.RUNNING:
            return
        has_waited = any(at <= now for at in state.timed.values())
        can_begin = self._is_runnable(now)
        if has_waited or (can_begin and self._owner.free_slots() > 0):
            self.submit(TimeAdvanced())
        elif can_begin:
            self._owner.starve(self)
        else:
            self._applied_at = min(self._applied_at, now)  # a clock that was set back
            self._set_alarm()

    def _is_runnable(self, now: float) -> bool:
        """Whether an attempt could begin, if there is a slot for it."""
        return any(self.state.executions[name].is_due(now) for name in self.state.runnable)

    def _take(self, entry: _Entry) -> None:
        if self._is_behind:
            self._entries.append(entry)  # applied when fresh state has been loaded
            return
        entry.changes, entry.effects, entry.error = [], [], None
        try:
            self._apply(entry)
        except Exception as error:  # noqa: BLE001 - for whoever waits for it
            entry.error = error
        if entry.changes:
            return
        if self._entries:
            self._entries.append(entry)  # what it was decided on may still be refused
        else:
            self._answer(entry)

    def _answer(self, entry: _Entry) -> None:
        """Say what came of an entry that changed nothing."""
        error = entry.error
        if error is None:
            _resolve(entry)
        elif not entry.refuse(error):
            if not isinstance(error, DexAgentsError):
                raise error
            self._owner.refused(self, error)

    def _apply(self, entry: _Entry) -> None:
        event, entry.result = entry.decide(self)
        if event is None:
            return
        streamed: list[StreamAppend] = []
        inline = self._advance(entry, event)
        while inline:
            execution = inline.popleft()
            self._owner.return_slots(1)
            if self.state.executions.get(execution.id) is execution:  # not cancelled since
                result = self._owner.run_inline(self, execution, streamed.append)
                inline += self._advance(entry, result)
        if self.state.runnable and self._owner.free_slots() <= 0:
            self._owner.starve(self)
        self._entries.append(entry)
        self._in_store += 1
        self._store.commit(
            Commit(
                self.flow_id,
                self._owner.worker,
                entry.changes,
                self._lineage,
                partial(self._committed, entry),
                streamed,
            )
        )

    def _advance(self, entry: _Entry, event: Event) -> deque[Execution]:
        """Make a transition in memory; return the attempts to run before it is stored.

        They are those of inline Steps, except in a flow that is just being taken over:
        should such a Step bring its worker down, the next worker counts the attempt.
        """
        owner = self._owner
        now = self._applied_at = self._store.clock.now()
        transition = self.served.machine.apply(
            self.state, event, now, owner.free_slots(), owner.worker
        )
        self.attributes.write(transition.changes.attributes)
        entry.changes.append(transition.changes)
        can_inline = not entry.is_finding and len(entry.changes) <= _MOST_INLINE
        inline: deque[Execution] = deque()
        for effect in transition.effects:
            if not isinstance(effect, Begin):
                entry.effects.append(effect)
                continue
            owner.take_slots(1)
            if can_inline and effect.execution.step in self.served.inline_steps:
                inline.append(effect.execution)
            else:
                entry.effects.append(effect)
                entry.begun += 1
        return inline

    # Durable, or not

    def _committed(self, entry: _Entry, error: BaseException | None) -> None:
        self._in_store -= 1
        if self._is_dropped:
            self._leave(entry, error)
            return
        if error is None and not self._is_behind:
            self._entries.popleft()
            self._refusals = 0
            self._perform(entry)
            while self._entries and not self._entries[0].changes:
                self._answer(self._entries.popleft())
            self._rest()
            return
        # Whatever was queued behind it is of the same lineage, and refused too: wait for it.
        self._is_behind = True
        self._refusal = self._refusal or error
        if not self._in_store:
            self._recover()

    def _rest(self) -> None:
        """Say so once nothing is under way and nothing could begin."""
        if not self.is_idle:
            return
        if not (self.state.runnable and self._is_runnable(self._store.clock.now())):
            self._owner.rested(self)

    def _leave(self, entry: _Entry, error: BaseException | None) -> None:
        """Tell the caller, and begin nothing: the worker has stopped meanwhile."""
        self._owner.return_slots(entry.begun)
        if error is None:
            _resolve(entry)
        else:
            entry.refuse(error)

    def _perform(self, entry: _Entry) -> None:
        self.durable_version = entry.changes[-1].header.version
        for effect in entry.effects:
            if isinstance(effect, Begin):
                attempt = self._owner.begin(self, effect.execution)
                self.attempts[effect.execution.id] = attempt
            else:
                self._cancel(effect)
        _resolve(entry)
        self._set_alarm()

    def _cancel(self, effect: Cancel) -> None:
        attempt = self.attempts.pop(effect.execution_id, None)
        if attempt is not None:
            attempt.cancel()

    def ended(self, attempt: Attempt, event: Event | None) -> None:
        """Take what an attempt reports."""
        if self.attempts.get(attempt.execution.id) is attempt:
            del self.attempts[attempt.execution.id]
        self._owner.return_slots(1)
        if event is not None and not self._is_dropped:
            self.submit(event, attempt.execution)

    def _set_alarm(self) -> None:
        """Wake for the next Timer or retry, whatever runs meanwhile.

        What was due at the last transition is not woken for again: it waits
        for a slot, for a lock, or for the rest of its conditions.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        later = [at for at in self.state.timed.values() if at > self._applied_at]
        if later:
            self._alarm = self._store.clock.call_at(min(later), self.tick)

    # Starting over from fresh state

    def refresh(self) -> None:
        """Load fresh state, because another process changed the flow."""
        if not self._is_behind and not self._in_store:
            self._is_behind = True
            self._recover()

    def _recover(self) -> None:
        refusal, self._refusal = self._refusal, None
        for entry in self._entries:
            self._owner.return_slots(entry.begun)
            entry.begun = 0
        if isinstance(refusal, StoreError):
            self._reload_later(refusal)
        else:
            self._reload()

    def _reload_later(self, error: StoreError) -> None:
        """Tell callers that the store cannot take their request; keep what attempts did."""
        self._entries = deque(each for each in self._entries if not each.refuse(error))
        self._owner.store_refused(self, error)
        delay = _RETRY_SECONDS[min(self._refusals, len(_RETRY_SECONDS) - 1)]
        self._refusals += 1
        self._retry = asyncio.get_running_loop().call_later(delay, self._reload)

    def _reload(self) -> None:
        self._retry = None
        try:
            state = self._store.load(self.flow_id)
            owned = self._store.owned_versions(self._owner.worker, [self.flow_id])
        except StoreError as error:
            self._reload_later(error)
            return
        entries = deque(each for each in self._entries if not each.is_finding)
        self._entries = deque()
        self._is_behind = False
        if state is None or self.flow_id not in owned:
            self._lose(entries)
        else:
            self._start_over(state, entries)

    def _start_over(self, state: FlowState, entries: deque[_Entry]) -> None:
        self.state = state
        self.durable_version = state.header.version
        self.attributes = Attributes(self._store.reader(self.flow_id))
        self._lineage = Lineage()
        unknown = _running(state)
        for attempt in list(self.attempts.values()):
            if _identity(attempt.execution) not in unknown:
                del self.attempts[attempt.execution.id]
                attempt.cancel()
                if attempt.execution.id in state.executions:
                    self._tell_stale(attempt)
        begun = [attempt.execution for attempt in self.attempts.values()]
        told = [entry.subject for entry in entries if entry.subject is not None]
        for known in map(_identity, (*begun, *told)):
            unknown.pop(known, None)
        for execution in unknown.values():
            self._find(self._lost(execution))
        for entry in entries:
            self._take(entry)
        self._applied_at = self._store.clock.now()
        self._set_alarm()
        self.tick()

    def _lost(self, execution: Execution) -> Event:
        """Return what became of a running attempt that nobody here knows of."""
        is_own = execution.worker == self._owner.worker
        if is_own and _identity(execution) not in self._inherited:
            # Handed out by a commit that was durable although it seemed to fail: never begun.
            return AttemptAbandoned(execution.id, execution.attempt, phase=execution.phase)
        # The flow was another worker's meanwhile, and the handler may have run there.
        return AttemptFailed(execution.id, execution.attempt, WORKER_LOST, phase=execution.phase)

    def _lose(self, entries: deque[_Entry]) -> None:
        """Give the flow up: another worker owns it, or it is gone."""
        for attempt in self.attempts.values():
            self._tell_stale(attempt)
        self._owner.drop(self)
        for entry in entries:
            if not entry.refuse(CommitConflict()):
                self._owner.refused(
                    self, StaleAttemptError(entry.subject.id if entry.subject else self.flow_id)
                )
        self._owner.rested(self)

    def _tell_stale(self, attempt: Attempt) -> None:
        """Log an attempt that another worker's has replaced while it ran here."""
        execution = attempt.execution
        self._owner.refused(self, StaleAttemptError(execution.id, execution.attempt))

    def close(self) -> None:
        """Stop every attempt here, without reporting; the store stays as it is."""
        self._is_dropped = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._retry is not None:
            self._retry.cancel()
        attempts, self.attempts = self.attempts, {}
        for attempt in attempts.values():
            attempt.cancel()
        self._owner.rested(self)
        entries, self._entries = self._entries, deque()
        for entry in entries:
            # The store tells of what is on its way to it. Nobody tries the rest again.
            if self._is_behind or not entry.changes:
                entry.refuse(self._refusal or CommitConflict())


def _identity(execution: Execution) -> tuple[str, Phase, int]:
    """Return what tells an attempt from every other one of its flow."""
    return execution.id, execution.phase, execution.attempt


def _running(state: FlowState) -> dict[tuple[str, Phase, int], Execution]:
    """Return what runs, by what tells its attempts apart."""
    running = [state.executions[name] for name in state.running]
    return {_identity(execution): execution for execution in running}


def _resolve(entry: _Entry) -> None:
    if entry.future is not None and not entry.future.done():
        entry.future.set_result(entry.result)
