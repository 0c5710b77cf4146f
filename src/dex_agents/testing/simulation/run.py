"""Runs a plan, and makes a plan that fails as small as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from dex_agents.testing.simulation.plan import Plan
from dex_agents.testing.simulation.world import Violation, World

__all__ = ("Outcome", "shrink", "simulate")

_SEEDS = 30


class Outcome(Struct, frozen=True):
    """What came of a run.

    Attributes:
        plan: What was run.
        transitions: How many commits there were.
        faults: How often each kind of fault struck.
        violation: The first invariant that did not hold, or None.
    """

    plan: Plan
    transitions: int
    faults: Counter[str]
    violation: Violation | None


def simulate(plan: Plan, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a plan to its end, or until an invariant does not hold.

    Args:
        plan: The same plan always does the same.
        trace: Told of every commit, tool call and fault, a line each.
    """
    world = World(plan, trace)
    world.run()
    return Outcome(plan, world.transitions, world.faults.counts, world.violation)


def shrink(outcome: Outcome) -> Outcome:
    """Return the outcome of a smaller plan that violates the same invariant, if there is one.

    A smaller plan draws other things, so it is tried with the next few seeds as well.

    Args:
        outcome: Of a run that violated one.
    """
    for smaller in _smaller(outcome.plan):
        for seed in range(smaller.seed, smaller.seed + _SEEDS):
            found = simulate(replace(smaller, seed=seed))
            if _violated(found) == _violated(outcome):
                return shrink(found)
    return outcome


def _violated(outcome: Outcome) -> str | None:
    return outcome.violation.invariant if outcome.violation is not None else None


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.sessions > 1:
        yield replace(plan, sessions=plan.sessions - 1)
    if plan.messages:
        yield replace(plan, messages=plan.messages - 1)
    for kind in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each != kind))
    for fewer in sorted({plan.most_faults // 2, plan.most_faults - 1}):
        if 0 <= fewer < plan.most_faults:
            yield replace(plan, most_faults=fewer)
