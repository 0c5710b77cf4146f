"""Measures everything in one run, in rounds, and prints a table: ``python -m bench --help``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench import bare, counts, depth, dex_steps, parallel, sequence
from bench.report import drawn, machine, summarised, with_ratios
from bench.workload import Sizes

QUESTIONS = {
    "bare": bare.measure,
    "sequence": sequence.measure,
    "parallel": parallel.measure,
    "depth": depth.measure,
    "counts": counts.measure,
    "dex": dex_steps.measure,
}

_DEFAULTS = Sizes()


@click.command(context_settings={"show_default": True})
@click.option("--rounds", type=click.IntRange(1), default=5, help="How often all is measured.")
@click.option("--turns", type=click.IntRange(1), default=_DEFAULTS.turns, help="How many in one.")
@click.option("--far", type=click.IntRange(1), default=_DEFAULTS.far, help="A late message.")
@click.option("--only", multiple=True, type=click.Choice(list(QUESTIONS)), help="Not all of it.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write to.")
def main(rounds: int, turns: int, far: int, only: tuple[str, ...], file: Path | None) -> None:
    """Measure how fast sessions run, side by side with what the disk can do."""
    console = Console()
    sizes = Sizes(turns=turns, far=far)
    names = [name for name in QUESTIONS if not only or name in only]
    measured = []
    for number in range(rounds):
        with console.status(f"Round {number + 1} of {rounds}"):
            # Every other round goes backwards, so that a drift of the machine cancels out.
            order = names if number % 2 == 0 else names[::-1]
            measured.append(asyncio.run(_round(order, sizes)))
    summaries = summarised(measured)
    console.print(drawn(summaries, f"{rounds} rounds of {turns} turns"))
    if file is not None:
        result = {"machine": machine(), "rounds": rounds, "sizes": sizes, "figures": summaries}
        file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


async def _round(names: list[str], sizes: Sizes) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name in names:
        figures |= await QUESTIONS[name](sizes)
    return with_ratios(figures)


if __name__ == "__main__":
    main()
