"""One span, one log line and a handful of measurements for each Step attempt.

Nothing is configured globally: everything goes to the providers that the
application set up or passed, and log lines are written only once it has
configured structlog or passed a logger. Without any of that, an attempt costs
next to nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.context import attach
from opentelemetry.trace import Span, SpanKind, StatusCode

from dex_agents import signals
from dex_agents.machine import Execution, Failure, Phase
from dex_agents.signals import LogEvent, Metric
from dex_agents.table import AttemptFacts, Observation
from dex_agents.telemetry.carrier import carrier_of, context_of, links_to
from dex_agents.telemetry.content import Content, as_attribute
from dex_agents.telemetry.options import TelemetryOptions
from dex_agents.telemetry.sinks import Sinks
from dex_agents.telemetry.stretches import OpenStretch, Stretches

__all__ = ("AttemptTelemetry", "Telemetry")


class Telemetry:
    """Watches the Step attempts of one backend.

    Args:
        backend: The backend's name.
        options: Where everything goes.
    """

    def __init__(self, backend: str, options: TelemetryOptions | None = None) -> None:
        options = options or TelemetryOptions()
        self.backend = backend
        self.sinks = Sinks(options)
        self.content = Content(options, self.warn)
        self.stretches = Stretches(backend, self.sinks)

    def clear(self) -> None:
        """Forget every identifier that is bound in the current context."""
        if "structlog" in sys.modules:  # or nothing can be bound
            _bound().clear_contextvars()

    def begin(
        self, flow_id: str, execution: Execution, describe: Callable[[], AttemptFacts]
    ) -> AttemptTelemetry:
        """Open the span of an attempt and bind its identifiers, in the current task's context.

        Call it in a task of the attempt's own, whose context is a copy of one
        that went through `clear`: nothing is unbound.

        Args:
            flow_id: The flow.
            execution: The attempt.
            describe: Returns what its table says of it; not called while nothing watches.
        """
        if self.sinks.are_silent():
            return _UNWATCHED
        tracer, logger = self.sinks.tracer(), self.sinks.logger()
        facts, begun_ns = self._facts(execution, describe), time.time_ns()
        if logger is not None:
            _bind(flow_id, execution, facts)
        stretch, is_resumed = self.stretches.enter(flow_id, execution, facts, begun_ns)
        parent = stretch.context if stretch is not None else context_of(facts.carrier)
        span: Span = trace.INVALID_SPAN
        if tracer is not None:
            span = tracer.start_span(
                facts.span_name or execution.step,
                context=parent,
                kind=SpanKind.CLIENT if facts.is_client else SpanKind.INTERNAL,
                links=links_to(execution.last_carrier, *facts.links),
                attributes=self._attributes(flow_id, execution, facts),
                start_time=begun_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
            attach(trace.set_span_in_context(span, parent))
        attempt = AttemptTelemetry(self, flow_id, execution, facts, span, stretch, begun_ns, logger)
        if is_resumed:
            attempt.log(signals.TURN_RESUMED, resumed_from=execution.origin)
        return attempt

    def _facts(self, execution: Execution, describe: Callable[[], AttemptFacts]) -> AttemptFacts:
        """Return what a table says of an attempt; to be watched must not make it fail."""
        try:
            return describe()
        except Exception as error:  # noqa: BLE001 - an author's code like any other
            error_type = type(error).__qualname__
            self.warn(signals.FACTS_FAILED, step_id=execution.id, error_type=error_type)
            return AttemptFacts()

    def rest(self, flow_id: str, *, for_seconds: float = 0.0) -> None:
        """End a flow's stretch: nothing of it is left to do in this process for now.

        Args:
            flow_id: The flow.
            for_seconds: How long it must have rested by now.
        """
        stretch = self.stretches.close(flow_id, for_seconds=for_seconds)
        if stretch is not None and stretch.end is None and (logger := self.sinks.logger()):
            event = signals.TURN_SUSPENDED
            logger.debug(event.name, session_id=flow_id, turn_id=stretch.facts.key)

    def rest_after(self, flow_id: str, seconds: float) -> None:
        """End a flow's stretch unless an attempt of it begins within this time.

        For engines that do not tell a worker whether more is coming.
        """
        if not seconds:
            self.rest(flow_id)
        elif self.stretches.has(flow_id):
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, lambda: self.rest(flow_id, for_seconds=seconds * 0.9))

    def rest_all(self) -> None:
        """End every stretch of which no attempt runs: the worker ends."""
        for flow_id in self.stretches.open_flows():
            self.rest(flow_id)

    def count(self, metric: Metric, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Record a value of one of our own metrics; from any thread."""
        if self.sinks.are_silent():
            return
        self.sinks.record(metric, value, {**(labels or {}), signals.BACKEND_NAME: self.backend})

    def warn(self, event: LogEvent, **data: Any) -> None:
        """Log a warning of the worker itself."""
        if (logger := self.sinks.logger()) is not None:
            logger.warning(event.name, backend=self.backend, **data)

    def _attributes(
        self, flow_id: str, execution: Execution, facts: AttemptFacts
    ) -> dict[str, Any]:
        attributes = {
            signals.SESSION_ID: flow_id,
            signals.STEP_ID: execution.id,
            signals.STEP_KIND: execution.step,
            signals.STEP_PHASE: str(execution.phase),
            signals.STEP_ATTEMPT: execution.attempt,
            signals.BACKEND_NAME: self.backend,
            **{signals.TAGS.get(tag, tag): value for tag, value in facts.tags.items()},
            **facts.attributes,
        }
        if execution.worker:
            attributes[signals.WORKER_ID] = execution.worker
        return attributes


