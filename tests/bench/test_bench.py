"""The bench runs from end to end, and writes what its README promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import json

from bench import side_by_side
from bench.__main__ import QUESTIONS, main
from bench.contenders.work import Work
from bench.depth import messages_around
from bench.document import blocks, filled
from bench.environment import root
from bench.report import FIGURES, GROWTH, RATIOS, summarised, with_ratios
from bench.side_by_side import CONTENDERS, Contender
from bench.workload import Sizes

OURS = [name for name in QUESTIONS if name != "contenders"]
"""What needs nothing but our own environment."""


def _run(path: Path, *arguments: str) -> dict:
    command = ["--quick", "--json", str(path), *arguments]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.decode(path.read_bytes())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("question", OURS)
def test_a_question_is_answered(tmp_path, question):
    """Each question alone gives figures that have a place in the report, and a value."""
    result = _run(tmp_path / "bench.json", "--rounds", "1", "--only", question)
    assert set(result) >= {"machine", "rounds", "sizes", "figures", "minutes"}
    assert set(result["machine"]) >= {"measured_at", "platform", "cpus", "python", "sqlite"}
    assert result["figures"]
    for name, figure in result["figures"].items():
        assert name in FIGURES or name.partition("@")[0] in GROWTH
        assert set(figure) == {"unit", "median", "min", "max", "rounds"}, name
        assert 0 < figure["min"] == figure["median"] == figure["max"], name


def test_every_round_is_kept(tmp_path):
    """A figure has its median and its spread, and the value of each round."""
    result = _run(tmp_path / "bench.json", "--rounds", "3", "--only", "bare")
    assert list(result["figures"]) == ["bare_commits", "bare_cpu"]
    figure = result["figures"]["bare_commits"]
    assert sorted(figure["rounds"]) == [figure["min"], figure["median"], figure["max"]]


@pytest.mark.timeout(300)
async def test_a_broken_contender_spoils_nothing(monkeypatch, capfd):
    """A contender that fails is named on standard error, and the others are measured."""
    found = {"missing": Contender("nowhere"), "dex_agents_memory": Contender("memory")}
    monkeypatch.setattr(side_by_side, "CONTENDERS", found)
    figures = await side_by_side.measure(Sizes.quick(turns=2, far=300))
    assert set(figures) == {"dex_agents_memory_alone", "dex_agents_memory_together"}
    assert all(value > 0 for value in figures.values())
    assert "missing failed" in capfd.readouterr().err


def test_work_that_was_not_done_is_refused():
    """A contender that left out a tool call does not count as fast."""
    work = Work()
    for at in work.ask():
        work.look(at)
    work.answer()
    work.require(1)
    with pytest.raises(RuntimeError, match="2 turns"):
        work.require(2)


def _result() -> dict:
    """Return a result with every figure in it."""
    sized = [f"{name}@{size}" for name in GROWTH for size in (1, 10)]
    names = [name for name in FIGURES if name not in RATIOS]
    measured = with_ratios(dict.fromkeys([*names, *sized], 2.0))
    return {
        "machine": {
            "measured_at": "2026-01-01",
            "platform": "Linux",
            "processor": "one",
            "cpus": 2,
            "load_average": 0.5,
            "python": "3.11",
            "sqlite": "3.50",
        },
        "rounds": 1,
        "minutes": 1.0,
        "versions": {"dbos": "1"},
        "conversations": {name: [1.0, 2.0, 3.0] for name in CONTENDERS},
        "figures": json.decode(json.encode(summarised([measured]))),
    }


def test_the_page_has_a_place_for_everything():
    """Every block has its marks in docs/benchmarks.md, and what is around them stays."""
    page = (root / "docs" / "benchmarks.md").read_text()
    found = blocks(_result())
    written = filled(page, found)
    assert all(block in written for block in found.values())
    assert filled(written, found) == written
    assert filled(written, dict.fromkeys(found, "")) == filled(page, dict.fromkeys(found, ""))
    assert written.splitlines()[0] == page.splitlines()[0]


def test_a_page_without_a_mark_is_refused():
    """A block that has no place is an error, not lost."""
    with pytest.raises(ValueError, match="begin machine"):
        filled("no marks", {"machine": "text"})


def test_an_aim_is_met_or_missed():
    """The verdict follows the median, whichever way the aim points."""
    targets = blocks(_result())["targets"].splitlines()
    verdicts = {line.split(" | ")[0].strip("| "): line for line in targets}
    assert "**missed**" in verdicts["SQLite, 64 sessions / bare"]  # 1.0, of 1.8
    assert "| met |" in verdicts["SQLite, late / early turn"]  # 1.0, of 1.1
    assert FIGURES["together_to_dbos"].is_met_by(25)
    assert not FIGURES["together_to_dbos"].is_met_by(24.9)
    assert FIGURES["open_ready"].is_met_by(3)
    assert not FIGURES["open_ready"].is_met_by(3.1)


def test_everything_compared_is_locked_with_hashes():
    """The contenders' packages are in the lock, with hashes and without an index's address."""
    lock = (root / "bench" / "requirements.lock").read_text()
    for contender in CONTENDERS.values():
        for package in contender.packages:
            assert f"\n{package}==" in f"\n{lock}"
    assert "--hash=sha256:" in lock
    assert "://" not in lock


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
