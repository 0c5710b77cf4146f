"""What came out: the figures of every round, the ratios within a round, and their spread."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import apsw
from msgspec import Struct
from rich.table import Table

__all__ = ("FIGURES", "RATIOS", "Summary", "drawn", "machine", "summarised", "with_ratios")


class Figure(Struct, frozen=True):
    """How a figure is shown, and what is aimed at."""

    title: str
    unit: str
    digits: int = 0
    aim: str = ""


FIGURES = {
    "bare_commits": Figure("bare SQLite, 1 KB a commit", "commits/s"),
    "sqlite_sequence": Figure("SQLite, one session", "Steps/s"),
    "sqlite_parallel": Figure("SQLite, 64 sessions", "Steps/s"),
    "memory_sequence": Figure("memory, one session", "Steps/s", aim="> 10000"),
    "memory_parallel": Figure("memory, 64 sessions", "Steps/s", aim="> 10000"),
    "sqlite_turn_near": Figure("SQLite, an early turn", "ms", 3),
    "sqlite_turn_far": Figure("SQLite, a late turn", "ms", 3),
    "memory_turn_near": Figure("memory, an early turn", "ms", 3),
    "memory_turn_far": Figure("memory, a late turn", "ms", 3),
    "commits_per_step": Figure("SQLite, commits", "per Step", 2),
    "rows_per_step": Figure("SQLite, rows written", "per Step", 2),
    "statements_per_step": Figure("SQLite, statements", "per Step", 2),
    "bytes_per_step": Figure("SQLite, bytes written", "per Step"),
    "handler_calls_per_step": Figure("handler calls", "per Step", 2),
    "stored_bytes_per_turn_near": Figure("SQLite, stored early", "bytes/turn"),
    "stored_bytes_per_turn_far": Figure("SQLite, stored late", "bytes/turn"),
    "dex_compiled_step": Figure("Dex emulator, compiled session", "ms/Step", 3),
    "dex_handwritten_step": Figure("Dex emulator, written by hand", "ms/Step", 3),
    "sqlite_sequence_to_bare": Figure("SQLite, one session / bare", "", 2, ">= 0.35"),
    "sqlite_parallel_to_bare": Figure("SQLite, 64 sessions / bare", "", 2, "> 1.00"),
    "sqlite_far_to_near": Figure("SQLite, late / early turn", "", 2, "< 1.20"),
    "memory_far_to_near": Figure("memory, late / early turn", "", 2, "< 1.20"),
    "dex_compiled_to_handwritten": Figure("Dex, compiled / by hand", "", 2, "< 1.15"),
}

RATIOS = {
    "sqlite_sequence_to_bare": ("sqlite_sequence", "bare_commits"),
    "sqlite_parallel_to_bare": ("sqlite_parallel", "bare_commits"),
    "sqlite_far_to_near": ("sqlite_turn_far", "sqlite_turn_near"),
    "memory_far_to_near": ("memory_turn_far", "memory_turn_near"),
    "dex_compiled_to_handwritten": ("dex_compiled_step", "dex_handwritten_step"),
}


class Summary(Struct, frozen=True):
    """One figure over all rounds."""

    unit: str
    median: float
    min: float
    max: float
    rounds: list[float]


def with_ratios(measured: Mapping[str, float]) -> dict[str, float]:
    """Return one round's figures with every ratio of which both halves were measured in it."""
    ratios = {
        name: measured[above] / measured[below]
        for name, (above, below) in RATIOS.items()
        if above in measured and below in measured
    }
    return {**measured, **ratios}


def summarised(rounds: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """Return the median and the spread of every figure, in the order of `FIGURES`."""
    found = {}
    for name, figure in FIGURES.items():
        if values := [each[name] for each in rounds if name in each]:
            found[name] = Summary(
                figure.unit or "ratio", median(values), min(values), max(values), values
            )
    return found


def drawn(summaries: Mapping[str, Summary], title: str) -> Table:
    """Return the figures as a table for a terminal."""
    table = Table(title=title)
    table.add_column("what")
    for heading in ("median", "min", "max"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("aim", justify="right")
    for name, summary in summaries.items():
        figure = FIGURES[name]
        numbers = (summary.median, summary.min, summary.max)
        table.add_row(figure.title, *_formatted(numbers, figure.digits), figure.unit, figure.aim)
    return table


def _formatted(numbers: Iterable[float], digits: int) -> list[str]:
    return [f"{number:,.{digits}f}" for number in numbers]


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }
