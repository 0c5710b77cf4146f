"""How fast is one session? Steps per second, one turn after the other."""

from __future__ import annotations

from bench.workload import BACKENDS, STEPS_PER_TURN, Sizes, Stopwatch, pause, serving, turn

__all__ = ("measure",)


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``<backend>_sequence``: Steps per second of one session."""
    return {f"{name}_sequence": await _steps_per_second(name, sizes.turns) for name in BACKENDS}


async def _steps_per_second(backend: str, turns: int) -> float:
    async with serving(backend) as bench:
        messages = [pause(), *[turn()] * (turns - 1), pause()]
        session = await bench.paused("one", messages)
        with Stopwatch() as watch:
            await session.to_next_pause()
        await session.stop()
    return turns * STEPS_PER_TURN / watch.seconds
