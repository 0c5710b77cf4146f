"""One attempt of one Step: calls the handler, watches over it, and says what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, NoReturn

from msgspec import Raw

from dex_agents.encoding import clean_text, decode
from dex_agents.errors import EncodingError
from dex_agents.executor.attributes import AttributeView
from dex_agents.executor.clock import Clock
from dex_agents.executor.contexts import AttemptContext, encoded
from dex_agents.executor.store import StreamAppend
from dex_agents.machine import (
    AttemptFailed,
    ChannelWait,
    Event,
    ExecuteReturned,
    Execution,
    ExecutionDecision,
    ExecutionOptions,
    Failure,
    FlowState,
    Phase,
    ScheduledStep,
    StoredWait,
    TimerWait,
    WaitReturned,
    execution_options,
)
from dex_agents.table import (
    Decision,
    FlowTable,
    Movement,
    Observation,
    Step,
    Stream,
    Timer,
    Wait,
)
from dex_agents.telemetry import AttemptTelemetry, Telemetry

__all__ = ("Attempt", "failure_of", "scheduled_step")

NOTHING = Raw(b"null")
"""The JSON of an input that there is not."""


class Attempt:
    """A handler call under way.

    Args:
        table: The flow's table.
        execution: What to run: ``wait_for`` or ``execute``, as its phase says.
        options: What is in force for it.
        state: The flow's state, for queue sizes.
        view: The Attributes that it sees; the attempt closes it.
        clock: Says when Timers fire; its steady one measures timeouts.
        telemetry: Watches the attempt.
        append: Takes what goes to a Stream, in the loop's thread.
        report: Told the event that ends the attempt; None when it was cancelled.
    """

    def __init__(
        self,
        *,
        table: FlowTable,
        execution: Execution,
        options: ExecutionOptions,
        state: FlowState,
        view: AttributeView,
        clock: Clock,
        telemetry: Telemetry,
        append: Callable[[StreamAppend], None],
        report: Callable[[Attempt, Event | None], None],
    ) -> None:
        self.execution = execution
        self._row = table.step(execution.step)
        self._table = table
        self._options = options
        self._flow_id = state.header.flow_id
        self._view = view
        self._clock = clock
        self._telemetry = telemetry
        self._append = append
        self._report: Callable[[Attempt, Event | None], None] | None = report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._begun_at = self._last_beat = clock.steady.now()
        is_wait = execution.phase is Phase.WAIT_FOR
        self._timeout = options.wait_for_timeout if is_wait else options.execute_timeout
        self._kept_alive = 0
        self._trace: AttemptTelemetry | None = None
        self._context = AttemptContext(execution, table, state, view, options.loads, self)
        self._task: asyncio.Task[None] | None = None

    def start(self, context: contextvars.Context) -> None:
        """Begin in a task with a copy of this context of variables."""
        self._task = self._loop.create_task(self._run(), context=context.copy())

    def run(self, context: contextvars.Context) -> None:
        """Run from beginning to end, here and now, with a copy of this context of variables."""
        call = self._run()
        try:
            context.copy().run(call.send, None)
        except (StopIteration, asyncio.CancelledError):
            return  # a cancellation from within the handler has failed its attempt
        except BaseException as error:  # noqa: BLE001 - the end of this process
            self._loop.call_soon(_raise, error)  # once the transition that it is a part of is made
            return
        detail = f"{self._row.name} is inline, and its handler waits for something."
        self._fail(Failure(detail, "dex_agents.InlineStepWaits"))
        call.close()

    @property
    def deadline(self) -> float:
        """When, by the steady clock, it counts as dead unless it gives a sign of life before."""
        return min(
            self._begun_at + self._timeout, self._last_beat + self._options.heartbeat_timeout
        )

    def check(self, now: float) -> None:
        """Fail the attempt if it has taken too long, or has been silent for too long."""
        if self._kept_alive:
            self._last_beat = now  # the loop that would have recorded a sign of life is running
        if now >= self._begun_at + self._timeout:
            detail = f"The attempt took longer than its timeout of {self._timeout:g} s."
            self._fail(Failure(detail, "dex_agents.AttemptTimeout"))
        elif now >= self._last_beat + self._options.heartbeat_timeout:
            seconds = self._options.heartbeat_timeout
            detail = f"The attempt gave no sign of life for {seconds:g} s."
            self._fail(Failure(detail, "dex_agents.HeartbeatTimeout"))

    def cancel(self) -> None:
        """Stop the handler; nothing is reported."""
        self._end(None)
        if self._trace is not None:
            self._trace.canceled()

    def abort(self, failure: Failure) -> None:
        """Stop the handler and report the attempt failed."""
        self._fail(failure)

    # What the context asks for

    def now(self) -> float:
        """Return the worker's time."""
        return self._clock.now()

    def beat(self) -> None:
        """Record a sign of life."""
        self._last_beat = self._clock.steady.now()

    def write(self, stream: Stream[Any], payload: bytes) -> None:
        """Append to a Stream, from any thread."""
        message = StreamAppend(stream.name, payload, stream.capacity_bytes)
        if threading.get_ident() == self._thread:
            self._write(message)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._write, message)

    def _write(self, message: StreamAppend) -> None:
        self.beat()
        self._append(message)

    @contextmanager
    def keep_alive(self, seconds: float) -> Iterator[None]:  # noqa: ARG002 - see check
        """Keep the heartbeat timeout away while the block runs."""
        self._kept_alive += 1
        try:
            yield
        finally:
            self._kept_alive -= 1
            self.beat()

    def trace_carrier(self) -> dict[str, str]:
        """Return the W3C carrier of what the attempt is a part of."""
        return self._trace.trace_carrier() if self._trace is not None else {}

    def observe(self, describe: Callable[[], Observation]) -> None:
        """Tell telemetry what came out."""
        if self._trace is not None:
            self._trace.observe(describe)

    # The call

    async def _run(self) -> None:
        try:
            step_input = _decoded_input(self._row, self.execution)
            self._trace = self._telemetry.begin(
                self._flow_id,
                self.execution,
                lambda: self._table.facts(self.execution.step, self._context, step_input),
            )
            if self.execution.phase is Phase.WAIT_FOR:
                event: Event = await self._wait_for(step_input)
            else:
                event = await self._execute(step_input)
        except BaseException as error:
            # Whatever leaves a handler fails its attempt, a cancellation from within it too.
            self._fail(failure_of(error), error)
            if not isinstance(error, Exception):
                raise
        else:
            if self._report is not None and self._trace is not None:
                self._trace.completed(self.execution.phase)
            self._end(event)

    async def _wait_for(self, step_input: Any) -> Event:
        assert self._row.wait_for is not None
        wait = await self._row.wait_for(self._context, step_input)
        if not isinstance(wait, Wait):
            raise TypeError(f"{self._row.name}.wait_for must return Wait, not {wait!r}")
        self._table.require_wait(self._row, wait)
        now = self._clock.now()
        return WaitReturned(
            self.execution.id,
            self.execution.attempt,
            _stored_wait(wait, now),
            self._context.writes(),
        )

    async def _execute(self, step_input: Any) -> Event:
        decision = await self._row.execute(self._context, step_input)
        if not isinstance(decision, Decision):
            raise TypeError(f"{self._row.name}.execute must return Decision, not {decision!r}")
        return ExecuteReturned(
            self.execution.id,
            self.execution.attempt,
            _stored_decision(self._table, self._row, decision),
            self._context.writes(),
        )

    # The end

    def _fail(self, failure: Failure, error: BaseException | None = None) -> None:
        if self._report is None:
            return
        carrier: dict[str, str] = {}
        if self._trace is not None:
            carrier = self._trace.carrier()
            self._trace.failed(failure, will_retry=self._may_retry(), error=error)
            self._trace = None
        execution = self.execution
        self._end(
            AttemptFailed(
                execution.id,
                execution.attempt,
                failure,
                carrier=carrier,
                phase=execution.phase,
            )
        )

    def _may_retry(self) -> bool:
        limit = self._options.retry.max_attempts
        return not limit or self.execution.attempt < limit

    def _end(self, event: Event | None) -> None:
        """Report once, whatever ends the attempt first."""
        report, self._report = self._report, None
        if report is None:
            return
        self._view.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        report(self, event)


