"""An OpenTelemetry SDK and a logger of a test's own, set up nowhere globally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import CapturingLogger

from dex_agents import signals
from dex_agents.signals import LogEvent, Metric
from dex_agents.telemetry import TelemetryOptions
from dex_agents.testing import wait_until

_SAID_OTHERWISE = (
    signals.BACKEND_NAME,
    signals.WORKER_ID,
    signals.SESSION_ID,
    signals.CONVERSATION_ID,
    signals.TURN_ID,
    signals.STEP_ID,
    signals.STEP_PHASE,
    signals.STEP_ATTEMPT,
    signals.STEP_KIND,
)
"""What a tree leaves out: it differs from backend to backend, or stands in a label."""


class Watch:
    """Everything that a backend's workers tell."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.record_exporter = InMemoryLogRecordExporter()
        self.loggers = LoggerProvider()
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self.record_exporter))
        self.logger = CapturingLogger()

    def options(self, **more: Any) -> TelemetryOptions:
        """Return the options that make a backend tell all of this."""
        return TelemetryOptions(
            tracer_provider=self.provider,
            meter_provider=self.meters,
            logger_provider=self.loggers,
            logger=self.logger,
            **more,
        )

    # Spans

    def all_spans(self) -> list[ReadableSpan]:
        """Return every span that has ended, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def spans(self, step: str | None = None) -> list[ReadableSpan]:
        """Return the ended spans of a Step's attempts in order, or those of all Steps."""
        found = [span for span in self.all_spans() if signals.STEP_KIND in span.attributes]
        return [s for s in found if step is None or s.attributes[signals.STEP_KIND] == step]

    async def stretches(self, count: int) -> list[ReadableSpan]:
        """Return the ended ``invoke_agent`` spans, once there are so many."""

        def found() -> list[ReadableSpan]:
            return [span for span in self.all_spans() if span.name.startswith("invoke_agent")]

        await wait_until(f"{count} stretches", lambda: len(found()) >= count)
        assert len(found()) == count
        return found()

    def tree(self) -> str:
        """Return the spans as indented text, without what differs from backend to backend."""
        spans = self.all_spans()
        names = {span.context.span_id: _label(span) for span in spans}
        return "\n".join(_branches(spans, names, None)) + "\n"

    # Metrics

    def points(self, metric: Metric) -> dict[frozenset[tuple[str, Any]], Any]:
        """Return a metric's data points by their attributes."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        found = [
            each
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric.name
        ]
        return {
            frozenset(point.attributes.items()): point
            for each in found
            for point in each.data.data_points
        }

    def total(self, metric: Metric, by: str | None = None, **where: Any) -> Any:
        """Return the sum of a counter, or how often a histogram was recorded, by an attribute."""
        totals: dict[Any, float] = {}
        for attributes, point in self.points(metric).items():
            split = dict(attributes)
            if any(split.get(key) != value for key, value in where.items()):
                continue
            value = point.value if hasattr(point, "value") else point.count
            key = split.get(by) if by is not None else None
            totals[key] = totals.get(key, 0) + value
        return totals if by is not None else totals.get(None, 0)

    def metric_names(self) -> set[str]:
        """Return the names of all metrics that were recorded."""
        data = self.reader.get_metrics_data()
        if data is None:
            return set()
        return {
            each.name
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
        }

    # Logs

    def records(self) -> list[ReadableLogRecord]:
        """Return the log records of the OpenTelemetry Logs API."""
        return list(self.record_exporter.get_finished_logs())

    def lines(self, event: LogEvent | None = None) -> list[dict[str, Any]]:
        """Return the log lines, those of one event if it is named."""
        lines = [
            {"event": call.args[0], "level": call.method_name, **call.kwargs}
            for call in self.logger.calls
        ]
        return [line for line in lines if event is None or line["event"] == event.name]


def _label(span: ReadableSpan) -> str:
    attributes = span.attributes
    if signals.STEP_ID not in attributes:
        turn = attributes.get(signals.TURN_ID)
        return span.name if turn is None else f"{span.name} ({turn})"
    step, phase = attributes[signals.STEP_ID], attributes[signals.STEP_PHASE]
    attempt = attributes[signals.STEP_ATTEMPT]
    return f"{span.name} ({step}, {phase} {attempt})"


def _branches(
    spans: list[ReadableSpan], names: dict[int, str], parent: int | None, indent: str = ""
) -> Iterator[str]:
    children = [
        span
        for span in spans
        if (span.parent.span_id if span.parent is not None else None) == parent
    ]
    if indent.count("|") > 1:  # what runs in parallel may begin in any order
        children.sort(key=_label)
    for span in children:
        failed = " ERROR" if span.status.status_code is StatusCode.ERROR else ""
        kind = "" if span.kind is SpanKind.INTERNAL else f" {span.kind.name}"
        yield f"{indent}{_label(span)}{kind}{failed}"
        inner = f"{indent}|   "
        for key, value in sorted(span.attributes.items()):
            if key not in _SAID_OTHERWISE:
                yield f"{inner}. {key} = {value}"
        for name in sorted(names[link.context.span_id] for link in span.links):
            yield f"{inner}> {name}"
        yield from _branches(spans, names, span.context.span_id, inner)
