"""The sessions in which workers are killed: between them they come to every Step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dex_agents import (
    AgentSessionOptions,
    AgentTurnContext,
    DeferredToolExecution,
    ToolEffect,
    ToolPolicy,
    session_table,
)
from dex_agents.table import FlowTable
from dex_agents.testing import InvocationLog, ScriptedRunner, ToolRequest

__all__ = ("FLOW_TYPE", "MAX_ATTEMPTS", "SCENARIOS", "Scenario", "crash_table")

FLOW_TYPE = "Crashing"
MAX_ATTEMPTS = 3
"""How often a tool of a retried effect may run."""


class Scenario:
    """One session.

    Args:
        tool: The tool that the model asks for, or None for an answer at once.
        tool_fails: Whether the tool raises, each time.
        model_fails: Whether the model raises once the tool has run.
        later: Whether the session begins without a message, and gets one then.
    """

    def __init__(
        self,
        tool: str | None = None,
        *,
        tool_fails: bool = False,
        model_fails: bool = False,
        later: bool = False,
    ) -> None:
        self.tool = tool
        self.tool_fails = tool_fails
        self.model_fails = model_fails
        self.later = later

    @property
    def is_once_only(self) -> bool:
        """Whether the tool may never run twice."""
        return self.tool is not None and not _POLICIES[self.tool].effect.is_retried


SCENARIOS = {
    "answer": Scenario(),
    "later": Scenario(later=True),
    **{str(effect): Scenario(str(effect)) for effect in ToolEffect},
    "approval": Scenario("approval"),
    **{f"broken {effect}": Scenario(str(effect), tool_fails=True) for effect in ToolEffect},
    "broken model": Scenario("read", model_fails=True),
}
_POLICIES = {
    **{str(effect): ToolPolicy(effect, requires_approval=False) for effect in ToolEffect},
    "approval": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
}


class _Runner(ScriptedRunner):
    """Plays the scenario that the session's ID names, and logs every call."""

    def __init__(self, folder: Path, at: Callable[[str], None]) -> None:
        self._log = InvocationLog(folder / "invocations.jsonl")
        self._at = at
        super().__init__(self._respond, dict.fromkeys(_POLICIES, self._tool))

    async def run_model_step(self, turn: AgentTurnContext) -> Any:
        self._at("in the handler")
        outcome = await super().run_model_step(turn)
        self._at("after the effect")
        return outcome

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> Any:
        self._at("in the handler")
        result = await super().execute_deferred_tool_call(call)
        self._at("after the effect")
        return result

    def _respond(self, turn: AgentTurnContext) -> Any:
        session = turn.flow_id
        self._log.record("model", session=session, attempt=turn.attempt)
        scenario = SCENARIOS[session]
        if scenario.tool is not None and not turn.is_resuming:
            return [ToolRequest(scenario.tool)]
        if turn.is_resuming:
            statuses = [str(call.status) for call in turn.tool_calls.values()]
            self._log.record("told", session=session, statuses=statuses)
        if scenario.model_fails:
            raise RuntimeError("the provider is down")
        return "done"

    def _tool(self, call: DeferredToolExecution) -> str:
        self._log.record("tool", session=call.flow_id, key=call.idempotency_key)
        if SCENARIOS[call.flow_id].tool_fails:
            raise RuntimeError("the service is down")
        return "done"


def crash_table(folder: Path, at: Callable[[str], None] = lambda _: None) -> FlowTable:
    """Return the table that workers serve.

    Args:
        folder: Where calls are logged.
        at: Told which point of a runner's call has been reached.
    """
    options = AgentSessionOptions(tool_policies=_POLICIES)
    return session_table(_Runner(folder, at), flow_type=FLOW_TYPE, options=options)