def failure_of(error: BaseException) -> Failure:
    """Return an error as it is recorded: its message and its qualified class name."""
    tp = type(error)
    name = tp.__qualname__ if tp.__module__ == "builtins" else f"{tp.__module__}.{tp.__qualname__}"
    try:
        detail = clean_text(str(error)) or tp.__name__
    except Exception:  # noqa: BLE001 - a broken __str__ must not break the error path
        detail = tp.__name__
    return Failure(detail, name)


def _raise(error: BaseException) -> NoReturn:
    raise error


def scheduled_step(table: FlowTable, movement: Movement) -> ScheduledStep:
    """Return a movement, which its table allows, in its stored form.

    Raises:
        EncodingError: The input is not what the target takes.
    """
    return ScheduledStep(
        movement.step,
        _encoded_input(table.step(movement.step), movement.input),
        execution_options(movement.options) if movement.options else None,
    )


def _encoded_input(row: Step[Any], value: Any) -> Raw:
    if row.input is NoneType:
        if value is not None:
            raise EncodingError(f"The input of {row.name}", "the Step takes none")
        return NOTHING
    return encoded(value, row.input, f"input of {row.name}")


def _decoded_input(row: Step[Any], execution: Execution) -> Any:
    if row.input is NoneType:
        return None
    return decode(bytes(execution.input), row.input, f"input of {execution.id}")


def _stored_wait(wait: Wait, now: float) -> StoredWait:
    conditions = tuple(
        TimerWait(now + each.seconds)
        if isinstance(each, Timer)
        else ChannelWait(each.channel.name, each.at_least, each.at_most)
        for each in wait.conditions
    )
    return StoredWait(conditions, wait.candidates)


def _stored_decision(table: FlowTable, row: Step[Any], decision: Decision) -> ExecutionDecision:
    table.require_decision(row, decision)
    return ExecutionDecision(
        next_steps=tuple(scheduled_step(table, each) for each in decision.next_steps),
        close=decision.close,
        output=None
        if decision.output is None
        else encoded(decision.output, object, f"output of {row.name}"),
        cancel_steps=decision.cancel_steps,
        cancel_sibling_steps=decision.cancel_sibling_steps,
    )
