"""The agent session as a Dex Flow: the compiled session table."""

from __future__ import annotations

from typing import Any

import dex

from dex_agents.runner import AgentFrameworkRunner
from dex_agents.session import AgentSessionOptions, session_table
from dex_agents.telemetry import TelemetryOptions
from dex_agents_dex.compiler import CompiledFlow

__all__ = ("AgentSessionFlow",)


class AgentSessionFlow(CompiledFlow):
    """One durable agent session per Flow execution; register one for each agent.

    Args:
        runner: Calls the framework.
        flow_type: Names this agent; unique within a server.
        options: Tool policies and limits.
        telemetry: Where traces, metrics and logs go; None for the application's own providers.

    Attributes:
        agent_events: The Stream of `AgentEvent`, for ``AsyncClient.read_stream``.

    Raises:
        FlowDefinitionError: The flow type is no name, or the Stream capacity no size.
        RunnerContractError: The runner lacks one of the three methods.
    """

    def __init__(
        self,
        runner: AgentFrameworkRunner,
        *,
        flow_type: str,
        options: AgentSessionOptions | None = None,
        telemetry: TelemetryOptions | None = None,
    ) -> None:
        table = session_table(runner, flow_type=flow_type, options=options)
        super().__init__(table, telemetry=telemetry)
        self.agent_events: dex.Stream[Any] = self.stream("AgentEvents")
