"""dex-agents runs AI agents as durable sessions.

One flow execution is one session. Every model call and every tool call is a
Step of its own, so a crash repeats at most the one call that was running.
"""

from __future__ import annotations

import importlib
import typing

from dex_agents.backend import Backend, Capability, backend_names, open_backend
from dex_agents.client import AgentSessionClient, FollowedEvent
from dex_agents.errors import (
    DexAgentsError,
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    MissingExtraError,
    RpcLockConflictError,
    RunnerContractError,
    StoreError,
)
from dex_agents.records import (
    AgentEvent,
    AgentEventType,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentMessagesPage,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    AgentUserMessage,
    ApprovalResult,
    FrameworkMessage,
    ListAgentMessagesRequest,
    MessageRole,
    ResolveInterruptRequest,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)
from dex_agents.runner import (
    AgentEventWriter,
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    ModelCallDetails,
    ToolCallsRequested,
    ToolExecutionError,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.session import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
    AgentSessionOptions,
    build_turn_failure_note,
    describe_tool_call_outcome,
    session_table,
)
from dex_agents.telemetry import ContentCapture, TelemetryOptions

if typing.TYPE_CHECKING:
    from dex_agents_dex import AgentSessionFlow as AgentSessionFlow

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
    "AgentEvent",
    "AgentEventType",
    "AgentEventWriter",
    "AgentFrameworkRunner",
    "AgentInterrupt",
    "AgentInterruptResolution",
    "AgentMessage",
    "AgentMessagesPage",
    "AgentSessionClient",
    "AgentSessionOptions",
    "AgentSessionStartInput",
    "AgentSnapshot",
    "AgentState",
    "AgentStatus",
    "AgentToolCall",
    "AgentTurnContext",
    "AgentTurnOutcome",
    "AgentUsage",
    "AgentUserMessage",
    "ApprovalResult",
    "Backend",
    "Capability",
    "ContentCapture",
    "DeferredToolCall",
    "DeferredToolExecution",
    "DexAgentsError",
    "FlowAlreadyStartedError",
    "FlowNotActiveError",
    "FlowNotFoundError",
    "FollowedEvent",
    "FrameworkMessage",
    "ListAgentMessagesRequest",
    "MessageRole",
    "MissingExtraError",
    "ModelCallDetails",
    "ResolveInterruptRequest",
    "RpcLockConflictError",
    "RunnerContractError",
    "StoreError",
    "TelemetryOptions",
    "ToolCallCompleted",
    "ToolCallStatus",
    "ToolCallsRequested",
    "ToolEffect",
    "ToolExecutionError",
    "ToolExecutionResult",
    "ToolPolicy",
    "TurnCompleted",
    "backend_names",
    "build_turn_failure_note",
    "describe_tool_call_outcome",
    "message_sequence_key",
    "open_backend",
    "session_table",
)


def __getattr__(name: str) -> typing.Any:
    """Import what needs the Dex SDK only when somebody asks for it; ``import *`` does not."""
    if name != "AgentSessionFlow":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        dex_backend = importlib.import_module("dex_agents_dex")
    except DexAgentsError:
        raise  # it says better what is wrong
    except ImportError as error:
        raise MissingExtraError("AgentSessionFlow", "dex") from error
    return dex_backend.AgentSessionFlow
