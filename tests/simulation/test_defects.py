"""The simulation can fail: it finds each of the faults that somebody could have made."""

from __future__ import annotations

import pytest

from dex_agents.testing.simulate import command
from dex_agents.testing.simulation import INVARIANTS, Plan, shrink, simulate, world
from tests.simulation.defects import DEFECTS

RUNS = 400
"""Within so many runs every defect is found; most of them take less than ten."""


@pytest.fixture
def defective(monkeypatch):
    """Put a defect into the code that the next runs use."""
    world.simulated_table.cache_clear()  # the rows hold handlers from before
    yield lambda name: DEFECTS[name][1](monkeypatch)
    world.simulated_table.cache_clear()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(defective, name):
    """The invariant that it breaks says so."""
    defective(name)
    found = set()
    for seed in range(RUNS):
        violation = simulate(Plan(seed)).violation
        if violation is not None:
            found.add(violation.invariant)
            if violation.invariant == DEFECTS[name][0]:
                return
    pytest.fail(f"{RUNS} runs did not find {name}, but {found or 'nothing'}")


def test_every_invariant_has_a_defect():
    """None of them could hold by never being looked at."""
    assert {invariant for invariant, _ in DEFECTS.values()} == {each.name for each in INVARIANTS}


def test_a_failing_run_is_made_small(defective):
    """What is left still breaks the same invariant, and a command runs it again."""
    defective("usage_counts_the_attempts")
    outcomes = (simulate(Plan(seed)) for seed in range(RUNS))
    outcome = next(each for each in outcomes if each.violation is not None)
    least = shrink(outcome)
    assert least.violation.invariant == outcome.violation.invariant == "usage_adds_up"
    assert (least.plan.sessions, least.plan.faults, least.plan.most_faults) == (1, (), 0)
    assert command(least.plan).startswith(
        f"python -m dex_agents.testing.simulate --seed {least.plan.seed}"
    )
    assert simulate(least.plan) == least
