"""One span and one structlog context for each Step attempt.

Nothing is configured globally: spans go to the tracer provider that the
application set or passed, and log lines are written at INFO only once the
application has configured structlog or passed a logger. Without either, an
attempt costs a no-op span.
"""

from __future__ import annotations

from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from dex_agents.machine import Execution, Failure, Phase
from dex_agents.table import AttemptFacts
from dex_agents.telemetry import names
from dex_agents.telemetry.carrier import carrier_of, context_of

__all__ = ("AttemptTelemetry", "Telemetry")


class Telemetry:
    """Watches the Step attempts of one backend.

    Args:
        backend: The backend's name.
        tracer_provider: Where spans go; None for the application's own.
        logger: Where log lines go; None for structlog's own, once configured.
    """

    def __init__(
        self,
        backend: str,
        tracer_provider: TracerProvider | None = None,
        logger: Any = None,
    ) -> None:
        self.backend = backend
        self._tracer_provider = tracer_provider
        self._logger = logger

    def clear(self) -> None:
        """Forget every identifier that is bound in the current context."""
        structlog.contextvars.clear_contextvars()

    def begin(self, flow_id: str, execution: Execution, facts: AttemptFacts) -> AttemptTelemetry:
        """Open the span of an attempt and bind its identifiers, in the current task's context.

        Call it in a task of the attempt's own, whose context is a copy of one
        that went through `clear`: nothing is unbound.
        """
        structlog.contextvars.bind_contextvars(
            session_id=flow_id, step_id=execution.id, attempt=execution.attempt, **facts.tags
        )
        span, logger = self._span(flow_id, execution, facts), self.logger
        if span is trace.INVALID_SPAN and logger is None:
            return _UNWATCHED
        return AttemptTelemetry(span, logger)

    def _span(self, flow_id: str, execution: Execution, facts: AttemptFacts) -> Span:
        provider = self._tracer_provider or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            return trace.INVALID_SPAN  # the application traces nothing
        tracer = provider.get_tracer(names.INSTRUMENTATION)
        parent = context_of(facts.carrier)
        span = tracer.start_span(
            facts.span_name or execution.step,
            context=parent,
            kind=SpanKind.CLIENT if facts.is_client else SpanKind.INTERNAL,
            links=_links(execution.last_carrier),
            attributes=self._attributes(flow_id, execution, facts),
            record_exception=False,
            set_status_on_exception=False,
        )
        attach(trace.set_span_in_context(span, parent))
        return span

    @property
    def logger(self) -> Any:
        """Where log lines go, or None while the application has set nothing up."""
        if self._logger is None and structlog.is_configured():
            return structlog.get_logger(names.INSTRUMENTATION)
        return self._logger

    def warn(self, event: str, **data: Any) -> None:
        """Log a warning of the worker itself."""
        if (logger := self.logger) is not None:
            logger.warning(event, backend=self.backend, **data)

    def _attributes(
        self, flow_id: str, execution: Execution, facts: AttemptFacts
    ) -> dict[str, str | int | float | bool]:
        return {
            names.SESSION_ID: flow_id,
            names.STEP_ID: execution.id,
            names.STEP_KIND: execution.step,
            names.STEP_PHASE: str(execution.phase),
            names.STEP_ATTEMPT: execution.attempt,
            names.BACKEND_NAME: self.backend,
            **{names.TAGS.get(tag, tag): value for tag, value in facts.tags.items()},
            **facts.attributes,
        }


class AttemptTelemetry:
    """The open span and the log context of one attempt."""

    def __init__(self, span: Span, logger: Any) -> None:
        self._span = span
        self._logger = logger

    def carrier(self) -> dict[str, str]:
        """Return the W3C carrier of the attempt's span; empty when nothing traces."""
        return carrier_of(self._span)

    def completed(self, phase: Phase) -> None:
        """End the span of an attempt that returned; a wait is suspended, not done."""
        outcome = names.SUSPENDED if phase is Phase.WAIT_FOR else names.COMPLETED
        self._span.set_attribute(names.STEP_OUTCOME, outcome)
        self._span.end()
        if self._logger is not None:
            self._logger.info(names.STEP_COMPLETED, outcome=outcome)

    def failed(
        self, failure: Failure, *, will_retry: bool, error: BaseException | None = None
    ) -> None:
        """End the span of an attempt that failed; log what its handler raised, if it did."""
        outcome = names.RETRYING if will_retry else names.FAILED
        self._span.set_attribute(names.STEP_OUTCOME, outcome)
        self._span.set_attribute(names.ERROR_TYPE, failure.error_type)
        self._span.set_status(StatusCode.ERROR)
        self._span.end()
        if self._logger is not None:
            event = names.STEP_RETRYING if will_retry else names.STEP_FAILED
            raised = {} if error is None else {"exc_info": error}
            self._logger.warning(event, error_type=failure.error_type, **raised)

    def canceled(self) -> None:
        """End the span of an attempt whose result nobody wants any more."""
        self._span.set_attribute(names.STEP_OUTCOME, names.CANCELED)
        self._span.end()


class _Unwatched(AttemptTelemetry):
    """Of an attempt that nothing traces or logs."""

    def carrier(self) -> dict[str, str]:
        return {}

    def completed(self, phase: Phase) -> None:
        pass

    def failed(
        self, failure: Failure, *, will_retry: bool, error: BaseException | None = None
    ) -> None:
        pass

    def canceled(self) -> None:
        pass


_UNWATCHED = _Unwatched(trace.INVALID_SPAN, None)


def _links(carrier: dict[str, str]) -> tuple[Link, ...]:
    """Return a link to the attempt before this one."""
    if not carrier:
        return ()
    return (Link(trace.get_current_span(context_of(carrier)).get_span_context()),)
