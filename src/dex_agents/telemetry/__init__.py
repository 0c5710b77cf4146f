"""Traces and logs around handler calls, on the OpenTelemetry API and structlog alone."""

from __future__ import annotations

from dex_agents.telemetry.attempts import AttemptTelemetry, Telemetry
from dex_agents.telemetry.carrier import current_carrier

__all__ = ("AttemptTelemetry", "Telemetry", "current_carrier")
