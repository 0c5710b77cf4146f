"""Puts the session's rows together into one `FlowTable`."""

from __future__ import annotations

from typing import Never

from dex_agents.errors import RunnerContractError
from dex_agents.records import FrameworkMessage
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    ToolExecutionResult,
)
from dex_agents.session.observing import SessionFacts
from dex_agents.session.options import AgentSessionOptions
from dex_agents.session.persistence import SESSION_ROWS, agent_events
from dex_agents.session.rpcs import session_rpcs
from dex_agents.session.steps import SessionSteps
from dex_agents.table import FlowTable

__all__ = ("client_table", "session_table")


def session_table(
    runner: AgentFrameworkRunner,
    *,
    flow_type: str,
    options: AgentSessionOptions | None = None,
) -> FlowTable:
    """Return the durable agent session of one runner, for any backend.

    Args:
        runner: Calls the framework.
        flow_type: Names this agent; workers and clients find each other by it.
        options: Tool policies and limits.

    Raises:
        FlowDefinitionError: The flow type is no name, or the Stream capacity no size.
        RunnerContractError: The runner lacks one of the three methods.
    """
    if not isinstance(runner, AgentFrameworkRunner):
        raise RunnerContractError(
            f"{type(runner).__name__} is no AgentFrameworkRunner: it needs build_user_message, "
            "run_model_step and execute_deferred_tool_call."
        )
    options = options or AgentSessionOptions()
    events = agent_events(options.event_stream_capacity_bytes)
    return FlowTable(
        flow_type=flow_type,
        steps=SessionSteps(runner, options, events).rows(),
        rpcs=session_rpcs(),
        persistence=(*SESSION_ROWS, events),
        facts=SessionFacts(flow_type),
    )


def client_table(flow_type: str) -> FlowTable:
    """Return the session table of a flow type for a process that only calls it."""
    return session_table(_ClientOnly(flow_type), flow_type=flow_type)


class _ClientOnly:
    """Stands in for the runner where no Step ever runs."""

    def __init__(self, flow_type: str) -> None:
        self._flow_type = flow_type

    def _refuse(self) -> Never:
        raise RunnerContractError(
            f"This table of {self._flow_type!r} is for clients. "
            "Serve the one that session_table(runner, ...) returns."
        )

    def build_user_message(self, text: str) -> FrameworkMessage:  # noqa: ARG002
        self._refuse()

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:  # noqa: ARG002
        self._refuse()

    async def execute_deferred_tool_call(
        self,
        call: DeferredToolExecution,  # noqa: ARG002
    ) -> ToolExecutionResult:
        self._refuse()
