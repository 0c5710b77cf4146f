"""A structlog processor that puts the current trace onto every line."""

from __future__ import annotations

from opentelemetry import trace
from structlog.typing import EventDict, WrappedLogger

__all__ = ("add_trace_context",)


def add_trace_context(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Add ``trace_id``, ``span_id`` and ``trace_flags`` of the current span, sampled or not.

    Put it behind ``merge_contextvars`` in ``structlog.configure(processors=...)``.
    """
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event_dict["trace_id"] = f"{context.trace_id:032x}"
        event_dict["span_id"] = f"{context.span_id:016x}"
        event_dict["trace_flags"] = f"{context.trace_flags:02x}"
    return event_dict
