"""Stretches under way: the spans that attempts of one piece of work have in common.

A stretch is opened by the first attempt that belongs to it, and ends with its
last one, once nothing of it is left to do in this process. Its span is ended
late, with the time of that attempt, so nothing stays open while nobody
computes, and a process that is killed loses at most one of a session.
"""

from __future__ import annotations

import time
from collections import Counter

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from dex_agents import signals
from dex_agents.machine import Execution
from dex_agents.table import AttemptFacts, Stretch, StretchEnd
from dex_agents.telemetry.carrier import carrier_of, context_of, links_to
from dex_agents.telemetry.sinks import Sinks

__all__ = ("OpenStretch", "Stretches")


class OpenStretch:
    """One stretch under way.

    Attributes:
        facts: What it is.
        span: Of it; invalid while nothing traces.
        context: In which it is the current span.
        end: How what it is about has ended, if it has.
    """

    def __init__(self, facts: Stretch, span: Span, context: Context) -> None:
        self.facts = facts
        self.span = span
        self.context = context
        self.end: StretchEnd | None = None
        self.begun_ns = self.ended_ns = 0
        self.running = 0
        self.tallies: Counter[str] = Counter()

    def enter(self, facts: AttemptFacts, at_ns: int) -> None:
        """Count an attempt that begins."""
        self.begun_ns = self.begun_ns or at_ns
        self.running += 1
        if facts.tally is not None:
            self.tallies[facts.tally.name] += 1

    def leave(self, at_ns: int) -> None:
        """Count an attempt that is over."""
        self.running -= 1
        self.ended_ns = max(self.ended_ns, at_ns)

    def carrier(self) -> dict[str, str]:
        """Return the W3C carrier of its span; empty when nothing traces."""
        return carrier_of(self.span)


class Stretches:
    """The stretches of one backend's workers, at most one for each flow.

    Args:
        backend: The backend's name.
        sinks: Where spans and metrics go.
    """

    def __init__(self, backend: str, sinks: Sinks) -> None:
        self._backend = backend
        self._sinks = sinks
        self._open: dict[str, OpenStretch] = {}

    def enter(
        self, flow_id: str, execution: Execution, facts: AttemptFacts, at_ns: int
    ) -> tuple[OpenStretch | None, bool]:
        """Let an attempt into its stretch; return it, and whether it was resumed just now."""
        stretch = facts.stretch
        if stretch is None:
            return None, False
        found = self._open.get(flow_id)
        if found is not None and found.facts.key != stretch.key:
            self.close(flow_id)
            found = None
        is_resumed = found is None and stretch.is_resumed
        if found is None:
            found = self._open[flow_id] = self._begin(flow_id, execution, facts, stretch, at_ns)
            self._count_active(found, 1)
        found.enter(facts, at_ns)
        return found, is_resumed

    def _begin(
        self,
        flow_id: str,
        execution: Execution,
        facts: AttemptFacts,
        stretch: Stretch,
        at_ns: int,
    ) -> OpenStretch:
        parent = context_of(facts.carrier)
        tracer = self._sinks.tracer()
        if tracer is None:
            return OpenStretch(stretch, trace.INVALID_SPAN, parent)
        attributes = {
            **stretch.attributes,
            signals.SESSION_ID: flow_id,
            signals.BACKEND_NAME: self._backend,
        }
        if stretch.is_resumed and execution.origin:
            attributes[signals.RESUMED_FROM] = execution.origin
        span = tracer.start_span(
            stretch.name,
            context=parent,
            links=links_to(*stretch.links, *facts.links),
            attributes=attributes,
            start_time=at_ns,
            record_exception=False,
            set_status_on_exception=False,
        )
        return OpenStretch(stretch, span, trace.set_span_in_context(span, parent))

    def open_flows(self) -> list[str]:
        """Return the flows that have a stretch under way."""
        return list(self._open)

    def has(self, flow_id: str) -> bool:
        """Return whether a flow has a stretch under way."""
        return flow_id in self._open

    def close(self, flow_id: str, *, for_seconds: float = 0.0) -> OpenStretch | None:
        """End a flow's stretch, unless an attempt of it runs; return it if it was ended.

        Args:
            flow_id: The flow.
            for_seconds: How long it must have had no attempt.
        """
        found = self._open.get(flow_id)
        if found is None or found.running:
            return None
        if for_seconds and time.time_ns() - found.ended_ns < for_seconds * 1e9:
            return None
        del self._open[flow_id]
        self._end(found)
        return found

    def _end(self, stretch: OpenStretch) -> None:
        end, span, facts = stretch.end, stretch.span, stretch.facts
        span.set_attribute(signals.TURN_OUTCOME, end.outcome if end else signals.SUSPENDED)
        labels = dict(facts.labels)
        if end is not None and end.error_type is not None:
            labels[signals.ERROR_TYPE] = end.error_type
            span.set_attribute(signals.ERROR_TYPE, end.error_type)
            span.set_status(StatusCode.ERROR)
        span.end(end_time=stretch.ended_ns)
        if facts.duration is not None:
            seconds = (stretch.ended_ns - stretch.begun_ns) / 1e9
            self._sinks.record(facts.duration, seconds, labels)
        for metric in facts.tallies:
            self._sinks.record(metric, stretch.tallies[metric.name], facts.labels)
        self._count_active(stretch, -1)

    def _count_active(self, stretch: OpenStretch, change: int) -> None:
        labels = {**stretch.facts.labels, signals.BACKEND_NAME: self._backend}
        self._sinks.record(signals.ACTIVE_SESSIONS, change, labels)
