"""The in-memory stack waits for runners that really wait."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from dex_agents import ToolEffect, session_table
from dex_agents.executor import SystemClock
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


async def test_patience_begins_anew_with_every_handler():
    """A turn of several slow calls settles, though all of them together outlast the patience."""
    script = [[*([ToolRequest("tool", effect=ToolEffect.READ)] for _ in range(6)), "done"]]
    flow = session_table(ScriptedRunner(script, {"tool": sleeping}), flow_type="Agent")
    async with AgentMemoryStack([flow], patience=0.2) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "go")
        await stack.settle()
        snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.messages[-1].text == "done"


async def test_a_handler_that_hangs_is_kept_alive_and_waited_for_again():
    """Virtual time does not take it for dead; once it goes on, settle is patient anew."""
    goes_on = asyncio.Event()

    async def hang_then_work(call):
        await goes_on.wait()
        return await threaded(call)

    flow = flow_of(hang_then_work)
    async with AgentMemoryStack([flow], patience=0.2) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "go")
        await stack.advance(timedelta(hours=1))  # far beyond the heartbeat timeout
        goes_on.set()
        await stack.settle()
        snapshot = await sessions.get_agent_snapshot("s")
        history = await sessions.read_history("s")
    assert snapshot.messages[-1].text == "done"
    calls = [entry for entry in history if entry.step_type == "CallTool"]
    assert [entry.final_attempt for entry in calls] == [1]


async def test_a_clock_that_cannot_be_advanced_is_refused():
    """On the system's clock a test waits with wait_until."""
    async with AgentMemoryStack([flow_of(sleeping)], clock=SystemClock()) as stack:
        with pytest.raises(TypeError, match="SystemClock cannot be advanced"):
            await stack.settle()


async def test_what_hangs_is_named():
    """settle says which Step hangs; advance lets time pass all the same, up to its timeout."""
    never = asyncio.Event()

    async def hang(_):
        await never.wait()

    flow = flow_of(hang)
    async with AgentMemoryStack([flow], patience=0.05) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "go")
        message = r"s: CallTool-1, attempt 1 \(for 0\.[1-9] s\)"
        with pytest.raises(StillRunningError, match=message) as caught:
            await stack.settle()
        assert [*caught.value.running] == ["s: CallTool-1, attempt 1"]
        begun = time.monotonic()
        await stack.advance(timedelta(hours=7))  # three attempts of two hours each
        assert time.monotonic() - begun < 1.0
        snapshot = await sessions.get_agent_snapshot("s")
    assert "timeout" in (snapshot.messages[2].text or "")
    assert snapshot.messages[-1].text == "done"
