"""The bench runs from end to end, and writes what its README promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import json

from bench.__main__ import main
from bench.depth import messages_around
from bench.report import FIGURES, RATIOS, summarised, with_ratios


def _run(path: Path, *arguments: str) -> dict:
    tiny = ["--turns", "2", "--far", "300", "--json", str(path)]
    result = CliRunner().invoke(main, [*tiny, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.decode(path.read_bytes())


def test_one_run_measures_everything(tmp_path):
    """One run reports every figure and ratio, each with its median, spread and rounds."""
    result = _run(tmp_path / "bench.json", "--rounds", "2")
    assert set(result) == {"machine", "rounds", "sizes", "figures"}
    assert set(result["machine"]) >= {"measured_at", "platform", "cpus", "python", "sqlite"}
    assert list(result["figures"]) == list(FIGURES)
    for name, figure in result["figures"].items():
        assert set(figure) == {"unit", "median", "min", "max", "rounds"}, name
        assert len(figure["rounds"]) == 2, name
        assert 0 < figure["min"] <= figure["median"] <= figure["max"], name


def test_only_what_was_asked_for(tmp_path):
    """``--only`` measures one question, and leaves out ratios that need another."""
    result = _run(tmp_path / "bench.json", "--rounds", "1", "--only", "bare")
    assert list(result["figures"]) == ["bare_commits"]


def test_ratios_stay_within_a_round():
    """A ratio compares two figures of one round, never of two."""
    rounds = [
        with_ratios({"sqlite_sequence": 10.0, "bare_commits": 20.0}),
        with_ratios({"sqlite_sequence": 100.0, "bare_commits": 400.0}),
    ]
    ratio = summarised(rounds)["sqlite_sequence_to_bare"]
    assert (ratio.median, ratio.rounds) == (0.375, [0.5, 0.25])
    assert set(RATIOS) <= set(FIGURES)


@pytest.mark.parametrize(("depth", "turns"), [(100, 100), (300, 1), (2001, 1), (10_000, 100)])
def test_measured_turns_lie_around_the_depth(depth, turns):
    """Half the measured turns come before the message that they are about, half after it."""
    messages = messages_around(depth, turns)
    growth = [int(text.split()[1]) + 1 for text in messages if text.startswith("grow ")]
    assert len(messages) - len(growth) == turns + 1
    assert abs(sum(growth) + turns - depth) <= 1
