"""What does a turn or a snapshot cost once a session is long? Milliseconds early and late.

Two sessions, an early and a late one, each in a store of its own, take turns:
one turn here, one turn there. Whatever else the machine does hits both alike.
"""

from __future__ import annotations

import gc
import time
from contextlib import AsyncExitStack
from statistics import median

from bench.workload import (
    BACKENDS,
    MESSAGES_PER_TURN,
    Bench,
    MeasuredSession,
    Sizes,
    grow,
    pause,
    serving,
)

__all__ = ("measure", "messages_around")

_BATCH = 1000
"""How many messages one turn of the preparation adds."""
_SNAPSHOTS = 40
_SHOWN = 200
"""A snapshot has so many messages, so an early one is of a session that has as many."""


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return the median milliseconds of a turn and of a snapshot, ``_near`` and ``_far``."""
    figures = {}
    for name in BACKENDS:
        near, far = await _milliseconds(name, sizes)
        figures[f"{name}_turn_near"] = near
        figures[f"{name}_turn_far"] = far
    figures["snapshot_near"], figures["snapshot_far"] = await _snapshot_milliseconds(sizes)
    return figures


def messages_around(depth: int, turns: int) -> list[str]:
    """Return the user messages of so many turns, of which the middle one is near a message.

    A session that they are sent to pauses before each of the turns and behind the last.
    """
    left = max(depth - turns * MESSAGES_PER_TURN // 2, 0)
    growth = [min(_BATCH, left - done) for done in range(0, left, _BATCH)]
    # A turn adds at least two messages, its question and its answer.
    return [*(grow(count) for count in growth if count > 1), *[pause()] * (turns + 1)]


async def _milliseconds(backend: str, sizes: Sizes) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        near = await _session(await stack.enter_async_context(serving(backend)), sizes.near, sizes)
        far = await _session(await stack.enter_async_context(serving(backend)), sizes.far, sizes)
        gc.collect()
        times: dict[MeasuredSession, list[float]] = {near: [], far: []}
        order = [near, far]
        for _ in range(_turns(sizes)):
            for session in order:
                times[session].append(await _time_turn(session))
            order.reverse()
        await near.stop()
        await far.stop()
    return median(times[near]), median(times[far])


async def _snapshot_milliseconds(sizes: Sizes) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        times: dict[MeasuredSession, list[float]] = {}
        for depth in (_SHOWN, max(sizes.far, _SHOWN)):
            bench = await stack.enter_async_context(serving("sqlite"))
            times[await bench.paused("deep", messages_around(depth, 1))] = []
        gc.collect()
        order = list(times)
        for _ in range(_SNAPSHOTS):
            for session in order:
                begun = time.perf_counter()
                await session.snapshot()
                times[session].append((time.perf_counter() - begun) * 1000)
            order.reverse()
        for session in order:
            await session.to_next_pause()
            await session.stop()
    near, far = map(median, times.values())
    return near, far


async def _session(bench: Bench, depth: int, sizes: Sizes) -> MeasuredSession:
    return await bench.paused("deep", messages_around(depth, _turns(sizes)))


def _turns(sizes: Sizes) -> int:
    return max(sizes.turns // 2, 1)


async def _time_turn(session: MeasuredSession) -> float:
    begun = time.perf_counter()
    await session.to_next_pause()
    return (time.perf_counter() - begun) * 1000
