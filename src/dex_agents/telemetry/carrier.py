"""W3C trace context as a plain dictionary that can be stored with a turn."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ("carrier_of", "context_of", "current_carrier", "links_to")

_propagator = TraceContextTextMapPropagator()


def current_carrier() -> dict[str, str]:
    """Return the carrier of the current span; empty when nothing traces."""
    return carrier_of(trace.get_current_span())


def carrier_of(span: Span) -> dict[str, str]:
    """Return the carrier of a span; empty when it is not traced."""
    carrier: dict[str, str] = {}
    if span.get_span_context().is_valid:
        _propagator.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def context_of(carrier: Mapping[str, str]) -> Context:
    """Return the context that a carrier names; an empty one when it names none."""
    return _propagator.extract(carrier, context=Context()) if carrier else Context()


def links_to(*carriers: Mapping[str, str]) -> tuple[Link, ...]:
    """Return a link to each span that a carrier names; none for a carrier that names none."""
    spans = (trace.get_current_span(context_of(each)) for each in carriers if each)
    contexts = (span.get_span_context() for span in spans)
    return tuple(Link(context) for context in contexts if context.is_valid)