class AttemptTelemetry:
    """What is open of one attempt: its span, its log context, and what was observed of it.

    The first of `completed`, `failed` and `canceled` ends it; later ones do nothing.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        flow_id: str,
        execution: Execution,
        facts: AttemptFacts,
        span: Span,
        stretch: OpenStretch | None,
        begun_ns: int,
        logger: Any,
    ) -> None:
        self._telemetry = telemetry
        self._flow_id = flow_id
        self._execution = execution
        self._facts = facts
        self._span = span
        self._stretch = stretch
        self._begun_ns = begun_ns
        self._begun = time.perf_counter_ns()
        self._logger = logger
        self._context = contextvars.copy_context()
        self._observed: list[Observation] = []
        self._is_over = False

    def carrier(self) -> dict[str, str]:
        """Return the W3C carrier of the attempt's span; empty when nothing traces."""
        return carrier_of(self._span)

    def trace_carrier(self) -> dict[str, str]:
        """Return the W3C carrier of its stretch, or of its own span where it has none."""
        return self.carrier() if self._stretch is None else self._stretch.carrier()

    def observe(self, describe: Callable[[], Observation]) -> None:
        """Take what came out while the attempt runs."""
        observation = describe()
        self._observed.append(observation)
        if observation.span_name is not None:
            self._span.update_name(observation.span_name)
        if self._span.is_recording():
            self._span.set_attributes(observation.attributes)

    def completed(self, phase: Phase) -> None:
        """End the span of an attempt that returned; a wait is suspended, not done."""
        outcome = signals.SUSPENDED if phase is Phase.WAIT_FOR else signals.COMPLETED
        error_type = next((o.error_type for o in self._observed if o.error_type), None)
        if self._end(outcome, error_type, is_last=True):
            self.log(signals.STEP_COMPLETED, outcome=outcome, duration=self._seconds)

    def failed(
        self, failure: Failure, *, will_retry: bool, error: BaseException | None = None
    ) -> None:
        """End the span of an attempt that failed; tell what its handler raised, if it did."""
        outcome = signals.RETRYING if will_retry else signals.FAILED
        if not self._end(outcome, failure.error_type, failure.detail, is_last=not will_retry):
            return
        data: dict[str, Any] = {"error_type": failure.error_type}
        content = self._telemetry.content
        if content.capture.on_events:
            data["error"] = content.text(signals.EXCEPTION_MESSAGE, failure.detail)
        if error is not None:
            data["stacktrace"] = stack = _stack(error)
            self._record_exception(failure.error_type, stack, data.get("error"))
        event = signals.STEP_RETRYING if will_retry else signals.STEP_FAILED
        self.log(event, outcome=outcome, duration=self._seconds, **data)

    def canceled(self) -> None:
        """End the span of an attempt whose result nobody wants any more."""
        if self._end(signals.CANCELED):
            self.log(signals.STEP_CANCELED, outcome=signals.CANCELED, duration=self._seconds)

    def log(self, event: LogEvent, **data: Any) -> None:
        """Write a log line with the identifiers of the attempt, wherever it is called."""
        if self._logger is not None:
            write = getattr(self._logger, event.level)
            # The attempt may be ended from outside its task, such as by its timeout.
            self._context.copy().run(write, event.name, **data)

    def _end(
        self,
        outcome: str,
        error_type: str | None = None,
        detail: str | None = None,
        *,
        is_last: bool = False,
    ) -> bool:
        """End the span, and measure; return False when it had ended before."""
        if self._is_over:
            return False
        self._is_over = True
        duration_ns = time.perf_counter_ns() - self._begun
        self._seconds = round(duration_ns / 1e9, 6)
        ended_ns = self._begun_ns + duration_ns
        self._end_span(outcome, error_type, detail, ended_ns)
        if outcome is not signals.CANCELED:
            self._tell_end()
        if self._stretch is not None:
            self._stretch.leave(ended_ns)
        if self._telemetry.sinks.meter() is not None:
            self._measure(outcome, error_type, duration_ns / 1e9, is_last=is_last)
        return True

    def _end_span(
        self, outcome: str, error_type: str | None, detail: str | None, ended_ns: int
    ) -> None:
        span, content = self._span, self._telemetry.content
        if span.is_recording():
            span.set_attribute(signals.STEP_OUTCOME, outcome)
            if error_type is not None:
                span.set_attribute(signals.ERROR_TYPE, error_type)
                text = None
                if detail is not None and content.capture.on_spans:
                    text = content.text(signals.EXCEPTION_MESSAGE, detail)
                span.set_status(StatusCode.ERROR, text)
        if outcome is not signals.CANCELED:
            for observation in self._observed:
                self._show_content(observation)
        span.end(end_time=ended_ns)

    def _show_content(self, observation: Observation) -> None:
        content = self._telemetry.content
        shown = content.shown(observation.content)
        if content.capture.on_spans and self._span.is_recording():
            for key, value in shown.items():
                self._span.set_attribute(key, as_attribute(value))
        events = self._telemetry.sinks.events()
        event = observation.content_event
        if event is not None and events is not None and content.capture.on_events:
            attributes = {**self._facts.attributes, **observation.attributes, **shown}
            events.emit(
                event_name=event.name,
                severity_number=SeverityNumber.DEBUG,
                context=trace.set_span_in_context(self._span),
                attributes={**attributes, **self._record_keys()},
            )

    def _tell_end(self) -> None:
        """Say how what the attempt's stretch is about has ended, if it has."""
        for end in [each.end for each in self._observed if each.end is not None]:
            if self._stretch is not None:
                self._stretch.end = end
            data = {"error_type": end.error_type} if end.error_type is not None else {}
            self.log(end.event, wall_duration=end.seconds, **data)

    def _measure(
        self, outcome: str, error_type: str | None, seconds: float, *, is_last: bool
    ) -> None:
        facts, execution, telemetry = self._facts, self._execution, self._telemetry
        failure = {signals.ERROR_TYPE: error_type} if error_type is not None else {}
        where = {
            signals.STEP_KIND: execution.step,
            signals.STEP_PHASE: str(execution.phase),
            **facts.labels,
        }
        told = {**where, signals.STEP_OUTCOME: outcome}
        telemetry.count(signals.STEP_DURATION, seconds, {**told, **failure})
        if is_last:
            telemetry.count(signals.STEP_ATTEMPTS, execution.attempt, told)
        if execution.scheduled_at:
            delay = max(execution.begun_at - execution.scheduled_at, 0.0)
            telemetry.count(signals.SCHEDULE_DELAY, delay, where)
        if facts.duration is not None and outcome is not signals.CANCELED:
            labels = {**facts.labels, **failure}
            for observation in self._observed:
                labels.update(observation.labels)
            telemetry.sinks.record(facts.duration, seconds, labels)
        for observation in self._observed:
            for each in observation.measurements:
                labels = {**facts.labels, **each.labels}
                if each.metric.name.startswith(signals.INSTRUMENTATION):
                    telemetry.count(each.metric, each.value, labels)
                else:
                    telemetry.sinks.record(each.metric, each.value, labels)

    def _record_exception(self, error_type: str, stack: str, message: str | None) -> None:
        """Record what a handler raised, once, as a log record of its span."""
        events = self._telemetry.sinks.events()
        if events is None:
            return
        attributes = {
            **self._record_keys(),
            signals.EXCEPTION_TYPE: error_type,
            signals.EXCEPTION_STACKTRACE: stack,
        }
        if message is not None:
            attributes[signals.EXCEPTION_MESSAGE] = message
        events.emit(
            event_name=self._facts.exception_event.name,
            severity_number=SeverityNumber.WARN,
            context=trace.set_span_in_context(self._span),
            attributes=attributes,
        )

    def _record_keys(self) -> dict[str, Any]:
        return {
            signals.SESSION_ID: self._flow_id,
            signals.STEP_ID: self._execution.id,
            signals.STEP_ATTEMPT: self._execution.attempt,
        }


