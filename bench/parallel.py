"""How fast are 64 sessions at once? Steps per second of all of them together."""

from __future__ import annotations

import asyncio

from bench.workload import BACKENDS, STEPS_PER_TURN, Sizes, Stopwatch, pause, serving, turn

__all__ = ("SESSIONS", "measure")

SESSIONS = 64
_SHARE = 10
"""One session of many runs the tenth part of what one session alone runs."""


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``<backend>_parallel``: Steps per second of 64 sessions together."""
    turns = max(sizes.turns // _SHARE, 1)
    return {f"{name}_parallel": await _steps_per_second(name, turns) for name in BACKENDS}


async def _steps_per_second(backend: str, turns: int) -> float:
    messages = [pause(), *[turn()] * (turns - 1), pause()]
    async with serving(backend) as bench:
        sessions = await asyncio.gather(
            *(bench.paused(f"session-{i}", messages) for i in range(SESSIONS))
        )
        with Stopwatch() as watch:
            await asyncio.gather(*(session.to_next_pause() for session in sessions))
        await asyncio.gather(*(session.stop() for session in sessions))
    return SESSIONS * turns * STEPS_PER_TURN / watch.seconds
