"""Where telemetry goes, and whether it may show content."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from opentelemetry._logs import LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

__all__ = ("CAPTURE_VARIABLE", "ContentCapture", "TelemetryOptions")

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The standard switch of the GenAI instrumentations; an argument wins over it."""


class ContentCapture(StrEnum):
    """Where messages, tool arguments, tool results and error messages may appear."""

    NO_CONTENT = "NO_CONTENT"
    SPAN_ONLY = "SPAN_ONLY"
    EVENT_ONLY = "EVENT_ONLY"
    SPAN_AND_EVENT = "SPAN_AND_EVENT"

    @property
    def on_spans(self) -> bool:
        """Whether spans may carry content."""
        return self in (ContentCapture.SPAN_ONLY, ContentCapture.SPAN_AND_EVENT)

    @property
    def on_events(self) -> bool:
        """Whether log records and log lines may carry content."""
        return self in (ContentCapture.EVENT_ONLY, ContentCapture.SPAN_AND_EVENT)

    @classmethod
    def from_environment(cls) -> ContentCapture:
        """Return what `CAPTURE_VARIABLE` says; what it cannot say is a warning, and no content."""
        value = os.environ.get(CAPTURE_VARIABLE, "").strip().upper()
        if not value:
            return cls.NO_CONTENT
        try:
            return cls(value)
        except ValueError:
            allowed = ", ".join(cls)
            text = f"{CAPTURE_VARIABLE} is {value!r}, not one of {allowed}: no content is captured."
            warnings.warn(text, stacklevel=2)
            return cls.NO_CONTENT


@dataclass(frozen=True)
class TelemetryOptions:
    """How a backend's workers are watched.

    Each provider that is not given is the application's own, if it has set one
    up; nothing is ever set globally.

    Attributes:
        tracer_provider: Where spans go.
        meter_provider: Where metrics go.
        logger_provider: Where exceptions go, and content if it may.
        logger: Where log lines go; None for structlog's own, once it is configured.
        capture_content: None for what `CAPTURE_VARIABLE` says.
        redact: Called with an attribute's name and its content before it goes
            anywhere; returns what may, or None for nothing. An error that it
            raises drops the content.
    """

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    logger_provider: LoggerProvider | None = None
    logger: Any = None
    capture_content: ContentCapture | None = None
    redact: Callable[[str, Any], Any] | None = None
