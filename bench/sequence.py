"""How fast is one session? Steps per second, one turn after the other."""

from __future__ import annotations

from bench.workload import BACKENDS, STEPS_PER_TURN, Sizes, Stopwatch, pause, serving, turn

__all__ = ("measure",)


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``<backend>_sequence``, Steps per second, and ``_step_cpu``, microseconds of one."""
    figures = {}
    for name in BACKENDS:
        watch = await _watched(name, sizes.turns)
        steps = sizes.turns * STEPS_PER_TURN
        figures[f"{name}_sequence"] = steps / watch.seconds
        figures[f"{name}_step_cpu"] = 1e6 * watch.cpu_seconds / steps
    return figures


async def _watched(backend: str, turns: int) -> Stopwatch:
    async with serving(backend) as bench:
        messages = [pause(), *[turn()] * (turns - 1), pause()]
        session = await bench.paused("one", messages)
        with Stopwatch() as watch:
            await session.to_next_pause()
        await session.stop()
    return watch
