"""Every flow of the emulator: starts runs, advances them, and remembers what must outlive it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dex.dexpb import dex_pb2 as pb

from dex_agents.executor import Clock
from dex_agents.machine import (
    Begin,
    Effect,
    Event,
    FlowStatus,
    FlowStopped,
    HistoryEvent,
    Machine,
    ScheduledStep,
    StepsScheduled,
    TimeAdvanced,
    Transition,
)
from dex_agents_dex.emulator.envelope import NULL, pack, unpack, wrap
from dex_agents_dex.emulator.errors import already_started, not_exists
from dex_agents_dex.emulator.history import record_history
from dex_agents_dex.emulator.options import (
    TIMEOUT_HANDLER,
    WireRules,
    execution_options,
    timeout_options,
)
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.starting import (
    check_start,
    may_reuse,
    new_run,
    started_event,
    started_payload,
)
from dex_agents_dex.emulator.storage import Storage

__all__ = ("Flows",)

_UNLIMITED = 1_000_000
"""Attempts begin at once; it is the dispatch that waits for a worker."""


class Flows:
    """The runs, by flow ID and in the order of their starts.

    Args:
        scale: What delays of Timers, retries, heartbeats and flow timeouts are multiplied by.
        storage: Where runs outlive the process; None for nowhere.
        clock: What flows take for the time.
    """

    def __init__(self, scale: float, storage: Storage | None, clock: Clock) -> None:
        self.scale = scale
        self.clock = clock
        self.machine = Machine(WireRules())
        self.perform: Callable[[Run, Effect], None] = lambda _run, _effect: None
        self._storage = storage
        self._runs: dict[str, list[Run]] = {}

    # Looking up

    def latest(self, flow_id: str, run_id: str = "") -> Run:
        """Return a flow's newest run, or the run that is named.

        Raises:
            ServiceError: There is none.
        """
        for run in reversed(self._runs.get(flow_id, [])):
            if run_id in ("", run.record.run_id):
                return run
        raise not_exists(flow_id)

    def running(self, flow_id: str, run_id: str = "") -> Run:
        """Return a flow's run that is not closed.

        Raises:
            ServiceError: There is none.
        """
        run = self.latest(flow_id, run_id)
        if not run.is_running:
            raise not_exists(flow_id, "is closed")
        return run

    def newest_first(self) -> list[Run]:
        """Return the latest run of every flow."""
        return [runs[-1] for runs in reversed(self._runs.values()) if runs]

    def first_run_id(self, flow_id: str) -> str:
        """Return the ID of a flow's first run."""
        return self._runs[flow_id][0].record.run_id

    # Starting

    async def start(self, request: pb.StartFlowRequest) -> str:
        """Start a flow unless its ID may not be used again; return the run's ID."""
        check_start(request)
        options = request.flow_start_options
        runs = self._runs.setdefault(request.flow_id, [])
        if runs and not may_reuse(options.id_reuse_policy, runs[-1]):
            already = options.flow_already_started_options
            is_replay = runs[-1].record.request_id == request.request_id
            if already.ignore_already_started_error and is_replay:
                return runs[-1].record.run_id
            raise already_started(request.flow_id)
        if runs and runs[-1].is_running:
            self.close(runs[-1], pb.FlowResult(flow_status=pb.FLOW_STATUS_TERMINATED))
        run = new_run(request, self.scale, self.clock.now())
        runs.append(run)
        self.apply(run, started_event(request, self.scale), started_payload(run))
        await self.settled()
        return run.record.run_id

    # Advancing

    def apply(
        self, run: Run, event: Event, payload: pb.FlowHistoryEvent | None = None
    ) -> Transition:
        """Advance a run by one event and perform what follows, once it is durable.

        Args:
            run: The run.
            event: What happened.
            payload: What the history is to say of it.
        """
        transition = self.machine.apply(run.state, event, self.clock.now(), _UNLIMITED)
        changes = transition.changes
        run.follow(changes)
        self._note_end(run, transition)
        events = record_history(run, changes, payload)
        for effect in transition.effects:
            if isinstance(effect, Begin) and effect.execution.attempt == 1:
                run.snapshots.pop(effect.execution.id, None)
        if self._storage is not None:
            self._storage.write(run, changes, events)
        self._perform(run, transition.effects)
        self._arm(run)
        run.changed.notify()
        return transition

    async def settled(self) -> None:
        """Return once everything that was applied is durable."""
        if self._storage is not None:
            await self._storage.settled()

    def close(self, run: Run, result: pb.FlowResult) -> None:
        """End a run from outside its handlers."""
        run.record.result = pack(result)
        self.apply(run, FlowStopped(result.error_message))

    def _perform(self, run: Run, effects: tuple[Effect, ...]) -> None:
        if self._storage is None:
            for effect in effects:
                self.perform(run, effect)
        elif effects:
            self._storage.when_settled(lambda: [self.perform(run, each) for each in effects])

    @staticmethod
    def _note_end(run: Run, transition: Transition) -> None:
        header = transition.changes.header
        if header.status is FlowStatus.RUNNING or run.record.result:
            return
        result = pb.FlowResult(flow_status=pb.FLOW_STATUS_COMPLETED)
        if header.status is FlowStatus.FAILED:
            result.flow_status = pb.FLOW_STATUS_FAILED
            result.error_type = pb.FLOW_ERROR_TYPE_STEP_DECISION_FAILING_FLOW
            result.error_message = header.failure.detail if header.failure else ""
            for entry in transition.changes.history:
                is_used_up = entry.event_type in (
                    HistoryEvent.EXECUTE_FAILED,
                    HistoryEvent.WAIT_FOR_FAILED,
                )
                if is_used_up and entry.failure is not None:
                    result.error_type = pb.FLOW_ERROR_TYPE_WORKER_API_FAIL
                    result.error_message = entry.failure.detail
        run.record.result = pack(result)

    # Time

    def _arm(self, run: Run) -> None:
        if run.alarm is not None:
            run.alarm.cancel()
            run.alarm = None
        if not run.is_running:
            return
        due = list(run.state.timed.values())
        if run.record.timeout_at is not None:
            due.append(run.record.timeout_at)
        if due:
            run.alarm = self.clock.call_at(min(due), partial(self._ring, run))

    def _ring(self, run: Run) -> None:
        timeout_at = run.record.timeout_at
        if timeout_at is not None and timeout_at <= self.clock.now():
            run.record.timeout_at = None
            self._time_out(run)
        else:
            self.apply(run, TimeAdvanced())

    def _time_out(self, run: Run) -> None:
        request = unpack(run.record.request, pb.StartFlowRequest)
        policy = request.flow_timeout_policy
        if policy == pb.FLOW_TIMEOUT_POLICY_HANDLER:
            wire = timeout_options(request.flow_start_options.timeout_handler_options)
            options = execution_options(wire, self.scale)
            handler = ScheduledStep(TIMEOUT_HANDLER, wrap(NULL), options)
            self.apply(run, StepsScheduled("__start__", (handler,)))
        elif policy == pb.FLOW_TIMEOUT_POLICY_CANCEL:
            self.close(run, pb.FlowResult(flow_status=pb.FLOW_STATUS_CANCELED))
        else:
            result = pb.FlowResult(
                flow_status=pb.FLOW_STATUS_FAILED,
                error_type=pb.FLOW_ERROR_TYPE_FLOW_TIMEOUT,
                error_message="The flow took longer than its timeout.",
            )
            self.close(run, result)

    def advance(self, run: Run) -> None:
        """Let a run notice that something outside it has changed, such as a lock."""
        if run.is_running:
            self.apply(run, TimeAdvanced())

    # Life

    async def open(self) -> None:
        """Take up the runs that outlived the process before."""
        if self._storage is None:
            return
        for run in await self._storage.open():
            self._runs.setdefault(run.record.flow_id, []).append(run)
        for runs in self._runs.values():
            for run in runs:
                if run.is_running:
                    self.apply(run, self._storage.lost_attempts)

    async def close_all(self) -> None:
        """Stop the clockwork; nothing is ended."""
        for runs in self._runs.values():
            for run in runs:
                if run.alarm is not None:
                    run.alarm.cancel()
        if self._storage is not None:
            await self._storage.close()
