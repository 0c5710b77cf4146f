"""What does being watched cost? Processor time of a Step without telemetry, and with each kind."""

from __future__ import annotations

from statistics import median
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from bench.workload import STEPS_PER_TURN, Sizes, Stopwatch, pause, serving, turn
from dex_agents import TelemetryOptions
from dex_agents.machine import Execution
from dex_agents.telemetry import AttemptTelemetry, Telemetry

__all__ = ("measure",)

_REPEATS = 5


class _Nothing(AttemptTelemetry):
    """What an attempt would be without any telemetry in the code."""

    def __init__(self) -> None:
        pass

    def _ignore(self, *_: Any, **__: Any) -> None:
        pass

    def carrier(self) -> dict[str, str]:
        return {}

    trace_carrier = carrier
    observe = completed = failed = canceled = _ignore


class _Blind(Telemetry):
    """Does not even look whether somebody watches."""

    _nothing = _Nothing()

    def begin(self, flow_id: str, execution: Execution, describe: Any) -> AttemptTelemetry:  # noqa: ARG002
        return self._nothing

    def rest(self, flow_id: str, *, for_seconds: float = 0.0) -> None:
        pass


class _Discarded(SpanExporter):
    """Exports nowhere."""

    def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``telemetry_<backend>_<none|api|sdk>``, processor microseconds a Step."""
    figures = {}
    for backend in ("memory", "sqlite"):
        taken: dict[str, list[float]] = {"none": [], "api": [], "sdk": []}
        for _ in range(_REPEATS):
            for kind, micros in taken.items():
                micros.append(await _step_cpu(backend, kind, sizes.turns))
        figures |= {f"telemetry_{backend}_{kind}": median(each) for kind, each in taken.items()}
    return figures


async def _step_cpu(backend: str, kind: str, turns: int) -> float:
    tracers, meters = TracerProvider(), MeterProvider([InMemoryMetricReader()])
    tracers.add_span_processor(BatchSpanProcessor(_Discarded()))
    sdk = TelemetryOptions(tracer_provider=tracers, meter_provider=meters)
    async with serving(backend, telemetry=sdk if kind == "sdk" else None) as bench:
        if kind == "none":
            bench.worker._telemetry = _Blind(backend)  # noqa: SLF001 - for comparison only
        messages = [pause(), *[turn()] * (turns - 1), pause()]
        session = await bench.paused("watched", messages)
        with Stopwatch() as watch:
            await session.to_next_pause()
        await session.stop()
    tracers.shutdown()
    meters.shutdown()
    return 1e6 * watch.cpu_seconds / (turns * STEPS_PER_TURN)
