"""An agent whose tools remember what they did, and what became of its sessions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dex_agents import (
    AgentSessionClient,
    AgentStatus,
    AgentTurnContext,
    DeferredToolExecution,
    ToolEffect,
    ToolPolicy,
)
from dex_agents.testing import ScriptedRunner, wait_until
from tests.session.engine import ASK, IDEMPOTENT, ONCE, READ, Engine, events_of, payloads

POLICIES = {
    "look": READ,
    "put": IDEMPOTENT,
    "pay": ONCE,
    "act": ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False),
    "ask": ASK,
    "ask_look": ToolPolicy(ToolEffect.READ, requires_approval=True),
    "ask_put": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
    "ask_act": ToolPolicy(ToolEffect.UNCLASSIFIED),
}
"""Every effect, with and without approval."""

UNKNOWN = "It is unknown whether the tool call took effect"


class Agent(ScriptedRunner):
    """Plays one script in every turn, and remembers each model call and each run of a tool.

    A tool that is not given returns its call's ID.
    """

    def __init__(self, script: list[Any], **tools: Any) -> None:
        self.script = script
        self.model_calls: list[str] = []
        self.calls: list[DeferredToolExecution] = []
        super().__init__(self._respond, {name: self._counted(tools.get(name)) for name in POLICIES})

    async def _respond(self, turn: AgentTurnContext) -> Any:
        self.model_calls.append(turn.flow_id)
        place, asked = 0, 0
        while asked < len(turn.tool_calls):
            asked += len(self.script[place])
            place += 1
        await self.answering(turn, place)
        return self.script[place]

    async def answering(self, turn: AgentTurnContext, place: int) -> None:
        """Do what a test has in mind for a model call, before it answers."""

    def _counted(self, tool: Any) -> Any:
        async def run(call: DeferredToolExecution) -> Any:
            self.calls.append(call)
            return call.tool_call.tool_call_id if tool is None else await tool(call)

        return run

    def runs(self, session: str = "s") -> list[str]:
        """Return the tools that ran in a session, as often as they did."""
        return [each.tool_call.tool_name for each in self.calls if each.flow_id == session]

    def keys(self, session: str = "s") -> set[str]:
        """Return the keys that a session's tools were given."""
        return {each.idempotency_key for each in self.calls if each.flow_id == session}


async def serve(engine: Engine, agent: ScriptedRunner, **options: Any) -> AgentSessionClient:
    """Start a worker of an agent with the tools of `POLICIES`."""
    return await engine.serve(agent, tool_policies=POLICIES, **options)


async def replace_worker(engine: Engine, agent: ScriptedRunner, **options: Any) -> None:
    """End the worker at once, and start another."""
    await engine.retire()
    await serve(engine, agent, **options)


async def until(engine: Engine, description: str, probe: Callable[[], Any]) -> Any:
    """Let time pass in small steps until a probe gives something.

    Where handlers hang, nobody waits for them to move: what counts is the probe.
    """

    async def look() -> Any:
        await engine.advance(0.25)
        value = probe()
        return await value if inspect.isawaitable(value) else value

    patience, engine.clock.patience = engine.clock.patience, 0.05
    try:
        return await wait_until(description, look, timeout=30)
    finally:
        engine.clock.patience = patience


async def ended(engine: Engine, sessions: AgentSessionClient, *names: str, turns: int = 1) -> None:
    """Let time pass until each session has ended so many turns."""

    async def are_idle() -> bool:
        for name in names or ("s",):
            snapshot = await sessions.get_agent_snapshot(name)
            state = snapshot.state
            if state is None or state.turn_number < turns or snapshot.queued_message_count:
                return False
            if state.status is not AgentStatus.WAITING_FOR_USER_MESSAGE:
                return False
        return True

    await until(engine, f"the end of turn {turns}", are_idle)


async def recorded(sessions: AgentSessionClient, count: int, session: str = "s") -> None:
    """Wait until so many calls of a session's turn have their results."""

    async def look() -> bool:
        snapshot = await sessions.get_agent_snapshot(session)
        return sum(each.is_final for each in snapshot.tool_calls) == count

    await wait_until(f"{count} results", look, timeout=30)


async def pending(sessions: AgentSessionClient, count: int, session: str = "s") -> list[str]:
    """Wait until so many approvals of a session are pending, and return their IDs."""

    async def look() -> list[str] | None:
        interrupts = (await sessions.get_agent_snapshot(session)).pending_interrupts
        return [i.interrupt_id for i in interrupts] if len(interrupts) == count else None

    return await wait_until(f"{count} approvals", look, timeout=30)


async def outcome(sessions: AgentSessionClient, session: str = "s") -> list[str]:
    """Return what the model was told of every tool call, in its order."""
    snapshot = await sessions.get_agent_snapshot(session)
    return [m.text or "" for m in snapshot.messages if m.role == "tool"]


async def finished(sessions: AgentSessionClient, session: str = "s") -> list[str]:
    """Return the statuses that a session's events give its tool calls, sorted."""
    events = await events_of(sessions, session)
    return sorted(each["status"] for each in payloads(events, "tool_call_finished"))
