"""How many sessions a worker keeps in memory, and what becomes of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dex_agents import AgentSessionClient, session_table
from dex_agents.executor import LocalBackend
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot, wait_until
from dex_agents_memory import MemoryBackend
from dex_agents_sqlite import SqliteBackend


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> LocalBackend:
    return MemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "s.db")


async def test_a_session_that_starts_among_busy_ones_is_kept(backend: LocalBackend):
    """With every older session at work, none may be let go; the newest least of all."""
    gate = asyncio.Event()
    working: set[str] = set()

    async def respond(turn):
        working.add(turn.flow_id)
        await gate.wait()
        return "done"

    flow = session_table(ScriptedRunner(respond), flow_type="Busy")
    names = [f"s{n}" for n in range(12)]
    async with backend, backend.worker([flow], max_resident_flows=3) as worker:
        sessions = AgentSessionClient(backend, flow)
        for name in names:
            await sessions.start_session(name, "work")
        await wait_until("all of them at work", lambda: len(working) == len(names))
        assert all(worker.resident(name) for name in names)
        gate.set()
        for name in names:
            await wait_for_agent_snapshot(
                sessions, name, lambda s: len(s.messages) == 2, description=f"the answer of {name}"
            )


async def test_a_session_that_was_let_go_answers_again(backend: LocalBackend):
    """An idle session leaves memory when others come, and is back with its next message."""
    flow = session_table(ScriptedRunner(lambda turn: f"answer {turn.turn_id}"), flow_type="Idle")
    names = [f"s{n}" for n in range(12)]
    async with backend, backend.worker([flow], max_resident_flows=3) as worker:
        sessions = AgentSessionClient(backend, flow)
        for turn in (1, 2):
            for name in names:
                if turn == 1:
                    await sessions.start_session(name, "first")
                else:
                    await sessions.send_user_message(name, "second")
                await wait_for_agent_snapshot(
                    sessions,
                    name,
                    lambda s, n=turn: len(s.messages) == 2 * n,
                    description=f"answer {turn} of {name}",
                )
        assert sum(worker.resident(name) is not None for name in names) <= 4
