"""A million transitions of real sessions, of which every one is checked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dex_agents.testing import simulate as program
from dex_agents.testing.simulation import FAULTS, INVARIANTS, Plan, simulate

PARTS = 50
TRANSITIONS = 20_000
"""In each part; the parts run side by side."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_invariant_holds(part):
    """Whatever goes wrong; a seed that fails is printed with the command that shows it."""
    seed, transitions = part * 1_000_000, 0
    while transitions < TRANSITIONS:
        outcome = simulate(Plan(seed))
        assert outcome.violation is None, program.command(outcome.plan)
        transitions += outcome.transitions
        seed += 1


def test_every_kind_of_fault_strikes():
    """A simulation in which nothing goes wrong would prove nothing."""
    struck = set()
    for seed in range(200):
        struck |= set(simulate(Plan(seed)).faults)
        if struck == set(FAULTS):
            break
    assert struck == set(FAULTS)


def test_a_plan_always_does_the_same():
    """In any process, to the last line of its trace."""
    lines: list[str] = []
    simulate(Plan(11), lines.append)
    here = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    for hash_seed in ("1", "2"):
        trace = run("--seed", "11", hash_seed=hash_seed).stdout
        assert hashlib.sha256(trace).hexdigest() == here


def test_the_command_searches():
    """It says how far it went, and what went wrong on the way without harm."""
    done = run("--transitions", "500", "--jobs", "1", "--first-seed", "3")
    assert done.returncode == 0
    assert b"every invariant held" in done.stdout


def test_the_guide_lists_every_invariant_and_fault():
    """docs/simulation.md holds what the command prints, and each kind of fault in words."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text()
    listed = run("--invariants").stdout.decode()
    assert all(each.name in listed for each in INVARIANTS)
    assert listed in guide
    for kind, words in FAULTS.items():
        assert f"| `{kind}` | {words} |" in guide


def run(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "dex_agents.testing.simulate", *arguments],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parent,
    )
