"""A worker with few slots serves many sessions, also while some wait for a retry."""

from __future__ import annotations

import pytest

from dex_agents.testing import ScriptedRunner
from tests.session.engine import Engine, Gate, texts

pytestmark = pytest.mark.local("a worker of Dex counts its slots by itself")


async def test_a_retry_that_is_not_due_holds_up_nobody(engine: Engine):
    """A message comes while its session waits for a retry, and another one has the only slot."""
    gate = Gate()

    async def script(turn):
        if turn.flow_id == "busy":
            await gate.pass_through()
        elif turn.attempt == 1:
            raise RuntimeError("overloaded")
        return "done"

    sessions = await engine.serve(ScriptedRunner(script), slots=1)
    await sessions.start_session("retries", "Go")
    await engine.settle()
    await sessions.start_session("busy", "Go")
    await engine.settle()
    await sessions.send_user_message("retries", "More")
    await engine.settle()
    gate.open.set()
    await engine.advance(5)
    snapshot = await sessions.get_agent_snapshot("retries")
    assert texts(snapshot) == ["Go", "done", "More", "done"]
    assert texts(await sessions.get_agent_snapshot("busy")) == ["Go", "done"]
