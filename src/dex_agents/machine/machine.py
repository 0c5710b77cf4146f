"""The flow machine: what a table does, decided without I/O, clock or randomness.

Two rules:

1. Everything that changes a flow is an event, and `Machine.apply` is its only
   door. Time is an argument. The same events give the same state, changes and
   effects, to the byte.
2. An event is checked before anything is changed. A refused event leaves the
   state as it was.

One transition does, in this order: take in the event, let waits that became
ready consume their messages, hand attempts out while the caller has slots, and
say from when a worker is needed next. The caller stores the changes before it
performs the effects, so an attempt that began is on record before its handler
runs, and the commit that ends one Step is also the one that begins the next.

It is one long module on purpose: whoever asks what may happen to a flow reads
it from top to bottom, and nothing elsewhere decides anything.

An execution passes through ``wait_for`` (where its Step has one), ``waiting``
and ``execute``. In the first and the last, attempts are handed out. Ties are
decided by the order of scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Raw, json
from msgspec.structs import replace

from dex_agents.errors import (
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    RpcLockConflictError,
    StaleAttemptError,
)
from dex_agents.machine.matching import match
from dex_agents.machine.records import (
    AttemptAbandoned,
    AttemptFailed,
    AttemptsLost,
    Begin,
    Cancel,
    Changes,
    Consumed,
    Effect,
    Event,
    ExecuteReturned,
    Execution,
    ExecutionOptions,
    Failure,
    FlowHeader,
    FlowStarted,
    FlowStatus,
    FlowStopped,
    HistoryEntry,
    HistoryEvent,
    Phase,
    RpcReturned,
    ScheduledStep,
    StepsScheduled,
    TimeAdvanced,
    TimerSkipped,
    TimerWait,
    Transition,
    WaitReturned,
    Writes,
)
from dex_agents.machine.state import FlowState
from dex_agents.table import CloseKind

__all__ = ("Machine", "Rules")

STARTED = "__start__"
"""The origin of a flow's first execution."""


class Rules(Protocol):
    """What the machine must know of a flow's definition."""

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:
        """Return whether a Step has a ``wait_for``."""
        ...

    def options(self, step: str) -> ExecutionOptions:
        """Return the options that a Step has when its movement brings none."""
        ...


