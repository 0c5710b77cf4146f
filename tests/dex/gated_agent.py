"""The gated flow of the process tests, for Dex; it also writes down which process served a tool."""

from __future__ import annotations

import os

from dex_agents import AgentSessionFlow, DeferredToolExecution, ToolExecutionResult
from tests.processes.flows import OPTIONS, TOOLS, GatedRunner, log, respond


class WitnessedRunner(GatedRunner):
    """A gated runner that says in whose process a tool runs."""

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        log().record("served", key=call.idempotency_key, pid=os.getpid())
        return await super().execute_deferred_tool_call(call)


def build_flow() -> AgentSessionFlow:
    """Return the flow that worker and test build alike."""
    return AgentSessionFlow(WitnessedRunner(respond, TOOLS), flow_type="Gated", options=OPTIONS)
