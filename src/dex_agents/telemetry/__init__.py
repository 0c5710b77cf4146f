"""Traces, metrics and logs around handler calls, on the OpenTelemetry API and structlog alone."""

from __future__ import annotations

from dex_agents.telemetry.attempts import AttemptTelemetry, Telemetry
from dex_agents.telemetry.carrier import current_carrier
from dex_agents.telemetry.options import ContentCapture, TelemetryOptions

__all__ = (
    "AttemptTelemetry",
    "ContentCapture",
    "Telemetry",
    "TelemetryOptions",
    "current_carrier",
)
