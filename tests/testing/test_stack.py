"""The in-memory stack waits for runners that really wait."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from dex_agents import ToolEffect, session_table
from dex_agents.testing import AgentMemoryStack, ScriptedRunner, StillRunningError, ToolRequest


def flow_of(tool):
    script = [[[ToolRequest("tool", effect=ToolEffect.READ)], "done"]]
    return session_table(ScriptedRunner(script, {"tool": tool}), flow_type="Agent")


async def sleeping(_):
    await asyncio.sleep(0.05)
    return "slept"


async def threaded(_):
    return await asyncio.to_thread(lambda: time.sleep(0.05) or "threaded")


@pytest.mark.parametrize("tool", [sleeping, threaded])
async def test_settling_waits_for_what_really_waits(tool):
    """A sleep and a thread end before settle returns."""
    flow = flow_of(tool)
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "go")
        await stack.settle()
        snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.messages[-1].text == "done"


async def test_what_hangs_is_named():
    """settle says which Step hangs; advance lets time pass all the same, up to its timeout."""
    never = asyncio.Event()

    async def hang(_):
        await never.wait()

    flow = flow_of(hang)
    async with AgentMemoryStack([flow], patience=0.05) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "go")
        with pytest.raises(StillRunningError, match="s: CallTool-1, attempt 1"):
            await stack.settle()
        begun = time.monotonic()
        await stack.advance(timedelta(hours=7))  # three attempts of two hours each
        assert time.monotonic() - begun < 1.0
        snapshot = await sessions.get_agent_snapshot("s")
    assert "timeout" in (snapshot.messages[2].text or "")
    assert snapshot.messages[-1].text == "done"