class Machine:
    """Drives flows of one definition.

    Args:
        rules: The definition, usually a `dex_agents.machine.TableRules`.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def options(self, execution: Execution) -> ExecutionOptions:
        """Return the options that are in force for an execution."""
        return execution.options or self._rules.options(execution.step)

    def apply(
        self, state: FlowState, event: Event, now: float, slots: int = 0, worker: str = ""
    ) -> Transition:
        """Advance a state by one event, in place, and return what changed and what follows.

        Args:
            state: The flow's state.
            event: What happened.
            now: Seconds since 1970.
            slots: How many attempts the caller can begin at once.
            worker: The caller's name, which is kept with what it is handed.

        Raises:
            FlowAlreadyStartedError: It starts a flow that exists.
            FlowNotFoundError: The flow does not exist.
            FlowNotActiveError: The flow is closed.
            StaleAttemptError: The attempt is not the current one, or has ended.
        """
        _check(state, event)
        return _Step(self._rules, state, now, slots, worker).run(event)

    def require_locks(self, state: FlowState, rpc: str, names: tuple[str, ...]) -> None:
        """Raise `RpcLockConflictError` when one of these Attributes is held."""
        for name in names:
            if name in state.locks:
                raise RpcLockConflictError(rpc, name)


_OF_ATTEMPTS = (ExecuteReturned, WaitReturned, AttemptFailed, AttemptAbandoned)


def _check(state: FlowState, event: Event) -> None:
    header = state.header
    if isinstance(event, FlowStarted):
        if header.version:
            raise FlowAlreadyStartedError(header.flow_id)
        return
    if not header.version:
        raise FlowNotFoundError(header.flow_id)
    if isinstance(event, _OF_ATTEMPTS):
        execution = state.executions.get(event.execution_id)
        if execution is None or not execution.is_running or execution.attempt != event.attempt:
            raise StaleAttemptError(event.execution_id, event.attempt)
        wanted = _phase_of(event)
        if wanted is not None and execution.phase is not wanted:
            raise StaleAttemptError(event.execution_id, event.attempt)
    elif header.status is not FlowStatus.RUNNING:
        raise FlowNotActiveError(header.flow_id, header.status)


def _phase_of(
    event: WaitReturned | ExecuteReturned | AttemptFailed | AttemptAbandoned,
) -> Phase | None:
    if isinstance(event, WaitReturned):
        return Phase.WAIT_FOR
    return Phase.EXECUTE if isinstance(event, ExecuteReturned) else event.phase


class _Step:
    """One transition under way: the state it changes, and the record of what it changed."""

    def __init__(self, rules: Rules, state: FlowState, now: float, slots: int, worker: str) -> None:
        self.rules = rules
        self.state = state
        self.now = now
        self.slots = slots
        self.worker = worker
        header = state.header
        self.changes = Changes(header=header)
        self.effects: list[Effect] = []
        self.counters = header.counters
        self.next_order = header.next_order
        self.next_message = header.next_message
        self.next_history = header.next_history
        self.is_completing = header.is_completing
        self.outputs = header.outputs
        self.status = header.status
        self.closed_at = header.closed_at
        self.failure = header.failure
        self.flow_type = header.flow_type
        self.started_at = header.started_at
        self.ready: dict[str, None] = {}  # executions whose waits may have become ready

    def run(self, event: Event) -> Transition:
        _HANDLERS[type(event)](self, event)  # type: ignore[operator]
        if self.status is FlowStatus.RUNNING:
            self._end_waits()
            self._hand_out()
            if self.is_completing and not self.state.executions:
                self._close(FlowStatus.COMPLETED)
        self._seal()
        return Transition(self.changes, tuple(self.effects))

    # Events

    def flow_started(self, event: FlowStarted) -> None:
        self.flow_type = event.flow_type
        self.started_at = self.now
        self.changes.attributes.update(event.attributes)
        self._record(HistoryEvent.FLOW_STARTED)
        if event.start is not None:
            self._schedule(event.start, STARTED)

    def wait_returned(self, event: WaitReturned) -> None:
        execution = self.state.executions[event.execution_id]
        self._record_attempt(HistoryEvent.WAIT_FOR_COMPLETED, execution)
        self._write(event.writes)
        waiting = replace(
            execution,
            phase=Phase.WAITING,
            is_running=False,
            wait=event.wait,
            attempt=0,
            last_failure=None,  # attempts of execute are counted, and linked, among themselves
            last_carrier={},
            locks=(),
        )
        self._put(waiting)
        self.ready[waiting.id] = None

    def execute_returned(self, event: ExecuteReturned) -> None:
        execution = self.state.executions[event.execution_id]
        decision = event.decision
        self._record_attempt(HistoryEvent.EXECUTE_COMPLETED, execution)
        self._write(event.writes)
        self._drop(execution.id)
        self._cancel_steps(decision.cancel_steps)
        self._cancel_siblings(decision.cancel_sibling_steps, execution.origin)
        for movement in decision.next_steps:
            self._schedule(movement, execution.id)
        self._apply_close(decision.close, decision.output)

    def attempt_failed(self, event: AttemptFailed) -> None:
        execution = self.state.executions[event.execution_id]
        self._fail(execution, event.failure, event.retry_after, event.carrier)

    def attempt_abandoned(self, event: AttemptAbandoned) -> None:
        execution = self.state.executions[event.execution_id]
        attempt = execution.attempt - 1
        self._put(
            replace(
                execution,
                attempt=attempt,
                is_running=False,
                due_at=0.0,
                # What never began neither counts towards the total time nor holds a lock.
                first_attempt_at=execution.first_attempt_at if attempt else 0.0,
                locks=execution.locks if attempt else (),
            )
        )

    def attempts_lost(self, event: AttemptsLost) -> None:
        for execution in self._in_order(self.state.running):
            if self.status is FlowStatus.RUNNING:
                self._fail(execution, event.failure, None, {})

    def rpc_returned(self, event: RpcReturned) -> None:
        self._record(HistoryEvent.RPC_COMPLETED, step_type=event.rpc)
        self._write(event.writes)
        self._cancel_steps(event.cancel_steps)
        for movement in event.next_steps:
            self._schedule(movement, f"__rpc/{event.rpc}")

    def time_advanced(self, _event: TimeAdvanced) -> None:
        """Do nothing: every transition looks at what is due."""

    def steps_scheduled(self, event: StepsScheduled) -> None:
        for movement in event.next_steps:
            self._schedule(movement, event.origin)

    def timer_skipped(self, event: TimerSkipped) -> None:
        execution = self.state.executions.get(event.execution_id)
        if execution is None or execution.phase is not Phase.WAITING or execution.wait is None:
            return
        conditions = list(execution.wait.conditions)
        skipped = conditions[event.position : event.position + 1]
        if not any(isinstance(each, TimerWait) for each in skipped):
            return
        conditions[event.position] = TimerWait(self.now)
        wait = replace(execution.wait, conditions=tuple(conditions))
        self._put(replace(execution, wait=wait))
        self.ready[execution.id] = None

    def flow_stopped(self, event: FlowStopped) -> None:
        self._close(FlowStatus.STOPPED, Failure(event.reason, "") if event.reason else None)

    # What events lead to

    def _write(self, writes: Writes) -> None:
        self.changes.attributes.update(writes.attributes)
        for channel, number in writes.discarded:
            if self.state.discard(channel, number):
                self._forget_message(channel, number)
        for message in writes.published:
            number = self.next_message
            self.next_message += 1
            self.state.enqueue(message.channel, number, message.payload)
            self.changes.messages[message.channel, number] = message.payload
            self.ready.update(self.state.waiting_on.get(message.channel, {}))

    def _schedule(
        self, movement: ScheduledStep, origin: str, recovery: Failure | None = None
    ) -> None:
        number = self.counters.get(movement.step, 0) + 1
        self.counters = {**self.counters, movement.step: number}
        waits = self.rules.has_wait(movement.step, movement.options)
        execution = Execution(
            id=f"{movement.step}-{number}",
            step=movement.step,
            order=self.next_order,
            input=movement.input,
            phase=Phase.WAIT_FOR if waits else Phase.EXECUTE,
            origin=origin,
            scheduled_at=self.now,
            options=movement.options,
            recovery=recovery,
        )
        self.next_order += 1
        self._put(execution)

    def _fail(
        self,
        execution: Execution,
        failure: Failure,
        retry_after: float | None,
        carrier: dict[str, str],
    ) -> None:
        options = self._options(execution)
        retry = options.retry
        if execution.phase is Phase.WAIT_FOR and options.wait_for_retry is not None:
            retry = options.wait_for_retry
        delay = retry.delay_after(execution.attempt) if retry_after is None else retry_after
        retry_at = self.now + delay
        has_attempts = not retry.max_attempts or execution.attempt < retry.max_attempts
        if has_attempts and retry_at <= execution.first_attempt_at + retry.total_seconds:
            self._record_attempt(HistoryEvent.ATTEMPT_FAILED, execution, failure)
            self._put(
                replace(
                    execution,
                    is_running=False,
                    due_at=retry_at,
                    scheduled_at=retry_at,
                    last_failure=failure,
                    last_carrier=carrier,
                )
            )
        else:
            self._use_up(execution, failure, options)

    def _use_up(self, execution: Execution, failure: Failure, options: ExecutionOptions) -> None:
        is_execute = execution.phase is Phase.EXECUTE
        ended = HistoryEvent.EXECUTE_FAILED if is_execute else HistoryEvent.WAIT_FOR_FAILED
        self._record_attempt(ended, execution, failure)
        if not is_execute and options.wait_for_proceeds:
            self._execute_without_wait(execution, failure)
            return
        self._drop(execution.id)
        if is_execute and options.failure_step is not None:
            route = ScheduledStep(options.failure_step, execution.input, options.failure_options)
            self._schedule(route, execution.id, recovery=failure)
        else:
            why = f"{execution.id} failed and has no failure route: {failure.detail}"
            self._close(FlowStatus.FAILED, Failure(why, failure.error_type))

    def _execute_without_wait(self, execution: Execution, failure: Failure) -> None:
        self._put(
            replace(
                execution,
                phase=Phase.EXECUTE,
                is_running=False,
                attempt=0,
                scheduled_at=self.now,
                due_at=0.0,
                first_attempt_at=0.0,
                recovery=failure,
                last_failure=None,
                last_carrier={},
                locks=(),
                wait_failed=True,
            )
        )

    def _apply_close(self, close: CloseKind | None, output: Raw | None) -> None:
        if output is not None and close in (CloseKind.GRACEFUL_COMPLETE, CloseKind.FORCE_COMPLETE):
            self.outputs = (*self.outputs, output)
        if close is CloseKind.GRACEFUL_COMPLETE:
            self.is_completing = True
        elif close is CloseKind.FORCE_COMPLETE:
            self._close(FlowStatus.COMPLETED)
        elif close is CloseKind.FORCE_FAIL:
            self._close(FlowStatus.FAILED, Failure(_reason(output), ""))

    def _close(self, status: FlowStatus, failure: Failure | None = None) -> None:
        for execution in self._in_order(self.state.executions):
            self._cancel(execution.id)
        self.status = status
        self.closed_at = self.now
        self.failure = failure
        self._record(HistoryEvent.FLOW_CLOSED, failure=failure)

    def _cancel_steps(self, steps: tuple[str, ...]) -> None:
        if steps:
            for execution in self._in_order(self.state.executions):
                if execution.step in steps:
                    self._cancel(execution.id)

    def _cancel_siblings(self, steps: tuple[str, ...], origin: str) -> None:
        if steps:
            for execution in self._in_order(self.state.executions):
                if execution.step in steps and execution.origin == origin:
                    self._cancel(execution.id)

    def _cancel(self, execution_id: str) -> None:
        execution = self.state.executions[execution_id]
        if execution.is_running:
            self.effects.append(Cancel(execution.id, execution.attempt))
        self._record_attempt(HistoryEvent.CANCELED, execution)
        self._drop(execution_id)

    # Waits and attempts

    def _end_waits(self) -> None:
        if self.state.timed:
            due = [name for name, at in self.state.timed.items() if at <= self.now]
            self.ready.update(dict.fromkeys(due))
        if not self.ready:
            return
        for execution in self._in_order(self.ready):
            if execution.phase is not Phase.WAITING or execution.wait is None:
                continue
            found = match(execution.wait, self.state.queues, self.now)
            if found is None:
                self._await_later_timers(execution)
                continue
            consumed = []
            for channel, count in found.takes:
                for _ in range(count):
                    number, payload = self.state.dequeue(channel)
                    self._forget_message(channel, number)
                    consumed.append(Consumed(channel, payload))
            self._put(
                replace(
                    execution,
                    phase=Phase.EXECUTE,
                    chosen=found.chosen,
                    consumed=tuple(consumed),
                    scheduled_at=self.now,
                    due_at=0.0,
                    first_attempt_at=0.0,
                )
            )

    def _await_later_timers(self, execution: Execution) -> None:
        # A fired Timer whose group is not ready yet must not wake the flow again and again.
        conditions = execution.wait.conditions if execution.wait else ()
        later = [c.fire_at for c in conditions if isinstance(c, TimerWait) and c.fire_at > self.now]
        if later:
            self.state.timed[execution.id] = min(later)
        else:
            self.state.timed.pop(execution.id, None)

    def _hand_out(self) -> None:
        if not self.state.runnable or self.slots <= 0:
            return
        for execution in self._in_order(self.state.runnable):
            if self.slots <= 0:
                break
            if not execution.is_due(self.now):
                continue
            locks = self._locks(execution)
            if any(self.state.locks.get(name, execution.id) != execution.id for name in locks):
                continue
            self._begin(execution, locks)

    def _begin(self, execution: Execution, locks: tuple[str, ...]) -> None:
        self.slots -= 1
        begun = replace(
            execution,
            attempt=execution.attempt + 1,
            is_running=True,
            begun_at=self.now,
            first_attempt_at=execution.first_attempt_at or self.now,
            locks=locks,
            worker=self.worker,
        )
        self._put(begun)
        self.effects.append(Begin(begun))

    def _locks(self, execution: Execution) -> tuple[str, ...]:
        options = self._options(execution)
        return options.locks if execution.phase is Phase.EXECUTE else options.wait_for_locks

    def _options(self, execution: Execution) -> ExecutionOptions:
        return execution.options or self.rules.options(execution.step)

    def _in_order(self, names: Iterable[str]) -> list[Execution]:
        found = [self.state.executions[name] for name in names if name in self.state.executions]
        return sorted(found, key=_order) if len(found) > 1 else found

    # Bookkeeping

    def _put(self, execution: Execution) -> None:
        self.state.put(execution)
        self.changes.executions[execution.id] = execution

    def _drop(self, execution_id: str) -> None:
        self.state.remove(execution_id)
        self.changes.executions[execution_id] = None

    def _forget_message(self, channel: str, number: int) -> None:
        if number >= self.state.header.next_message:
            del self.changes.messages[channel, number]  # published in this very transition
        else:
            self.changes.messages[channel, number] = None

    def _record_attempt(
        self, event_type: HistoryEvent, execution: Execution, failure: Failure | None = None
    ) -> None:
        self._record(
            event_type,
            step_type=execution.step,
            execution=execution,
            failure=failure,
        )

    def _record(
        self,
        event_type: HistoryEvent,
        *,
        step_type: str = "",
        execution: Execution | None = None,
        failure: Failure | None = None,
    ) -> None:
        entry = (
            HistoryEntry(self.next_history, self.now, event_type, step_type, failure=failure)
            if execution is None
            else HistoryEntry(
                self.next_history,
                self.now,
                event_type,
                step_type,
                execution.id,
                execution.attempt,
                execution.origin,
                execution.scheduled_at,
                execution.begun_at,
                failure,
                execution.worker,
            )
        )
        self.changes.history.append(entry)
        self.next_history += 1

    def _seal(self) -> None:
        before = self.state.header
        header = FlowHeader(
            before.flow_id,
            self.flow_type,
            self.status,
            before.version + 1,
            self._wake_at(),
            self.started_at,
            self.closed_at,
            self.counters,
            self.next_order,
            self.next_message,
            self.next_history,
            self.is_completing,
            self.outputs,
            self.failure,
        )
        self.state.header = header
        self.changes.header = header

    def _wake_at(self) -> float | None:
        state = self.state
        if state.running:
            return 0.0
        if any(state.executions[name].is_due(self.now) for name in state.runnable):
            return 0.0
        return min(state.timed.values()) if state.timed else None


def _order(execution: Execution) -> int:
    return execution.order


def _reason(output: Raw | None) -> str:
    if output is None:
        return ""
    value = json.decode(output)
    return value if isinstance(value, str) else bytes(output).decode()


_HANDLERS = {
    FlowStarted: _Step.flow_started,
    WaitReturned: _Step.wait_returned,
    ExecuteReturned: _Step.execute_returned,
    AttemptFailed: _Step.attempt_failed,
    AttemptAbandoned: _Step.attempt_abandoned,
    AttemptsLost: _Step.attempts_lost,
    RpcReturned: _Step.rpc_returned,
    TimeAdvanced: _Step.time_advanced,
    StepsScheduled: _Step.steps_scheduled,
    TimerSkipped: _Step.timer_skipped,
    FlowStopped: _Step.flow_stopped,
}
