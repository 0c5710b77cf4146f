"""Writes what was measured into ``docs/benchmarks.md``, between its marks, and draws its plots.

The words around the marks are written by hand; everything between them is replaced.
``python -m bench.document figures.json`` does it with the figures of an earlier run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.environment import python_of_contenders, root
from bench.report import FIGURES, GROWTH, Figure, formatted
from bench.side_by_side import CONTENDERS

__all__ = ("blocks", "filled", "write")

_EDGE = 50
"""How many turns at either end of a conversation are compared."""


def write(folder: Path, result: bytes) -> None:
    """Bring the figures and the plots up to date.

    Args:
        folder: Where ``benchmarks.md`` is.
        result: What ``--json`` writes.
    """
    page = folder / "benchmarks.md"
    page.write_text(filled(page.read_text(), blocks(msgspec.json.decode(result))))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(result)
        file.flush()
        command = [str(python_of_contenders()), "-m", "bench.plots", file.name, str(folder)]
        subprocess.run(command, check=True, cwd=root)


def filled(text: str, found: Mapping[str, str]) -> str:
    """Return a page with every block between its marks.

    Raises:
        ValueError: The page lacks a mark.
    """
    for name, block in found.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, has_begin, rest = text.partition(begin)
        _, has_end, tail = rest.partition(end)
        if not has_begin or not has_end:
            raise ValueError(f"the page has no {begin} and {end}")
        text = f"{head}{begin}\n{block}\n{end}{tail}"
    return text


def blocks(result: Mapping[str, Any]) -> dict[str, str]:
    """Return everything that is generated, by the name of its mark."""
    figures = result["figures"]
    return {
        "machine": _machine(result),
        "targets": _targets(figures),
        "contenders": _contenders(figures),
        "conversation": _conversation(result["conversations"]),
        "figures": _figures(figures),
        "growth": _growth(figures),
    }


def _machine(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    lines = [
        ("measured", machine["measured_at"]),
        ("machine", f"{machine['cpus']} cores, {machine['processor']}, {machine['platform']}"),
        ("load when it ended", f"{machine['load_average']:.1f}"),
        ("Python, SQLite", f"{machine['python']}, {machine['sqlite']}"),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("rounds", f"{result['rounds']}, in {result['minutes']:.0f} minutes"),
    ]
    return _table(("", ""), lines)


def _targets(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, figure in FIGURES.items():
        if figure.aim and name in figures:
            found = figures[name]
            verdict = "met" if figure.is_met_by(found["median"]) else "**missed**"
            rows.append((_titled(figure), figure.aim, *_numbers(found, figure), verdict))
    return _table(("what", "aim", "median:", "min:", "max:", ""), rows)


def _contenders(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, contender in CONTENDERS.items():
        cells = []
        for how in ("alone", "together"):
            found = figures.get(f"{name}_{how}")
            if found is None:
                cells += ["failed", ""]
                continue
            middle, least, most = formatted((found["median"], found["min"], found["max"]), 1)
            cells += [middle, f"{least} to {most}"]
        rows.append((contender.title, "yes" if contender.is_durable else "no", *cells))
    heading = ("what", "durable Steps", "one session:", "spread:", "64 sessions:", "spread:")
    return _table(heading, rows)


def _conversation(conversations: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for name, times in conversations.items():
        first, last = median(times[:_EDGE]), median(times[-_EDGE:])
        numbers = formatted((first, last, last / first, sum(times) / 1000), 1)
        rows.append((CONTENDERS[name].title, f"{len(times):,}", *numbers))
    heading = ("what", "turns:", "first 50, ms:", "last 50, ms:", "ratio:", "all, s:")
    return _table(heading, rows)


def _figures(figures: Mapping[str, Any]) -> str:
    shown = [name for name in FIGURES if name in figures and FIGURES[name].unit != "turns/s"]
    rows = [(_titled(FIGURES[name]), *_numbers(figures[name], FIGURES[name])) for name in shown]
    return _table(("what", "median:", "min:", "max:"), rows)


def _growth(figures: Mapping[str, Any]) -> str:
    rows = []
    for series, figure in GROWTH.items():
        sizes = [int(name.partition("@")[2]) for name in figures if name.startswith(f"{series}@")]
        for size in sorted(sizes):
            numbers = _numbers(figures[f"{series}@{size}"], figure)
            rows.append((f"{size:,} {figure.title}", figure.unit, *numbers))
    return _table(("how many", "cost", "median:", "min:", "max:"), rows)


def _titled(figure: Figure) -> str:
    return f"{figure.title}, {figure.unit}" if figure.unit else figure.title


def _numbers(found: Mapping[str, Any], figure: Figure) -> list[str]:
    return formatted((found["median"], found["min"], found["max"]), figure.digits)


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a heading that ends with a colon is of numbers."""
    edges = ["---:" if each.endswith(":") else "---" for each in heading]
    lines = [[each.rstrip(":") for each in heading], edges, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    write(root / "docs", Path(sys.argv[1]).read_bytes())
