"""What came out: the figures of every round, the ratios within a round, and their spread."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import apsw
from msgspec import Struct
from rich.table import Table

from bench.side_by_side import CONTENDERS

__all__ = (
    "FIGURES",
    "GROWTH",
    "RATIOS",
    "Figure",
    "Summary",
    "drawn",
    "formatted",
    "machine",
    "summarised",
    "with_ratios",
)


class Figure(Struct, frozen=True):
    """How a figure is shown, and what is aimed at: at least so much, or at most."""

    title: str
    unit: str
    digits: int = 0
    least: float | None = None
    most: float | None = None

    @property
    def aim(self) -> str:
        """The aim in words, or nothing."""
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    def is_met_by(self, value: float) -> bool:
        """Return whether a value is within the aim."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


def _rates() -> dict[str, Figure]:
    return {
        f"{name}_{how}": Figure(f"{each.title}, {words}", "turns/s", 1)
        for name, each in CONTENDERS.items()
        for how, words in (("alone", "one session"), ("together", "64 sessions"))
    }


FIGURES = {
    "bare_commits": Figure("bare SQLite, 1 KB a commit", "commits/s"),
    "sqlite_sequence": Figure("SQLite, one session", "Steps/s"),
    "sqlite_parallel": Figure("SQLite, 64 sessions", "Steps/s"),
    "memory_sequence": Figure("memory, one session", "Steps/s"),
    "memory_parallel": Figure("memory, 64 sessions", "Steps/s"),
    "bare_cpu": Figure("bare SQLite, processor time", "µs/commit"),
    "sqlite_step_cpu": Figure("SQLite, processor time", "µs/Step"),
    "memory_step_cpu": Figure("memory, processor time", "µs/Step"),
    **_rates(),
    "sqlite_turn_near": Figure("SQLite, an early turn", "ms", 3),
    "sqlite_turn_far": Figure("SQLite, a late turn", "ms", 3),
    "memory_turn_near": Figure("memory, an early turn", "ms", 3),
    "memory_turn_far": Figure("memory, a late turn", "ms", 3),
    "snapshot_near": Figure("SQLite, snapshot of 200 messages", "ms", 3),
    "snapshot_far": Figure("SQLite, snapshot of a late session", "ms", 3),
    "commits_per_step": Figure("SQLite, commits", "per Step", 2),
    "rows_per_step": Figure("SQLite, rows written", "per Step", 2),
    "bytes_per_step": Figure("SQLite, bytes written", "per Step"),
    "statements_per_step": Figure("SQLite, statements", "per Step", 2),
    "handler_calls_per_step": Figure("handler calls", "per Step", 2),
    "stored_bytes_per_turn_near": Figure("SQLite, stored early", "bytes/turn"),
    "stored_bytes_per_turn_far": Figure("SQLite, stored late", "bytes/turn"),
    "first_call_alone": Figure("message to first model call, alone", "ms", 2, most=3),
    "first_call_busy": Figure("message to first model call, 64 busy", "ms", 1),
    "first_call_busy_p99": Figure("first model call, 64 busy, 99th percentile", "ms", 1, most=15),
    "first_call_thinking": Figure("message to first model call, 64 thinking", "ms", 2),
    "first_call_thinking_p99": Figure("first model call, 64 thinking, 99th percentile", "ms", 1),
    "open_ready": Figure("worker ready, 10,000 open sessions", "s", 2, most=3),
    "open_memory": Figure("memory of an open session", "bytes", 0, most=4096),
    "open_answer": Figure("answer of an open session, alone", "ms", 1),
    "open_answer_busy": Figure("answer of an open session, 64 busy", "ms", 1, most=20),
    "import_cpu": Figure("import dex_agents, processor time", "ms", 0, most=120),
    "demo_first_step": Figure("demo, first Step stored", "s", 2, most=0.5),
    **{
        f"telemetry_{name}_{kind}": Figure(f"{title}, processor time {words}", "µs/Step", 1)
        for name, title in (("memory", "memory"), ("sqlite", "SQLite"))
        for kind, words in (
            ("none", "without telemetry"),
            ("api", "with the API alone"),
            ("sdk", "with the SDK, exporting nowhere"),
        )
    },
    "dex_compiled_step": Figure("Dex emulator, compiled session", "ms/Step", 3),
    "dex_handwritten_step": Figure("Dex emulator, written by hand", "ms/Step", 3),
    "telemetry_memory_api_to_none": Figure("memory, API alone / no telemetry", "", 3, most=1.05),
    "telemetry_memory_sdk_to_none": Figure("memory, SDK / no telemetry", "", 2),
    "telemetry_sqlite_api_to_none": Figure("SQLite, API alone / no telemetry", "", 3, most=1.05),
    "telemetry_sqlite_sdk_to_none": Figure("SQLite, SDK / no telemetry", "", 2),
    "alone_to_dbos": Figure("SQLite, one session / DBOS", "", 1, least=6),
    "alone_to_langgraph": Figure("SQLite, one session / LangGraph", "", 1, least=6),
    "together_to_dbos": Figure("SQLite, 64 sessions / DBOS", "", 1, least=25),
    "memory_to_langgraph": Figure("memory, one session / LangGraph", "", 1, least=12),
    "sqlite_sequence_to_bare": Figure("SQLite, one session / bare", "", 2, least=0.45),
    "sqlite_parallel_to_bare": Figure("SQLite, 64 sessions / bare", "", 2, least=1.8),
    "memory_sequence_to_bare": Figure("memory, one session / bare", "", 2),
    "memory_parallel_to_bare": Figure("memory, 64 sessions / bare", "", 2),
    "sqlite_far_to_near": Figure("SQLite, late / early turn", "", 2, most=1.1),
    "memory_far_to_near": Figure("memory, late / early turn", "", 2, most=1.1),
    "snapshot_far_to_near": Figure("SQLite, late / early snapshot", "", 2, most=1.2),
    "stored_far_to_near": Figure("SQLite, stored late / early", "", 3, most=1.01),
    "dex_compiled_to_handwritten": Figure("Dex, compiled / by hand", "", 2, most=1.15),
}

