"""The kit's example, character for character where it names our API, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    AgentTestStack,
    FileGate,
    InvocationLog,
    wait_for_agent_snapshot,
)
from tests.dex.my_agent import build_flow

PACKAGE_DIR = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(90)


async def test_write_survives_a_worker_kill(tmp_path: Path, mode) -> None:
    """An approval that waits outlives its worker; the approved write runs once."""
    flow = build_flow()
    async with AgentTestStack(
        tmp_path,
        [flow],
        "tests.dex.my_worker",
        worker_cwd=PACKAGE_DIR,
        worker_env={"MY_STATE_DIR": str(tmp_path)},
        mode=mode,
    ) as stack:
        sessions = stack.sessions(flow)
        worker = await stack.start_worker()
        await sessions.start_session("session-1", "refund order 7")
        interrupt = await wait_for_agent_snapshot(
            sessions,
            "session-1",
            lambda snapshot: next(iter(snapshot.pending_interrupts), None),
            description="a pending approval",
        )
        worker.kill()  # SIGKILL while the session waits
        await stack.start_worker()  # replacement Worker
        assert await sessions.resolve_interrupt("session-1", interrupt.interrupt_id, approved=True)
        await wait_for_agent_snapshot(
            sessions,
            "session-1",
            lambda snapshot: snapshot.messages[-1].text == "The order is refunded.",
            description="the end of the turn",
        )
        history = await stack.read_step_history("session-1")
        executed = [
            entry.step_type for entry in history if entry.event_type == EXECUTE_COMPLETED_EVENT
        ]
    assert executed == [
        "StartAgentSession",
        "RunModel",
        "AwaitToolApproval",
        "CallSingleAttemptTool",
        "ResumeTurn",
        "RunModel",
    ]
    tool = next(entry for entry in history if entry.step_type == "CallSingleAttemptTool")
    assert (tool.step_execution_id, tool.final_attempt) == ("CallSingleAttemptTool-1", 1)
    calls = InvocationLog(tmp_path / "calls.jsonl").entries("refund")
    assert [call["key"] for call in calls] == ["session-1/turn-1/call-1"]


async def test_two_tools_run_at_once(tmp_path: Path, mode) -> None:
    """Two gates are reached while neither is released: two tool Steps run in parallel."""
    table = build_flow().table
    async with AgentTestStack(
        tmp_path,
        [table],
        "tests.dex.my_worker",
        worker_cwd=PACKAGE_DIR,
        worker_env={"MY_STATE_DIR": str(tmp_path)},
        mode=mode,
    ) as stack:
        sessions = stack.sessions(table)
        await stack.start_worker()
        await sessions.start_session("session-1", "look up stock and price")
        gates = [FileGate(tmp_path, name) for name in ("stock", "price")]
        for gate in gates:
            await gate.wait_until_reached()
        for gate in gates:
            gate.release()
        await wait_for_agent_snapshot(
            sessions,
            "session-1",
            lambda snapshot: snapshot.messages[-1].text == "Both are fine.",
            description="the end of the turn",
        )