class _Unwatched(AttemptTelemetry):
    """Of an attempt that nothing watches."""

    def __init__(self) -> None:
        pass

    def carrier(self) -> dict[str, str]:
        return {}

    def trace_carrier(self) -> dict[str, str]:
        return {}

    def observe(self, describe: Callable[[], Observation]) -> None:
        pass

    def completed(self, phase: Phase) -> None:
        pass

    def failed(
        self, failure: Failure, *, will_retry: bool, error: BaseException | None = None
    ) -> None:
        pass

    def canceled(self) -> None:
        pass

    def log(self, event: LogEvent, **data: Any) -> None:
        pass


_UNWATCHED = _Unwatched()


def _bound() -> ModuleType:
    """Return structlog's context variables; imported only once something logs."""
    return importlib.import_module("structlog.contextvars")


def _bind(flow_id: str, execution: Execution, facts: AttemptFacts) -> None:
    worker = {"worker": execution.worker} if execution.worker else {}
    _bound().bind_contextvars(
        session_id=flow_id,
        step_id=execution.id,
        attempt=execution.attempt,
        **facts.tags,
        **worker,
    )


def _stack(error: BaseException) -> str:
    """Return where an error and its causes were raised: no messages, no locals, no source."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    lines = []
    for each in reversed(chain):
        for frame, line in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {line}, in {code.co_name}')
        lines.append(type(each).__qualname__)
    return "\n".join(lines)
