"""The flow that the worker children serve. Its tools stop at gates and count their effects."""

from __future__ import annotations

import os
from pathlib import Path

from dex_agents import (
    AgentSessionOptions,
    AgentTurnContext,
    DeferredToolExecution,
    ToolEffect,
    ToolPolicy,
    session_table,
)
from dex_agents.testing import FileGate, InvocationLog, ScriptedRunner, ToolRequest

STATE_DIR = Path(os.environ.get("DEX_TEST_STATE", "."))

READS = [ToolRequest("read", {"n": n}) for n in range(5)]
SCRIPTS = {
    "model": [],
    "keyed": [[ToolRequest("keyed_write")]],
    "once": [[ToolRequest("once_write")]],
    "reads": [READS],
    "approval": [[ToolRequest("approved_write")]],
    "poison": [[ToolRequest("poison")]],
    "chat": [],
}
OPTIONS = AgentSessionOptions(
    tool_policies={
        "read": ToolPolicy(ToolEffect.READ),
        "poison": ToolPolicy(ToolEffect.READ),
        "keyed_write": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "once_write": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
        "approved_write": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
    }
)


def log() -> InvocationLog:
    """Return the log of everything that really ran."""
    return InvocationLog(STATE_DIR / "invocations.jsonl")


def gate(name: str) -> FileGate:
    """Return a gate; one that is there at the start of a test stops whoever comes to it."""
    return FileGate(STATE_DIR, name)


async def stop_at(name: str) -> None:
    """Wait at a gate if the test has put one up."""
    if (STATE_DIR / f"{name}.closed").exists():
        await gate(name).wait_for_release()


def respond(turn: AgentTurnContext) -> object:
    """Play the script that the session's ID begins with; the log counts every model call."""
    script = SCRIPTS[turn.flow_id.split("-")[0]]
    log().record("model", session=turn.flow_id, turn=turn.turn_id, attempt=turn.attempt)
    position = 1 if turn.is_resuming else 0
    if position < len(script) or (script and not turn.is_resuming):
        return script[position]
    return f"answer to {turn.messages[-1].text}"


class GatedRunner(ScriptedRunner):
    """A scripted runner whose model call can be stopped at a gate."""

    async def run_model_step(self, turn: AgentTurnContext) -> object:  # type: ignore[override]
        outcome = await super().run_model_step(turn)
        await stop_at("model")
        return outcome


async def write(call: DeferredToolExecution) -> str:
    """Take effect, with a gate before and after."""
    name = call.tool_call.tool_name
    await stop_at(f"before-{name}")
    log().record("effect", key=call.idempotency_key, tool=name, attempt=call.attempt)
    await stop_at(f"after-{name}")
    return f"{name} done"


async def read(call: DeferredToolExecution) -> str:
    """Read; each of the five has a gate of its own."""
    number = call.tool_call.arguments["n"]
    log().record("effect", key=call.idempotency_key, tool=f"read-{number}", attempt=call.attempt)
    await stop_at(f"read-{number}")
    return f"read {number}"


async def poison(call: DeferredToolExecution) -> str:
    """Kill the worker that runs it, each time."""
    log().record("effect", key=call.idempotency_key, tool="poison", attempt=call.attempt)
    os.kill(os.getpid(), 9)
    return "never"


def flow():
    """Return the table that the children serve."""
    tools = {
        "read": read,
        "poison": poison,
        "keyed_write": write,
        "once_write": write,
        "approved_write": write,
    }
    return session_table(GatedRunner(respond, tools), flow_type="Gated", options=OPTIONS)
