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
    "stamp": [[ToolRequest("stamp")]],
    "once": [[ToolRequest("once_write")]],
    "loose": [[ToolRequest("unclassified")]],
    "reads": [READS],
    "walk": [READS[:2], [ToolRequest("keyed_write")]],
    "journey": [[ToolRequest("keyed_write")], [ToolRequest("approved_write")]],
    "approval": [[ToolRequest("approved_write")]],
    "approvals": [[ToolRequest("approved_write", {"amount": 10})] * 3],
    "poison": [[ToolRequest("poison")]],
    "chat": [],
}
OPTIONS = AgentSessionOptions(
    tool_policies={
        "read": ToolPolicy(ToolEffect.READ),
        "poison": ToolPolicy(ToolEffect.READ),
        "keyed_write": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "stamp": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "once_write": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
        "unclassified": ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False),
        "approved_write": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
    }
)


def log() -> InvocationLog:
    """Return the log of everything that really ran."""
    return InvocationLog(STATE_DIR / "invocations.jsonl")


def gate(name: str) -> FileGate:
    """Return a gate; one that is there at the start of a test stops whoever comes to it."""
    return FileGate(STATE_DIR, name)


async def stop_at(place: str, session: str) -> None:
    """Wait at a gate if the test has put one up, for every session or for this one."""
    for name in (place, f"{session}-{place}"):
        if (STATE_DIR / f"{name}.closed").exists():
            await gate(name).wait_for_release()


def place_of(turn: AgentTurnContext) -> int:
    """Return how many responses of its script the turn has had."""
    script, asked = SCRIPTS[turn.flow_id.split("-")[0]], 0
    for place, requests in enumerate(script):
        if asked == len(turn.tool_calls):
            return place
        asked += len(requests)
    return len(script)


def respond(turn: AgentTurnContext) -> object:
    """Play the script that the session's ID begins with; the log counts every model call."""
    script, place = SCRIPTS[turn.flow_id.split("-")[0]], place_of(turn)
    log().record("model", session=turn.flow_id, turn=turn.turn_id, attempt=turn.attempt)
    return script[place] if place < len(script) else f"answer to {turn.messages[-1].text}"


class GatedRunner(ScriptedRunner):
    """A scripted runner whose model calls can be stopped at a gate, before and after."""

    async def run_model_step(self, turn: AgentTurnContext) -> object:  # type: ignore[override]
        number = place_of(turn) + 1
        await stop_at(f"before-model-{number}", turn.flow_id)
        outcome = await super().run_model_step(turn)
        await stop_at("model", turn.flow_id)
        await stop_at(f"after-model-{number}", turn.flow_id)
        return outcome


async def act(call: DeferredToolExecution, name: str) -> None:
    """Take effect, with a gate before and after."""
    await stop_at(f"before-{name}", call.flow_id)
    log().record("effect", key=call.idempotency_key, tool=name, attempt=call.attempt)
    await stop_at(f"after-{name}", call.flow_id)


async def write(call: DeferredToolExecution) -> str:
    """Write."""
    await act(call, call.tool_call.tool_name)
    return f"{call.tool_call.tool_name} done"


async def stamp(call: DeferredToolExecution) -> str:
    """Write, and tell the attempts apart."""
    await act(call, "stamp")
    return f"stamped by attempt {call.attempt}"


async def read(call: DeferredToolExecution) -> str:
    """Read; each of the five has gates of its own."""
    number = call.tool_call.arguments["n"]
    await act(call, f"read-{number}")
    return f"read {number}"


async def poison(call: DeferredToolExecution) -> str:
    """Kill the worker that runs it, each time."""
    log().record("effect", key=call.idempotency_key, tool="poison", attempt=call.attempt)
    os.kill(os.getpid(), 9)
    return "never"


TOOLS = {
    "read": read,
    "poison": poison,
    "stamp": stamp,
    **dict.fromkeys(("keyed_write", "once_write", "unclassified", "approved_write"), write),
}


def flow():
    """Return the table that the children serve."""
    return session_table(GatedRunner(respond, TOOLS), flow_type="Gated", options=OPTIONS)
