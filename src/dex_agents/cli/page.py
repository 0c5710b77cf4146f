"""A session's turns as one self-contained page: pictures, and the same as tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from dex_agents.cli.errors import CommandError
from dex_agents.cli.render import clock_time, duration, printable
from dex_agents.cli.timeline import Kind, Lane, Span, Turn
from dex_agents.cli.tracing import SessionTimeline, trace_id_of

__all__ = ("page", "write_page")

_LABEL, _CHART, _ROW, _TOP = 300, 820, 26, 24
_TICKS = 4
_LEGEND = {
    Kind.RAN: "runs",
    Kind.FAILED: "fails",
    Kind.WAITED: "waits",
    Kind.PAUSED: "pauses before it is tried again",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --soft: #667085;
  --line: #d8dde6; --ran: #2f6fde; --failed: #d13c3c; --waited: #e3c15a; --paused: #b9a3e3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --paper: #14181f; --soft: #98a2b3;
  --line: #333b47; --ran: #6ea0ff; --failed: #ff7a7a; --waited: #8d7526; --paused: #6c57a0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1160px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0; }
p { margin: .2rem 0 .8rem; color: var(--soft); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 13px; }
svg text.soft { fill: var(--soft); font-size: 11px; } svg line { stroke: var(--line); }
.ran { fill: var(--ran); } .failed { fill: var(--failed); }
.waited { fill: var(--waited); } .paused { fill: var(--paused); }
.legend span { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1.2em; }
.legend .ran { background: var(--ran); } .legend .failed { background: var(--failed); }
.legend .waited { background: var(--waited); } .legend .paused { background: var(--paused); }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
"""


def page(found: SessionTimeline) -> str:
    """Return the page. It loads nothing, and holds no script."""
    return "\n".join(_page(found)) + "\n"


def write_page(file: Path, text: str) -> None:
    """Write a page whole or not at all; one that is there is replaced.

    Raises:
        CommandError: The file cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:
            draft.write(text)
        Path(draft.name).replace(file)
    except OSError as error:
        raise CommandError(f"Cannot write {file}: {error.strerror}. Name another file.") from error


def _page(found: SessionTimeline) -> Iterator[str]:
    session = _text(found.summary.flow_id)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Session {session}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>Session {session}</h1>"
    summary = found.summary
    yield f"<p>{_text(summary.flow_type)}, {_text(summary.status)}, "
    yield f"started {_text(clock_time(summary.started_at))}</p>"
    keys = (f'<span class="{kind}"></span>{words}' for kind, words in _LEGEND.items())
    yield f'<p class="legend">{"".join(keys)}</p>'
    if not found.turns:
        yield "<p>There has been no turn so far.</p>"
    for turn in found.turns:
        yield from _turn(found, turn)
    yield "</body></html>"


def _turn(found: SessionTimeline, turn: Turn) -> Iterator[str]:
    tokens_in, tokens_out = turn.tokens
    yield f"<section><h2>Turn {turn.number}{' (open)' if turn.is_open else ''}</h2>"
    trace_id = trace_id_of(found, turn)
    trace = f", trace {_text(trace_id)}" if trace_id else ""
    yield f"<p>{_text(clock_time(turn.begun_at))}, {duration(turn.wall_seconds)}, of which "
    yield f"{duration(turn.computing_seconds)} computing; {turn.model_calls} model calls, "
    yield f"{tokens_in} tokens in, {tokens_out} out{trace}</p>"
    yield from _picture(turn)
    yield "<details><summary>As a table</summary>"
    yield from _table(turn)
    yield "</details></section>"


def _picture(turn: Turn) -> Iterator[str]:
    height = _TOP + _ROW * len(turn.lanes)
    size = f'viewBox="0 0 {_LABEL + _CHART} {height}"'
    yield f'<svg {size} role="img" aria-label="Timeline of turn {turn.number}">'
    for tick in range(_TICKS + 1):
        x = _LABEL + _CHART * tick / _TICKS
        at = duration(turn.wall_seconds * tick / _TICKS)
        anchor = "end" if tick == _TICKS else "middle" if tick else "start"
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="12" text-anchor="{anchor}">{at}</text>'
    for row, lane in enumerate(turn.lanes):
        y = _TOP + _ROW * row
        yield f'<text x="0" y="{y + 17}">{_text(_shortened(_name(lane)))}</text>'
        for span in lane.spans:
            yield _bar(turn, span, y)
    yield "</svg>"


def _bar(turn: Turn, span: Span, y: int) -> str:
    scale = _CHART / (turn.wall_seconds or 1.0)
    x = _LABEL + (span.begun_at - turn.begun_at) * scale
    width = max(span.seconds * scale, 2.0)
    x = min(x, _LABEL + _CHART - width)
    top, height = (y + 4, 18) if span.kind in (Kind.RAN, Kind.FAILED) else (y + 10, 6)
    return (
        f'<rect class="{span.kind}" x="{x:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{height}" rx="2"><title>{_text(_sentence(span))}</title></rect>'
    )


def _table(turn: Turn) -> Iterator[str]:
    heads = ("At", "Step", "What", "Attempt", "Worker", "Took", "How")
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for lane in turn.lanes:
        for span in lane.spans:
            cells = (
                f"+{duration(span.begun_at - turn.begun_at)}",
                lane.step_execution_id,
                lane.what,
                str(span.attempt or ""),
                span.worker,
                duration(span.seconds),
                span.told or (lane.outcome if span is lane.spans[-1] else str(span.kind)),
            )
            yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _name(lane: Lane) -> str:
    return f"{lane.step_execution_id}  {lane.what}" if lane.what else lane.step_execution_id


def _shortened(text: str, length: int = 44) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _sentence(span: Span) -> str:
    attempt = f"attempt {span.attempt} " if span.attempt else ""
    on = f" on {span.worker}" if span.worker else ""
    told = f": {span.told}" if span.told else ""
    return f"{attempt}{span.kind} {duration(span.seconds)}{on}{told}"


def _text(text: str) -> str:
    return escape(printable(text))
