"""Draws the plots of ``docs/benchmarks.md``: ``python -m bench.plots FIGURES.json FOLDER``.

Runs in the contenders' environment, which has matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_WINDOW = 10
_STEEP = frozenset({"calls", "payload"})
"""Costs of one of many, which fall so far that only a logarithm shows both ends."""
_OURS, _THEIRS = "#1f6f8b", "#b8b8b8"


def _contenders(figures: dict[str, Any], titles: dict[str, str]) -> Figure:
    plot = Figure(figsize=(8, 5.4), layout="constrained")
    panes = plot.subplots(2, 1, sharex=True)
    for pane, how, title in zip(
        panes, ("alone", "together"), ("One session", "64 sessions at once"), strict=True
    ):
        names = [name for name in titles if f"{name}_{how}" in figures][::-1]
        found = [figures[f"{name}_{how}"] for name in names]
        middles = [each["median"] for each in found]
        errors = [
            [each["median"] - each["min"] for each in found],
            [each["max"] - each["median"] for each in found],
        ]
        colors = [_OURS if name.startswith("dex_agents") else _THEIRS for name in names]
        bars = pane.barh([titles[name] for name in names], middles, xerr=errors, color=colors)
        pane.bar_label(bars, [f" {each:,.0f}" for each in middles], padding=2)
        pane.set_xscale("log")
        pane.set_title(title, loc="left")
        pane.spines[["top", "right"]].set_visible(False)
    panes[-1].set_xlabel("turns a second, of seven Steps each (logarithmic; more is better)")
    return plot


def _conversations(conversations: dict[str, list[float]], titles: dict[str, str]) -> Figure:
    plot = Figure(figsize=(8, 4.2), layout="constrained")
    pane = plot.subplots()
    for name, times in conversations.items():
        windows = range(0, len(times), _WINDOW)
        pane.plot(
            [start + 1 for start in windows],
            [median(times[start : start + _WINDOW]) for start in windows],
            label=titles[name],
            linewidth=2.4 if name.startswith("dex_agents") else 1.2,
        )
    pane.set_yscale("log")
    pane.set_xlabel("turn of one conversation")
    pane.set_ylabel("ms a turn (logarithmic; less is better)")
    pane.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    pane.spines[["top", "right"]].set_visible(False)
    return plot


def _growth(figures: dict[str, Any], series: dict[str, list[str]]) -> Figure:
    plot = Figure(figsize=(9, 5.4), layout="constrained")
    panes = plot.subplots(2, 3).flat
    for pane, (name, (across, up)) in zip(panes, series.items(), strict=True):
        _draw_growth(pane, figures, name)
        pane.set_xlabel(across)
        pane.set_ylabel(up)
    return plot


def _draw_growth(pane: Axes, figures: dict[str, Any], series: str) -> None:
    found = sorted(
        (int(name.partition("@")[2]), figure)
        for name, figure in figures.items()
        if name.startswith(f"{series}@")
    )
    sizes = [size for size, _ in found]
    pane.fill_between(
        sizes, [each["min"] for _, each in found], [each["max"] for _, each in found], alpha=0.2
    )
    pane.plot(sizes, [each["median"] for _, each in found], marker="o", color=_OURS)
    pane.set_xscale("log")
    pane.set_xticks(sizes, [_short(size) for size in sizes])
    pane.minorticks_off()
    if series in _STEEP:
        pane.set_yscale("log")
    else:
        pane.set_ylim(bottom=0)
    pane.spines[["top", "right"]].set_visible(False)


def _short(size: int) -> str:
    """Return a size as one reads it on an axis."""
    for unit, name in ((1 << 20, "M"), (1000, "k")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def _main() -> None:
    file, folder = map(Path, sys.argv[1:])
    result = json.loads(file.read_text())
    # The same figures draw the same file, and text stays text.
    mpl.rcParams |= {"svg.hashsalt": "dex-agents", "svg.fonttype": "none"}
    plots = {
        "contenders": _contenders(result["figures"], result["contenders"]),
        "conversation": _conversations(result["conversations"], result["contenders"]),
        "growth": _growth(result["figures"], result["growth"]),
    }
    for name, plot in plots.items():
        plot.savefig(folder / f"benchmarks-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    _main()
