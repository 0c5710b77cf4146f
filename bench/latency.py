"""How long does a user wait? From the message that is sent to the model that is called.

The busy ones are 64 sessions that are never without a message: each answer
sends the next. They keep the processor and the disk as full as they get. The
thinking ones are the same, but each of their model calls takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

from bench.contenders.work import SESSIONS
from bench.workload import Ends, Runner, Sizes, grow, serving, turn
from dex_agents import AgentSessionClient, AgentTurnContext, AgentTurnOutcome, TurnCompleted

__all__ = ("BusyRunner", "busy", "measure", "percentile")

_QUESTION = grow(2)
"""Is answered by one model call."""
_THINKING_SECONDS = 0.1


class BusyRunner(Runner):
    """Notes when a session's model is called, and keeps busy sessions busy.

    Args:
        thinking_seconds: How long each model call of a busy session takes.
    """

    def __init__(self, thinking_seconds: float = 0.0) -> None:
        super().__init__()
        self._thinking_seconds = thinking_seconds
        self.called: dict[str, float] = {}
        self._next: dict[str, Callable[[], None]] = {}
        self._sending: set[asyncio.Task[bool]] = set()

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        self.called.setdefault(turn.flow_id, time.perf_counter())
        if self._thinking_seconds and turn.flow_id in self._next:
            await asyncio.sleep(self._thinking_seconds)
        outcome = await super().run_model_step(turn)
        if isinstance(outcome, TurnCompleted) and turn.flow_id in self._next:
            self._next[turn.flow_id]()
        return outcome

    def keep_busy(self, client: AgentSessionClient, session_id: str) -> None:
        """Send a session its next message each time that it answers."""

        def send() -> None:
            task = asyncio.create_task(client.send_user_message(session_id, turn()))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

        self._next[session_id] = send
        send()

    async def rest(self) -> None:
        """Let every busy session come to its end."""
        self._next.clear()
        await asyncio.gather(*self._sending)


@asynccontextmanager
async def busy(runner: BusyRunner, client: AgentSessionClient, ends: Ends) -> AsyncIterator[None]:
    """Keep 64 sessions busy while the block runs."""
    names = [f"busy-{i}" for i in range(SESSIONS)]
    for name in names:
        await client.start_session(name)
        await ends.of(name).wait()
        ends.of(name).clear()
    for name in names:
        runner.keep_busy(client, name)
    await asyncio.gather(*(ends.of(name).wait() for name in names))
    yield
    await runner.rest()
    await asyncio.gather(*(client.stop_session(name) for name in names))


def percentile(values: list[float], part: float) -> float:
    """Return the least value that this part of all does not exceed."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return the milliseconds to the first model call: alone, and beside 64 other sessions."""
    alone, among = await _alone_and_among(BusyRunner(), sizes.questions)
    _, thinking = await _alone_and_among(BusyRunner(_THINKING_SECONDS), sizes.questions)
    return {
        "first_call_alone": median(alone),
        "first_call_busy": median(among),
        "first_call_busy_p99": percentile(among, 0.99),
        "first_call_thinking": median(thinking),
        "first_call_thinking_p99": percentile(thinking, 0.99),
    }


async def _alone_and_among(runner: BusyRunner, count: int) -> tuple[list[float], list[float]]:
    ends = Ends()
    async with serving("sqlite", runner=runner, wrap=ends.told_by) as bench:
        await bench.client.start_session("asking")
        await ends.of("asking").wait()
        alone = await _times(bench.client, runner, ends, count)
        async with busy(runner, bench.client, ends):
            among = await _times(bench.client, runner, ends, count)
        await bench.client.stop_session("asking")
    return alone, among


async def _times(
    client: AgentSessionClient, runner: BusyRunner, ends: Ends, count: int
) -> list[float]:
    times = []
    for _ in range(count):
        end = ends.of("asking")
        end.clear()
        runner.called.pop("asking", None)
        begun = time.perf_counter()
        await client.send_user_message("asking", _QUESTION)
        await end.wait()
        times.append((runner.called["asking"] - begun) * 1000)
    return times