RATIOS = {
    **{
        f"telemetry_{name}_{kind}_to_none": (f"telemetry_{name}_{kind}", f"telemetry_{name}_none")
        for name in ("memory", "sqlite")
        for kind in ("api", "sdk")
    },
    "alone_to_dbos": ("dex_agents_sqlite_alone", "dbos_sqlite_alone"),
    "alone_to_langgraph": ("dex_agents_sqlite_alone", "langgraph_sqlite_alone"),
    "together_to_dbos": ("dex_agents_sqlite_together", "dbos_sqlite_together"),
    "memory_to_langgraph": ("dex_agents_memory_alone", "langgraph_memory_alone"),
    "sqlite_sequence_to_bare": ("sqlite_sequence", "bare_commits"),
    "sqlite_parallel_to_bare": ("sqlite_parallel", "bare_commits"),
    "memory_sequence_to_bare": ("memory_sequence", "bare_commits"),
    "memory_parallel_to_bare": ("memory_parallel", "bare_commits"),
    "sqlite_far_to_near": ("sqlite_turn_far", "sqlite_turn_near"),
    "memory_far_to_near": ("memory_turn_far", "memory_turn_near"),
    "snapshot_far_to_near": ("snapshot_far", "snapshot_near"),
    "stored_far_to_near": ("stored_bytes_per_turn_far", "stored_bytes_per_turn_near"),
    "dex_compiled_to_handwritten": ("dex_compiled_step", "dex_handwritten_step"),
}

GROWTH = {
    "messages": Figure("messages in the session", "ms/turn", 2),
    "sessions": Figure("sessions at once", "µs/Step"),
    "followed": Figure("sessions at once, each followed", "µs/Step"),
    "calls": Figure("tool calls in parallel", "ms/call", 3),
    "payload": Figure("bytes of each payload", "ms/KB", 3),
    "workers": Figure("worker processes on one file", "µs/Step"),
}
"""The series of `bench.growth`; a figure in one is named ``<series>@<how many>``."""


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
    """Return the median and the spread of every figure, in the order of `FIGURES`, then growth."""
    found = {}
    growth = {
        name: GROWTH[name.partition("@")[0]] for each in rounds for name in each if "@" in name
    }
    for name, figure in {**FIGURES, **growth}.items():
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
        series, _, size = name.partition("@")
        figure = GROWTH[series] if size else FIGURES[name]
        title = f"{int(size):,} {figure.title}" if size else figure.title
        numbers = formatted((summary.median, summary.min, summary.max), figure.digits)
        table.add_row(title, *numbers, figure.unit, figure.aim)
    return table


def formatted(numbers: Iterable[float], digits: int) -> list[str]:
    """Return numbers with so many digits behind the point."""
    return [f"{number:,.{digits}f}" for number in numbers]


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }


def _processor() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
