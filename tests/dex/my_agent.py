"""The agent of the kit's example: it refunds an order once a human has approved it."""

from __future__ import annotations

import os
from pathlib import Path

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    AgentTurnContext,
    DeferredToolExecution,
    ToolEffect,
    ToolPolicy,
)
from dex_agents.testing import FileGate, InvocationLog, ScriptedRunner, ToolRequest

STATE_DIR = Path(os.environ.get("MY_STATE_DIR", "."))


def refund(call: DeferredToolExecution) -> str:
    """Refund the order, and write down that it was done."""
    InvocationLog(STATE_DIR / "calls.jsonl").record("refund", key=call.idempotency_key)
    return "refunded"


async def look_up(call: DeferredToolExecution) -> str:
    """Look something up; each of the two waits at a gate of its own."""
    name = call.tool_call.arguments["name"]
    await FileGate(STATE_DIR, name).wait_for_release()
    return f"{name} is fine"


def answer(turn: AgentTurnContext) -> object:
    """Answer as the user's message asks; behind the tools, say that it is done."""
    wants_refund = turn.messages[-1].text.startswith("refund")
    if turn.is_resuming:
        return "The order is refunded." if wants_refund else "Both are fine."
    if wants_refund:
        return [ToolRequest("refund", {"order": 7})]
    return [ToolRequest("look_up", {"name": name}) for name in ("stock", "price")]


def build_flow() -> AgentSessionFlow:
    """Return the flow that worker and test build alike."""
    runner = ScriptedRunner(answer, {"refund": refund, "look_up": look_up})
    options = AgentSessionOptions(tool_policies={"look_up": ToolPolicy(ToolEffect.READ)})
    return AgentSessionFlow(runner, flow_type="MyAgent", options=options)
