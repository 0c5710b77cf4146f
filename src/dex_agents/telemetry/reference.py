"""Writes the reference of every signal: ``python -m dex_agents.telemetry.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from dex_agents import signals

__all__ = ("reference",)

_PREAMBLE = f"""\
# Signals

Every span, metric, log line and log record of dex-agents, with everything that each may carry.
This page is made from `dex_agents.signals` by `python -m dex_agents.telemetry.reference`; how to
wire and read it stands in [Watching sessions](watching.md).

`gen_ai.*` follows the OpenTelemetry {signals.CONVENTIONS},
which are in development: a minor release may rename them. What begins with `dex_agents` is our own.
Identifiers are on spans and logs, never on metrics or in the names of spans.
"""


def reference() -> str:
    """Return the reference as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _PREAMBLE
    yield "## Spans\n"
    for span in signals.SPANS:
        attributes = _list(span.attributes)
        yield f"**`{span.name}`** ({span.kind}). {span.meaning} Attributes: {attributes}.\n"
    yield "## Attributes\n"
    yield from _table(
        ("attribute", "meaning"),
        ((f"`{key}`", meaning) for key, meaning in signals.ATTRIBUTES.items()),
    )
    yield "## Metrics\n"
    yield from _table(
        ("metric", "kind", "unit", "meaning", "split by"),
        (
            (f"`{m.name}`", m.instrument, f"`{m.unit}`", m.meaning, _list(m.attributes))
            for m in signals.METRICS
        ),
    )
    yield "## Log lines\n"
    yield "Written through structlog.\n"
    yield from _events(signals.LOG_EVENTS)
    yield "## Log records\n"
    yield "Written through the OpenTelemetry Logs API, in the context of the attempt's span.\n"
    yield from _events(signals.RECORD_EVENTS)


def _events(events: Iterable[signals.LogEvent]) -> Iterator[str]:
    rows = ((f"`{e.name}`", e.level, e.meaning, _list(e.keys)) for e in events)
    yield from _table(("event", "level", "meaning", "keys"), rows)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    for row in (heads, ("---",) * len(heads), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(reference())
