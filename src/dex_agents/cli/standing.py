"""How a session stands, in words: what it does, what it waits for, and who must do something."""

from __future__ import annotations

import asyncio

from dex_agents.backend import FlowSummary
from dex_agents.cli.stores import typed_command
from dex_agents.client import AgentSessionClient
from dex_agents.records import AgentSnapshot, AgentStatus

__all__ = ("missing_worker", "standing", "wait_for_worker")

_DOES = {
    AgentStatus.WAITING_FOR_USER_MESSAGE: "waits for the user",
    AgentStatus.RUNNING_MODEL: "running the model",
    AgentStatus.RUNNING_TOOLS: "running tools",
}
_LOOKS = 20
_LOOK_SECONDS = 0.025


def standing(summary: FlowSummary, snapshot: AgentSnapshot) -> str:
    """Return what a session does or waits for, in a few words."""
    state = snapshot.state
    if summary.status != "running":
        return summary.status
    if state is None:
        return "not begun" if summary.waits_for_worker else "running"
    if snapshot.pending_interrupts:
        return "waits for approval"
    if summary.waits_for_worker:
        return "waits for a worker"
    is_idle = state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
    return _DOES[state.status] if snapshot.queued_message_count == 0 or not is_idle else "running"


def missing_worker(summary: FlowSummary, store: str) -> str:
    """Return what to do about a session that no worker has taken up; nothing if one has."""
    if not summary.waits_for_worker:
        return ""
    command = typed_command(store, "worker", "MODULE:FLOW")
    return (
        "No worker has taken it up so far. "
        f"If none serves the flow type {summary.flow_type}, start one:\n  {command}"
    )


async def wait_for_worker(client: AgentSessionClient, session: str, store: str) -> str:
    """Give workers a moment to take a session up. Return what to do if none does."""
    for _ in range(_LOOKS):
        summary = await client.describe_session(session)
        if not summary.waits_for_worker:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return missing_worker(summary, store)
