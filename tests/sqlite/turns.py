"""One turn with one write, and the wait for its end."""

from __future__ import annotations

from dex_agents import AgentSessionOptions, ToolEffect, ToolPolicy, session_table
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_for_agent_snapshot


def writing_flow(effects, before_return):
    """One turn with one idempotent write; what happens between effect and record is a function."""

    async def write(call):
        effects.append(call.idempotency_key)
        await before_return()
        return "x" * 50_000

    options = AgentSessionOptions(tool_policies={"write": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)})
    runner = ScriptedRunner([[[ToolRequest("write")], "done"]], {"write": write})
    return session_table(runner, flow_type="Writer", options=options)


async def answered(sessions, session_id="a", *, timeout=10.0):  # noqa: ASYNC109 - as in wait_until
    """Return the snapshot once the model has answered "done"."""
    return await wait_for_agent_snapshot(
        sessions,
        session_id,
        lambda s: s if s.messages and s.messages[-1].text == "done" else None,
        description="the end of the turn",
        timeout=timeout,
    )
