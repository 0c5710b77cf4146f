"""An agent for the workers of these tests: what it does stands in the user's message."""

from __future__ import annotations

import os
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
from dex_agents.testing import FileGate, InvocationLog, ScriptedRunner, ToolRequest

FLOW_TYPE = "Clerk"
STATE_VARIABLE = "CLERK_STATE"
NOT_A_FLOW = 7


def gate(state: Path) -> FileGate:
    return FileGate(state, "filing")


def log(state: Path) -> InvocationLog:
    return InvocationLog(state / "calls.jsonl")


def flow() -> FlowTable:
    state = Path(os.environ[STATE_VARIABLE])

    async def file_paper(call: DeferredToolExecution) -> Any:
        await gate(state).wait_for_release()
        log(state).record("file_paper", key=call.idempotency_key)
        return "filed"

    async def stamp_paper(call: DeferredToolExecution) -> Any:
        await gate(state).wait_for_release()
        log(state).record("stamp_paper", key=call.idempotency_key)
        return "stamped"

    async def shred_paper(call: DeferredToolExecution) -> Any:
        log(state).record("shred_paper", key=call.idempotency_key)
        return {"shredded": call.tool_call.arguments}

    policies = {
        "file_paper": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "shred_paper": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
        "stamp_paper": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
    }
    return session_table(
        ScriptedRunner(
            _answer,
            {"file_paper": file_paper, "stamp_paper": stamp_paper, "shred_paper": shred_paper},
            stream=True,
        ),
        flow_type=FLOW_TYPE,
        options=AgentSessionOptions(tool_policies=policies),
    )


def broken() -> FlowTable:
    raise RuntimeError("the cupboard is bare")


def _answer(turn: AgentTurnContext) -> str | list[ToolRequest]:
    message = next(m.text or "" for m in reversed(turn.messages) if m.role == "user")
    verb, _, rest = message.partition(" ")
    if turn.is_resuming:
        outcomes = [str(record.status) for record in turn.tool_calls.values()]
        return f"done: {', '.join(outcomes)}"
    if verb == "fail":
        raise KeyError(rest)
    if verb == "shred":
        return [ToolRequest("shred_paper", {"paper": paper}) for paper in rest.split()]
    if verb == "stamp":
        return [ToolRequest("stamp_paper", {"paper": rest})]
    if verb == "file":
        return [ToolRequest("file_paper", {"paper": rest})]
    return f"you said {message}"
