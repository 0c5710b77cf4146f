"""The Attributes, Channels and Stream that every agent session has, whatever its flow type."""

from __future__ import annotations

from collections.abc import Mapping

from dex_agents.errors import StoredRecordError
from dex_agents.records import (
    AgentEvent,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentState,
    AgentToolCall,
    AgentUsage,
    AgentUserMessage,
    ToolCallCompleted,
    message_sequence_key,
)
from dex_agents.table import Attribute, AttributeMap, Channel, ChannelMap, PersistenceRow, Stream

__all__ = (
    "AGENT_MESSAGES",
    "AGENT_STATE",
    "AGENT_TOOL_CALLS",
    "AGENT_USAGE",
    "FRAMEWORK_RUN_STATE",
    "INTERRUPT_RESOLUTIONS",
    "PENDING_INTERRUPTS",
    "QUEUED_USER_MESSAGES",
    "SESSION_ROWS",
    "TOOL_CALL_RESULTS",
    "agent_events",
    "message_at",
)

AGENT_STATE = Attribute("AgentState", AgentState)
AGENT_MESSAGES = AttributeMap("AgentMessages", AgentMessage)
"""Keyed by `message_sequence_key`."""
FRAMEWORK_RUN_STATE = Attribute("FrameworkRunState", str)
"""Set only while a turn waits for tool calls."""
AGENT_TOOL_CALLS = AttributeMap("AgentToolCalls", AgentToolCall)
"""Keyed by tool call ID; deleted when the turn ends."""
PENDING_INTERRUPTS: Attribute[list[AgentInterrupt]] = Attribute(
    "PendingInterrupts", list[AgentInterrupt]
)
AGENT_USAGE = Attribute("AgentUsage", AgentUsage)
QUEUED_USER_MESSAGES = Channel("QueuedUserMessages", AgentUserMessage)
INTERRUPT_RESOLUTIONS = ChannelMap("InterruptResolutions", AgentInterruptResolution)
"""Keyed by interrupt ID."""
TOOL_CALL_RESULTS = Channel("ToolCallResults", ToolCallCompleted)
"""One message for each tool call, when its record becomes final."""

SESSION_ROWS: tuple[PersistenceRow, ...] = (
    AGENT_STATE,
    AGENT_MESSAGES,
    FRAMEWORK_RUN_STATE,
    AGENT_TOOL_CALLS,
    PENDING_INTERRUPTS,
    AGENT_USAGE,
    QUEUED_USER_MESSAGES,
    INTERRUPT_RESOLUTIONS,
    TOOL_CALL_RESULTS,
)
"""Every row but the Stream, of which each flow type has its own."""


def agent_events(capacity_bytes: int) -> Stream[AgentEvent]:
    """Return the ``AgentEvents`` Stream of one flow type."""
    return Stream("AgentEvents", AgentEvent, capacity_bytes)


def message_at(messages: Mapping[str, AgentMessage], sequence: int) -> AgentMessage:
    """Return the stored message of a sequence that the session's state counts.

    Raises:
        StoredRecordError: The message is not there, or cannot be read.
    """
    try:
        return messages[message_sequence_key(sequence)]
    except KeyError as error:
        raise StoredRecordError(f"message {sequence}", "it is missing") from error
