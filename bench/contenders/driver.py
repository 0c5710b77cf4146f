"""Drives a contender: ``python -m bench.contenders.NAME QUESTION``, which prints one line of JSON.

A turn begins when the user's message is handed over and ends when its answer is
stored. The next message of the session follows at once: no contender gets its
messages beforehand.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from bench.contenders.work import SESSIONS, Work

__all__ = ("Serve", "Turn", "drive")

Turn = Callable[[str], Awaitable[Any]]
"""Runs one turn of the session with this name, to its end."""
Serve = Callable[[Path, Work], AbstractAsyncContextManager[Turn]]
"""Opens a contender in a folder."""

_WARM_UP = 3


def drive(serve: Serve) -> None:
    """Answer the question of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("question", choices=("rates", "conversation"))
    parser.add_argument("--turns", type=int, default=200, help="At most so many of a session.")
    parser.add_argument("--seconds", type=float, default=2.0, help="Begin no turn after so many.")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    print(json.dumps(asyncio.run(_answer(serve, arguments))))


async def _answer(serve: Serve, arguments: argparse.Namespace) -> dict[str, Any]:
    ask = _rates if arguments.question == "rates" else _conversation
    work = Work()
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        async with serve(Path(folder), work) as turn:
            for _ in range(_WARM_UP):
                await turn("warm-up")
            found, turns = await ask(turn, arguments.turns, arguments.seconds)
    work.require(turns + _WARM_UP)
    return found


async def _rates(turn: Turn, most: int, seconds: float) -> tuple[dict[str, Any], int]:
    gc.collect()
    begun = time.perf_counter()
    alone = len(await _loop(turn, "alone", most, seconds))
    sequence = alone / (time.perf_counter() - begun)
    names = [f"session-{i}" for i in range(SESSIONS)]
    await asyncio.gather(*map(turn, names))
    gc.collect()
    begun = time.perf_counter()
    together = await asyncio.gather(*(_loop(turn, name, most, seconds) for name in names))
    done = sum(map(len, together))
    parallel = done / (time.perf_counter() - begun)
    return {"sequence": sequence, "parallel": parallel}, alone + SESSIONS + done


async def _conversation(turn: Turn, most: int, seconds: float) -> tuple[dict[str, Any], int]:
    gc.collect()
    milliseconds = await _loop(turn, "long", most, seconds)
    return {"milliseconds": [round(each, 3) for each in milliseconds]}, len(milliseconds)


async def _loop(turn: Turn, name: str, most: int, seconds: float) -> list[float]:
    """Run turns of one session until there are enough; return the milliseconds of each."""
    milliseconds: list[float] = []
    begun = time.perf_counter()
    while len(milliseconds) < most and time.perf_counter() < begun + seconds:
        before = time.perf_counter()
        await turn(name)
        milliseconds.append((time.perf_counter() - before) * 1000)
    return milliseconds
