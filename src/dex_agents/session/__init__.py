"""The durable agent session: ten Steps and four RPCs over one runner, as a table."""

from __future__ import annotations

from dex_agents.session.flow import client_table, session_table
from dex_agents.session.notes import build_turn_failure_note, describe_tool_call_outcome
from dex_agents.session.options import AgentSessionOptions
from dex_agents.session.persistence import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
)

__all__ = (
    "AGENT_MESSAGES",
    "AGENT_STATE",
    "AGENT_TOOL_CALLS",
    "AGENT_USAGE",
    "FRAMEWORK_RUN_STATE",
    "INTERRUPT_RESOLUTIONS",
    "PENDING_INTERRUPTS",
    "QUEUED_USER_MESSAGES",
    "TOOL_CALL_RESULTS",
    "AgentSessionOptions",
    "build_turn_failure_note",
    "client_table",
    "describe_tool_call_outcome",
    "session_table",
)
