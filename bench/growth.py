"""What does more of something cost? One series for each thing that there can be more of.

A figure is named ``<series>@<how many>``, and each is a cost: where a series is
flat, more of it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial

from bench import processes
from bench.contenders.work import SESSIONS
from bench.depth import messages_around
from bench.workload import (
    PAYLOAD,
    STEPS_PER_TURN,
    Bench,
    Runner,
    Sizes,
    Stopwatch,
    pause,
    serving,
    turn,
)
from dex_agents.testing import wait_until

__all__ = ("measure",)

_MESSAGES = (100, 1_000, 3_000, 10_000)
_SESSIONS = (1, 4, 16, 64, 256)
_FOLLOWED = (1, 4, 16, 64)
_CALLS = (1, 4, 16, 64, 256)
_PAYLOADS = (1_024, 10_240, 102_400, 1_048_576, 10_485_760)
_WORKERS = (1, 2, 4)
_TURNS = 10
_PAYLOAD_BYTES = 10_485_760
"""How much the turns of one size add up to, so that large ones are few."""


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return the cost of each size in each series."""
    series: dict[str, tuple[tuple[int, ...], int, Callable[[int], Awaitable[float]]]] = {
        "messages": (_MESSAGES, sizes.far, _turn_at),
        "sessions": (_SESSIONS, sizes.most_sessions, partial(_step_among, sizes)),
        "followed": (_FOLLOWED, sizes.most_sessions, partial(_step_followed, sizes)),
        "calls": (_CALLS, sizes.most_calls, _turn_with_calls),
        "payload": (_PAYLOADS, sizes.most_payload, _turn_with_payload),
        "workers": (_WORKERS, sizes.most_workers, partial(_step_of_workers, sizes)),
    }
    return {
        f"{name}@{size}": await cost(size)
        for name, (counts, most, cost) in series.items()
        for size in counts
        if size <= most
    }


async def _turn_at(message: int) -> float:
    """Return the milliseconds of a turn around a message."""
    async with serving("sqlite") as bench:
        return await _turn(bench, messages_around(message, _TURNS), _TURNS)


async def _turn_with_calls(count: int) -> float:
    """Return the milliseconds of a turn for each of its parallel tool calls."""
    async with serving("sqlite", runner=Runner(tool_calls=count)) as bench:
        turns = max(_TURNS // 4, 2)
        return await _turn(bench, [pause()] * (turns + 1), turns) / count


async def _turn_with_payload(size: int) -> float:
    """Return the milliseconds of a turn for each KB of its messages and tool results."""
    payload = PAYLOAD * (size // len(PAYLOAD))
    turns = min(max(_PAYLOAD_BYTES // size, 1), _TURNS)
    async with serving("sqlite", runner=Runner(payload=payload)) as bench:
        return await _turn(bench, [pause(payload)] * (turns + 1), turns) * 1024 / size


async def _turn(bench: Bench, messages: list[str], turns: int) -> float:
    session = await bench.paused("growing", messages)
    with Stopwatch() as watch:
        for _ in range(turns):
            await session.to_next_pause()
    await session.stop()
    return 1000 * watch.seconds / turns


async def _step_among(sizes: Sizes, count: int) -> float:
    """Return the microseconds of a Step, all of so many sessions taken together."""
    async with serving("sqlite") as bench:
        return await _step(bench, count, sizes.turns_together)


async def _step_followed(sizes: Sizes, count: int) -> float:
    """Return the same when each session's events are read as they come."""
    async with serving("sqlite") as bench, _followed(bench, count):
        return await _step(bench, count, sizes.turns_together)


async def _step(bench: Bench, count: int, turns_together: int) -> float:
    turns = max(turns_together // count, 4)
    messages = [pause(), *[turn()] * (turns - 1), pause()]
    sessions = await asyncio.gather(*(bench.paused(f"session-{i}", messages) for i in range(count)))
    with Stopwatch() as watch:
        await asyncio.gather(*(session.to_next_pause() for session in sessions))
    await asyncio.gather(*(session.stop() for session in sessions))
    return 1e6 * watch.seconds / (count * turns * STEPS_PER_TURN)


@asynccontextmanager
async def _followed(bench: Bench, count: int) -> AsyncIterator[None]:
    """Follow sessions that are about to be started."""

    async def is_started(session_id: str) -> bool:
        return any(each.flow_id == session_id for each in await bench.backend.list_flows())

    async def follow(session_id: str) -> None:
        await wait_until("the session", partial(is_started, session_id))
        async with aclosing(bench.client.follow_events(session_id)) as events:
            async for _ in events:
                pass

    tasks = [asyncio.create_task(follow(f"session-{i}")) for i in range(count)]
    yield
    await asyncio.gather(*tasks)


async def _step_of_workers(sizes: Sizes, count: int) -> float:
    """Return the microseconds of a Step of 64 sessions, with so many processes at work."""
    return 1e6 / await processes.steps_per_second(count, max(sizes.turns_together // SESSIONS, 2))
