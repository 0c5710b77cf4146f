"""Puts the session's rows together into one `FlowTable`."""

from __future__ import annotations

from typing import Any, Never

from dex_agents.errors import RunnerContractError
from dex_agents.records import FrameworkMessage
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    ToolExecutionResult,
)
from dex_agents.session.options import AgentSessionOptions
from dex_agents.session.persistence import (
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    QUEUED_USER_MESSAGES,
    SESSION_ROWS,
    agent_events,
)
from dex_agents.session.rpcs import session_rpcs
from dex_agents.session.steps import SessionSteps
from dex_agents.table import AttemptFacts, FlowTable, StepContext

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
        facts=_facts,
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


def _facts(step: str, context: StepContext, step_input: Any) -> AttemptFacts:
    """Tell telemetry which turn an attempt belongs to, and what it calls."""
    state = context.get(AGENT_STATE)
    messages = context.results(QUEUED_USER_MESSAGES) if step == "AwaitUserMessage" else ()
    if messages:
        # A message begins a turn: in its sender's trace, or without one in a new trace.
        return AttemptFacts(carrier=messages[0].trace_context)
    if step == "StartAgentSession":
        return AttemptFacts(carrier=step_input.trace_context)
    carrier = state.trace_context if state else {}
    tags = {"turn_id": state.turn_id if state else ""}
    if step == "RunModel":
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": context.flow_id}
        return AttemptFacts("chat", True, carrier, attributes, tags)
    if isinstance(step_input, str):
        return _tool_facts(step, context, step_input, carrier, tags)
    return AttemptFacts(carrier=carrier, tags=tags)


def _tool_facts(
    step: str,
    context: StepContext,
    tool_call_id: str,
    carrier: dict[str, str],
    tags: dict[str, str],
) -> AttemptFacts:
    record = context.get(AGENT_TOOL_CALLS[tool_call_id])
    tags = {**tags, "tool_call_id": tool_call_id}
    if record is None or step not in ("CallTool", "CallSingleAttemptTool"):
        return AttemptFacts(carrier=carrier, tags=tags)
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": record.tool_name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": tool_call_id,
        "gen_ai.conversation.id": context.flow_id,
    }
    return AttemptFacts(f"execute_tool {record.tool_name}", False, carrier, attributes, tags)
