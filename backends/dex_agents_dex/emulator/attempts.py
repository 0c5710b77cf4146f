"""Attempts of Steps: each is one task that calls a worker and tells the flow what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents.errors import StaleAttemptError
from dex_agents.machine import (
    AttemptFailed,
    Begin,
    Cancel,
    Effect,
    Event,
    ExecuteReturned,
    Execution,
    Failure,
    Phase,
    WaitReturned,
)
from dex_agents_dex.emulator.calls import call_context, step_request
from dex_agents_dex.emulator.conditions import stored_wait
from dex_agents_dex.emulator.decisions import decision_of, writes_of
from dex_agents_dex.emulator.dispatch import (
    Dispatcher,
    Frame,
    Outcome,
    WorkerFailed,
    WorkerTask,
)
from dex_agents_dex.emulator.envelope import pack
from dex_agents_dex.emulator.flows import Flows
from dex_agents_dex.emulator.history import step_input_of
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.streams import Streams
from dex_agents_dex.emulator.watch import Watch, watched

__all__ = ("Attempts",)

_log = logging.getLogger(__name__)


class Attempts:
    """Begins and cancels attempts as the flows say.

    Args:
        flows: The flows.
        dispatcher: Chooses the dispatcher for a run.
        streams: Where Steps write.
    """

    def __init__(
        self, flows: Flows, dispatcher: Callable[[Run], Dispatcher], streams: Streams
    ) -> None:
        self._flows = flows
        self._dispatcher = dispatcher
        self._streams = streams
        self._tasks: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def perform(self, run: Run, effect: Effect) -> None:
        """Begin or cancel an attempt."""
        if self._is_closed:
            return
        if isinstance(effect, Begin):
            execution = effect.execution
            key = (run.record.run_id, execution.id, execution.attempt)
            task = asyncio.get_running_loop().create_task(self._attempt(run, execution))
            self._tasks[key] = task
            self._running.add(task)
            task.add_done_callback(lambda _: self._forget(key, task))
        elif isinstance(effect, Cancel):
            running = self._tasks.pop(
                (run.record.run_id, effect.execution_id, effect.attempt), None
            )
            if running is not None:
                running.cancel()

    def running(self) -> list[tuple[str, str, int]]:
        """Return the run, the execution and the number of every attempt under way."""
        return list(self._tasks)

    async def close(self) -> None:
        """Cancel every attempt, and begin no more."""
        self._is_closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget(self, key: tuple[str, str, int], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def _attempt(self, run: Run, execution: Execution) -> None:
        payload = None
        try:
            outcome, request = await self._call(run, execution)
            event, payload = self._returned(run, execution, outcome, request)
        except WorkerFailed as failure:
            event = self._failed(execution, failure)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours fails the attempt, loudly
            _log.exception("attempt of %s in flow %s failed", execution.id, run.record.flow_id)
            bug = WorkerFailed(str(error), type(error).__qualname__)
            event = self._failed(execution, bug)
        try:
            # No await between the decision and here: what was decided is what is applied.
            self._flows.apply(run, event, payload)
        except StaleAttemptError:
            _log.debug("late result of %s in flow %s dropped", execution.id, run.record.flow_id)

    async def _call(self, run: Run, execution: Execution) -> tuple[Outcome, Any]:
        options = self._flows.machine.options(execution)
        is_wait = execution.phase is Phase.WAIT_FOR
        timeout = options.wait_for_timeout if is_wait else options.execute_timeout
        watch = Watch(self._flows.clock, timeout, options.heartbeat_timeout)
        request = step_request(run, execution, options)
        request.context.CopyFrom(call_context(run, execution))
        task = WorkerTask(
            kind="wait_for" if is_wait else "execute",
            request=request,
            flow_id=run.record.flow_id,
            flow_type=run.record.flow_type,
            address=run.target.address,
            sticky=run.record.sticky,
            on_begin=watch.begin,
            on_frame=lambda frame: self._take_frame(run, execution, watch, frame),
        )
        outcome = await watched(self._dispatcher(run), task, watch)
        run.record.sticky = outcome.served_by
        return outcome, request

    def _take_frame(self, run: Run, execution: Execution, watch: Watch, frame: Frame) -> None:
        watch.beat()
        if isinstance(frame, pb.StepStreamWrite):
            key = (run.record.flow_type, frame.stream_name, run.record.flow_id)
            source = f"#{execution.id}"
            self._streams.append(key, frame.value, source, frame.stream_capacity_bytes)
        elif execution.id in run.state.executions:
            value = frame.value if frame.HasField("value") else None
            run.note(execution.id).heartbeat = pack(value) if value is not None else ""

    def _returned(
        self, run: Run, execution: Execution, outcome: Outcome, request: Any
    ) -> tuple[Event, pb.FlowHistoryEvent]:
        response = outcome.response
        payload = pb.FlowHistoryEvent()
        if execution.phase is Phase.WAIT_FOR:
            event: Event = self._wait_returned(run, execution, response)
            completed: Any = payload.step_wait_for_completed
            if response.HasField("waiting_condition"):
                completed.output.wait_for_condition.CopyFrom(response.waiting_condition)
        else:
            decision = decision_of(run, execution, response, self._flows.scale)
            event = ExecuteReturned(
                execution.id, execution.attempt, decision, writes_of(run, response)
            )
            completed = payload.step_execute_completed
            completed.output.step_decision.CopyFrom(response.step_decision)
        completed.input.CopyFrom(step_input_of(request))
        output = completed.output
        output.upsert_attributes.extend(response.upsert_attributes)
        output.publish_to_channel.extend(response.publish_to_channel)
        output.record_events.extend(response.record_events)
        output.upsert_step_execution_locals.extend(response.upsert_step_exe_locals)
        output.delete_from_channel.extend(response.delete_from_channel)
        if outcome.routing is not None:
            completed.context.pull_routing.CopyFrom(outcome.routing)
        return event, payload

    def _wait_returned(self, run: Run, execution: Execution, response: Any) -> WaitReturned:
        has_condition = response.HasField("waiting_condition")
        condition = response.waiting_condition if has_condition else None
        wait = stored_wait(condition, self._flows.clock.now(), self._flows.scale)
        event = WaitReturned(execution.id, execution.attempt, wait, writes_of(run, response))
        if execution.id in run.state.executions:
            note = run.note(execution.id)
            note.condition = pack(response.waiting_condition)
            note.local_values |= {kv.key: pack(kv.value) for kv in response.upsert_step_exe_locals}
            note.heartbeat = ""
        return event

    def _failed(self, execution: Execution, failure: WorkerFailed) -> AttemptFailed:
        delay = failure.retry_after
        return AttemptFailed(
            execution.id,
            execution.attempt,
            Failure(failure.detail, failure.error_type),
            retry_after=delay * self._flows.scale if delay is not None else None,
            phase=execution.phase,
        )
