"""Where telemetry goes: the providers that are real, looked up when something is to be sent.

An application may set its providers up after a backend was made. Until it
does, everything here is None or off, so that an attempt costs next to nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import Logger
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from dex_agents.signals import INSTRUMENTATION, Instrument, Metric
from dex_agents.telemetry.options import TelemetryOptions

__all__ = ("Sinks",)

S = TypeVar("S")

_LOOK_SECONDS = 0.1

_STAND_INS = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")


class _Kept(Generic[S]):
    """What was made from a provider, for as long as it is the same one."""

    def __init__(self) -> None:
        self.provider: Any = None
        self.made: S | None = None


class Sinks:
    """The tracer, the meter and the loggers of one backend.

    Args:
        options: Which providers to use.
    """

    def __init__(self, options: TelemetryOptions) -> None:
        self._options = options
        self._tracer: _Kept[Tracer] = _Kept()
        self._meter: _Kept[Meter] = _Kept()
        self._events: _Kept[Logger] = _Kept()
        self._instruments: dict[str, Any] = {}
        self._silent_until = 0.0

    def are_silent(self) -> bool:
        """Return whether nothing takes anything of an attempt; looked at now and then.

        So an unwatched attempt costs a look at the clock, and a provider that is
        set up later is noticed a moment later.
        """
        now = time.monotonic()
        if now < self._silent_until:
            return True
        if any(sink is not None for sink in (self.tracer(), self.logger(), self.meter())):
            return False
        self._silent_until = now + _LOOK_SECONDS
        return True

    def tracer(self) -> Tracer | None:
        """Return the tracer, or None while nothing traces."""
        provider = self._options.tracer_provider or trace.get_tracer_provider()
        kept = self._tracer
        if provider is not kept.provider:
            kept.provider = provider
            kept.made = provider.get_tracer(INSTRUMENTATION) if _is_real(provider) else None
        return kept.made

    def meter(self) -> Meter | None:
        """Return the meter, or None while nothing measures."""
        provider = self._options.meter_provider or metrics.get_meter_provider()
        kept = self._meter
        if provider is not kept.provider:
            kept.provider = provider
            kept.made = provider.get_meter(INSTRUMENTATION) if _is_real(provider) else None
            self._instruments = {}
        return kept.made

    def events(self) -> Logger | None:
        """Return where log records go, or None while nothing takes them."""
        provider = self._options.logger_provider or _logs.get_logger_provider()
        kept = self._events
        if provider is not kept.provider:
            kept.provider = provider
            kept.made = provider.get_logger(INSTRUMENTATION) if _is_real(provider) else None
        return kept.made

    def logger(self) -> Any:
        """Return where log lines go, or None while the application has set nothing up."""
        if self._options.logger is not None:
            return self._options.logger
        # Who has not even imported structlog has not configured it; importing it takes a while.
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            return structlog.get_logger(INSTRUMENTATION)
        return None

    def record(self, metric: Metric, value: float, attributes: Mapping[str, Any]) -> None:
        """Record a value of a metric; from any thread."""
        meter = self.meter()
        if meter is None:
            return
        instrument = self._instruments.get(metric.name)
        if instrument is None:
            instrument = self._instruments[metric.name] = _instrument(meter, metric)
        if metric.instrument is Instrument.HISTOGRAM:
            instrument.record(value, attributes)
        else:
            instrument.add(value, attributes)


def _is_real(provider: Any) -> bool:
    """Return whether a provider sends anything: those of the API only stand in for one."""
    return not type(provider).__module__.startswith(_STAND_INS)


def _instrument(meter: Meter, metric: Metric) -> Any:
    match metric.instrument:
        case Instrument.COUNTER:
            return meter.create_counter(metric.name, metric.unit, metric.meaning)
        case Instrument.UP_DOWN_COUNTER:
            return meter.create_up_down_counter(metric.name, metric.unit, metric.meaning)
        case Instrument.HISTOGRAM:
            return meter.create_histogram(
                metric.name,
                metric.unit,
                metric.meaning,
                explicit_bucket_boundaries_advisory=metric.buckets,
            )
