"""What does compiling a table cost on Dex? The session beside the same Steps written by hand.

Both run on the emulator of this package with the SDK's own worker and client,
in this process, so the figures say what the Python side of a Step costs, and
nothing of a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import dex

from bench.handwritten import HandwrittenFlow
from bench.workload import (
    PAYLOAD,
    STEPS_PER_TURN,
    TOOL_CALLS,
    Bench,
    Gate,
    Runner,
    Sizes,
    Stopwatch,
    pause,
    turn,
)
from dex_agents import AgentSessionClient, session_table
from dex_agents_dex import DexBackend
from dex_agents_dex.backend import NoBlobCache
from dex_agents_dex.emulator import DexEmulator

__all__ = ("measure",)

_MOST_TURNS = 40
"""A model call loads every message, so a long session would measure gRPC."""


async def measure(sizes: Sizes) -> dict[str, float]:
    """Return ``dex_compiled_step`` and ``dex_handwritten_step``: milliseconds a Step."""
    turns = min(sizes.turns, _MOST_TURNS)
    steps = turns * STEPS_PER_TURN
    messages = [pause(), *[turn()] * (turns - 1), pause()]
    return {
        "dex_compiled_step": 1000 * await _compiled(messages) / steps,
        "dex_handwritten_step": 1000 * await _handwritten(messages) / steps,
    }


async def _compiled(messages: Sequence[str]) -> float:
    runner = Runner()
    table = session_table(runner, flow_type="Bench")
    async with (
        DexEmulator() as emulator,
        DexBackend(emulator.address) as backend,
        backend.worker([table]) as worker,
    ):
        session = await Bench(backend, worker, runner, AgentSessionClient(backend, table)).paused(
            "one", messages
        )
        with Stopwatch() as watch:
            await session.to_next_pause()
        await session.stop()
    return watch.seconds


async def _handwritten(messages: Sequence[str]) -> float:
    runner = Runner()

    async def model(flow_id: str, text: str) -> list[str]:
        await runner.pass_gate(flow_id, text)
        return ["look"] * TOOL_CALLS

    flow = HandwrittenFlow(model, PAYLOAD)
    gate = runner.gates["one"] = Gate()
    async with DexEmulator() as emulator:
        registry = dex.Registry([flow], allow_async_handlers=True)
        pull = dex.PullWorkerOptions(max_concurrent_tasks=256, idle_streams_per_queue=2)
        options = dex.WorkerOptions(server_address=emulator.address, pull=pull)
        worker = dex.AsyncWorker(registry, NoBlobCache(), options)
        serving = asyncio.create_task(worker.start())
        await worker.wait_pull_registered(10)
        target = dex.ClientOptions(emulator.address, worker.worker_target)
        async with dex.AsyncClient(registry, NoBlobCache(), target) as client:
            await client.start_flow(flow, "one", None)
            for text in messages:
                await client.invoke_rpc(flow.send, "one", text)
            await gate.reached.wait()
            gate.reached.clear()
            with Stopwatch() as watch:
                gate.opened.set()
                await gate.reached.wait()
            await client.stop_flow("one")
        await worker.stop()
        await serving
    return watch.seconds
