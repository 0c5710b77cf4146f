"""``python -m dex_agents.testing.simulate``: searches for what breaks a session.

Exits with 0 when every invariant held, and with 1 when one did not: then it
prints the smallest plan that breaks it, and the command that runs it again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from msgspec.structs import replace

from dex_agents.testing.simulation import FAULTS, INVARIANTS, Outcome, Plan, shrink, simulate

_RUNS_AT_ONCE = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.invariants:
        _print("| invariant | what it says |\n| --- | --- |")
        for invariant in INVARIANTS:
            _print(f"| `{invariant.name}` | {invariant.words} |")
        return 0
    if options.seed is not None:
        return _repeat(_plan(options, options.seed))
    return _search(options)


def _repeat(plan: Plan) -> int:
    """Run one plan, and print what happens in it."""
    outcome = simulate(plan, _print)
    return 1 if outcome.violation is not None else 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _search(options: argparse.Namespace) -> int:
    """Run plan after plan until there were enough transitions, or one violates an invariant."""
    begun = time.monotonic()
    runs = transitions = 0
    faults: Counter[str] = Counter()
    for outcome in _outcomes(options):
        runs += 1
        transitions += outcome.transitions
        faults += outcome.faults
        if outcome.violation is not None:
            _report(outcome)
            return 1
        if transitions >= options.transitions:
            break
    seconds = time.monotonic() - begun
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    sys.stdout.write(
        f"{transitions} transitions in {runs} runs, {seconds:.0f} s: every invariant held.\n"
        f"Faults: {struck or 'none'}.\n"
    )
    return 0


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """Yield outcomes as they come; those of the lowest seeds come first, more or less."""
    starts = itertools.count(options.first_seed, _RUNS_AT_ONCE)
    with ProcessPoolExecutor(options.jobs) as pool:
        try:
            running: set[Future[list[Outcome]]] = set()
            while True:
                while len(running) < options.jobs + 1:
                    running.add(pool.submit(_some, _plan(options, next(starts))))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    yield from each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _some(first: Plan) -> list[Outcome]:
    return [simulate(replace(first, seed=first.seed + n)) for n in range(_RUNS_AT_ONCE)]


def _report(outcome: Outcome) -> None:
    assert outcome.violation is not None  # or there would be nothing to report
    least = shrink(outcome)
    violation = least.violation or outcome.violation
    sys.stdout.write(
        f"Violated after {violation.transition} transitions: {violation.invariant}\n"
        f"  {violation.words}\n"
        f"  {violation.detail}\n"
        f"See it happen: {command(least.plan)}\n"
    )


def command(plan: Plan) -> str:
    """Return the command that runs a plan again."""
    words = [
        "python -m dex_agents.testing.simulate",
        f"--seed {plan.seed}",
        f"--sessions {plan.sessions}",
        f"--messages {plan.messages}",
        f"--faults {plan.most_faults}",
        *(f"--without {kind}" for kind in FAULTS if kind not in plan.faults),
    ]
    return " ".join(words)


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    kinds = tuple(kind for kind in FAULTS if kind not in options.without)
    return Plan(seed, options.sessions, options.messages, kinds, options.faults)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dex_agents.testing.simulate",
        description="Runs agent sessions in a simulated world where everything goes wrong.",
        epilog="faults: " + "; ".join(f"{kind}: {words}" for kind, words in FAULTS.items()),
    )
    default = Plan(0)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="stop after so many")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="run this one plan, and print what happens")
    parser.add_argument("--sessions", type=int, default=default.sessions, help="in each run")
    parser.add_argument("--messages", type=int, default=default.messages, help="in each session")
    parser.add_argument("--faults", type=int, default=default.most_faults, help="in each run")
    parser.add_argument("--without", action="append", default=[], choices=FAULTS, metavar="FAULT")
    parser.add_argument("--invariants", action="store_true", help="print them as a table, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
