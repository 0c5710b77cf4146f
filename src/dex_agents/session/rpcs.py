"""The four RPCs of an agent session. They need no runner, so a client needs none either."""

from __future__ import annotations

from typing import Any

from dex_agents.encoding import clean_text
from dex_agents.records import (
    AgentInterruptResolution,
    AgentMessage,
    AgentMessagesPage,
    AgentSnapshot,
    AgentState,
    AgentUsage,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
)
from dex_agents.session.persistence import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    message_at,
)
from dex_agents.table import Rpc, RpcContext, RpcResult

__all__ = ("MAX_MESSAGES", "session_rpcs")

MAX_MESSAGES = 200
"""How many messages one snapshot or one page holds at most."""


def session_rpcs() -> tuple[Rpc[Any, Any], ...]:
    """Return the four rows."""
    return (
        Rpc("send_user_message", send_user_message, input=AgentUserMessage, output=bool),
        Rpc(
            "resolve_interrupt",
            resolve_interrupt,
            input=ResolveInterruptRequest,
            output=bool,
            locks=(PENDING_INTERRUPTS,),
        ),
        Rpc(
            "get_agent_snapshot",
            get_agent_snapshot,
            output=AgentSnapshot,
            is_read_only=True,
            loads=(AGENT_MESSAGES, AGENT_TOOL_CALLS),
        ),
        Rpc(
            "list_agent_messages",
            list_agent_messages,
            input=ListAgentMessagesRequest,
            output=AgentMessagesPage,
            is_read_only=True,
            loads=(AGENT_MESSAGES,),
        ),
    )


def send_user_message(context: RpcContext, message: AgentUserMessage) -> RpcResult[bool]:
    """Queue a message for the next turn; False, and nothing queued, when it is blank."""
    text = clean_text(message.text)
    if not text.strip():
        return RpcResult(False)
    context.publish(QUEUED_USER_MESSAGES, AgentUserMessage(text, message.trace_context))
    return RpcResult(True)


def resolve_interrupt(context: RpcContext, request: ResolveInterruptRequest) -> RpcResult[bool]:
    """Answer a pending interrupt; False when it is not pending or its deadline has passed."""
    pending = context.get(PENDING_INTERRUPTS) or []
    found = [each for each in pending if each.interrupt_id == request.interrupt_id]
    if not found:
        return RpcResult(False)
    deadline = found[0].deadline
    if deadline is not None and deadline.timestamp() <= context.now():
        return RpcResult(False)
    message = None if request.approved else request.rejection_message
    answer = AgentInterruptResolution(
        interrupt_id=request.interrupt_id,
        approved=request.approved,
        rejection_message=None if message is None else clean_text(message),
        trace_context=request.trace_context,
        raised_at=found[0].raised_at,
    )
    context.set(PENDING_INTERRUPTS, [each for each in pending if each not in found])
    context.publish(INTERRUPT_RESOLUTIONS[request.interrupt_id], answer)
    return RpcResult(True)


def get_agent_snapshot(context: RpcContext, _: None) -> RpcResult[AgentSnapshot]:
    """Return state, last messages, pending interrupts, tool calls, usage and queue length."""
    state = context.get(AGENT_STATE)
    count = state.message_count if state else 0
    calls = sorted(context.entries(AGENT_TOOL_CALLS).values(), key=lambda r: r.deferral_order)
    return RpcResult(
        AgentSnapshot(
            state=state,
            messages=_messages(context, max(count - MAX_MESSAGES, 0), count),
            pending_interrupts=context.get(PENDING_INTERRUPTS) or [],
            tool_calls=calls,
            usage=context.get(AGENT_USAGE) or AgentUsage(),
            queued_message_count=context.queue_size(QUEUED_USER_MESSAGES),
        )
    )


def list_agent_messages(
    context: RpcContext, request: ListAgentMessagesRequest
) -> RpcResult[AgentMessagesPage]:
    """Return messages after a sequence, oldest first; the limit is clamped to 1..200."""
    count = (context.get(AGENT_STATE) or AgentState()).message_count
    first = max(request.after_sequence, 0)
    last = min(first + min(max(request.limit, 1), MAX_MESSAGES), count)
    page = AgentMessagesPage(
        messages=_messages(context, first, last),
        next_after_sequence=last if last < count else None,
    )
    return RpcResult(page)


def _messages(context: RpcContext, after: int, last: int) -> list[AgentMessage]:
    stored = context.entries(AGENT_MESSAGES)
    return [message_at(stored, n) for n in range(after + 1, last + 1)]
