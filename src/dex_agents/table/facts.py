"""What a table tells telemetry of its attempts; nothing of it is stored.

The author of a table knows what an attempt is about, telemetry knows where
spans, metrics and log lines go. `AttemptFacts` are given before an attempt,
an `Observation` during it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field

from dex_agents.signals import STEP_EXCEPTION, LogEvent, Metric

__all__ = ("AttemptFacts", "Measurement", "Observation", "Stretch", "StretchEnd")

Carrier: TypeAlias = Mapping[str, str]
"""A W3C trace context, as it is stored and sent."""

Value: TypeAlias = str | int | float | bool | tuple[str, ...]


class Stretch(Struct, frozen=True):
    """A piece of work that spans several attempts, as far as one process does it in one go.

    Attributes:
        key: Tells it from the others of its flow, such as a turn's ID.
        name: Of its span.
        attributes: Of its span.
        labels: Of its metrics.
        duration: How long it was is measured so.
        tallies: How many of its attempts counted towards each of these.
        is_resumed: Whether it goes on with what an earlier stretch began.
        links: Carriers of spans that led to it.
    """

    key: str
    name: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    duration: Metric | None = None
    tallies: tuple[Metric, ...] = ()
    is_resumed: bool = False
    links: tuple[Carrier, ...] = ()


class AttemptFacts(Struct, frozen=True):
    """What a table's author knows about a Step attempt before it begins.

    Attributes:
        span_name: In place of the Step's name, or None.
        is_client: Whether the attempt calls a remote service.
        carrier: The W3C carrier of the trace that the attempt belongs to.
        links: Carriers of whoever woke it from outside.
        attributes: For the span only.
        tags: Short identifiers for both the span and the log lines.
        labels: For the metrics.
        stretch: What it is a part of, or None.
        duration: How long the attempt took is measured so too.
        tally: What it counts towards in its stretch.
        exception_event: What an exception is recorded as.
    """

    span_name: str | None = None
    is_client: bool = False
    carrier: Carrier = field(default_factory=dict)
    links: tuple[Carrier, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    stretch: Stretch | None = None
    duration: Metric | None = None
    tally: Metric | None = None
    exception_event: LogEvent = STEP_EXCEPTION


class Measurement(Struct, frozen=True):
    """One value of one metric."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class StretchEnd(Struct, frozen=True):
    """Says that what a stretch is about has ended, and is not only waiting.

    Attributes:
        event: Logged when the attempt ends.
        outcome: ``completed`` or ``failed``.
        error_type: Why it failed.
        seconds: How long it was in all.
    """

    event: LogEvent
    outcome: str
    seconds: float
    error_type: str | None = None


class Observation(Struct, frozen=True):
    """What came out while an attempt ran.

    Attributes:
        span_name: A better name for its span, or None.
        attributes: For its span.
        labels: For the metric of its duration.
        measurements: Counted when the attempt ends.
        error_type: The operation failed so, although the Step completes.
        end: The end of what its stretch is about, or None.
        content: Returns what may be shown only with content capture, by attribute.
        content_event: What the content is also recorded as, or None.
    """

    span_name: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    error_type: str | None = None
    end: StretchEnd | None = None
    content: Callable[[], Mapping[str, Any]] | None = None
    content_event: LogEvent | None = None
