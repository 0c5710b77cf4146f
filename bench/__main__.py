"""Measures everything in one run, in rounds, and writes ``docs/benchmarks.md``; see ``--help``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from bench import (
    bare,
    counts,
    depth,
    dex_steps,
    growth,
    latency,
    open_sessions,
    parallel,
    sequence,
    side_by_side,
    startup,
    telemetry,
)
from bench.document import write
from bench.environment import root
from bench.report import GROWTH, drawn, machine, summarised, with_ratios
from bench.workload import Sizes

QUESTIONS = {
    "bare": bare.measure,
    "sequence": sequence.measure,
    "parallel": parallel.measure,
    "contenders": side_by_side.measure,
    "depth": depth.measure,
    "counts": counts.measure,
    "latency": latency.measure,
    "open": open_sessions.measure,
    "startup": startup.measure,
    "telemetry": telemetry.measure,
    "growth": growth.measure,
    "dex": dex_steps.measure,
}
FILE = click.Path(dir_okay=False, path_type=Path)
_DEFAULTS = Sizes()


@click.command(context_settings={"show_default": True})
@click.option("--rounds", type=click.IntRange(1), default=5, help="How often all is measured.")
@click.option("--turns", type=click.IntRange(1), default=_DEFAULTS.turns, help="How many in one.")
@click.option("--far", type=click.IntRange(1), default=_DEFAULTS.far, help="A late message.")
@click.option("--quick", is_flag=True, help="Small sizes: to see that all of it works.")
@click.option("--only", multiple=True, type=click.Choice(list(QUESTIONS)), help="Not all of it.")
@click.option("--json", "file", type=FILE, help="Write the figures to a file.")
@click.option("--docs/--no-docs", default=True, help="Write docs/benchmarks.md, after all of it.")
def main(
    rounds: int,
    turns: int,
    far: int,
    only: tuple[str, ...],
    file: Path | None,
    *,
    quick: bool,
    docs: bool,
) -> None:
    """Measure how fast sessions run, side by side with what else somebody would pick."""
    console = Console()
    sizes = Sizes.quick(turns=min(turns, 4), far=min(far, 300)) if quick else Sizes(turns, far=far)
    names = [name for name in QUESTIONS if not only or name in only]
    begun = time.time()
    seconds = dict.fromkeys(names, 0.0)
    measured = []
    for number in range(rounds):
        with console.status(f"Round {number + 1} of {rounds}"):
            # Every other round goes backwards, so that a drift of the machine cancels out.
            measured.append(_round(names, sizes, seconds, is_backwards=number % 2 == 1))
    summaries = summarised(measured)
    console.print(drawn(summaries, f"{rounds} rounds of {turns} turns"))
    result: dict[str, Any] = {
        "machine": machine(),
        "rounds": rounds,
        "sizes": sizes,
        "figures": summaries,
    }
    if "contenders" in names:
        with console.status("One long conversation with each"):
            result["conversations"] = asyncio.run(side_by_side.converse(sizes))
        result["versions"] = side_by_side.versions()
        result["contenders"] = {
            name: contender.title for name, contender in side_by_side.CONTENDERS.items()
        }
    if "growth" in names:
        result["growth"] = {name: (figure.title, figure.unit) for name, figure in GROWTH.items()}
    result["minutes"] = (time.time() - begun) / 60
    result["seconds"] = seconds
    encoded = msgspec.json.format(msgspec.json.encode(result)) + b"\n"
    if file is not None:
        file.write_bytes(encoded)
    if docs and not only and not quick:
        write(root / "docs", encoded)


def _round(
    names: list[str], sizes: Sizes, seconds: dict[str, float], *, is_backwards: bool
) -> dict[str, float]:
    """Return one round's figures, and add to the seconds that each question has taken."""
    figures: dict[str, float] = {}
    for name in reversed(names) if is_backwards else names:
        begun = time.perf_counter()
        if name == "contenders":
            figures |= asyncio.run(side_by_side.measure(sizes, reverse=is_backwards))
        else:
            figures |= asyncio.run(QUESTIONS[name](sizes))
        took = time.perf_counter() - begun
        seconds[name] += took
        click.echo(f"{name}: {took:.0f} s", err=True)
    return with_ratios(figures)


if __name__ == "__main__":
    main()
