"""dex-agents as a contender: its own client sends, its own worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace as replace_table
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.contenders.driver import Serve, Turn
from bench.contenders.work import PAYLOAD, Work
from dex_agents import (
    AgentSessionClient,
    AgentTurnContext,
    AgentTurnOutcome,
    Backend,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    TurnCompleted,
    session_table,
)
from dex_agents.table import FlowTable, Step, StepContext, Wait

__all__ = ("serving_sessions",)


class _Runner:
    def __init__(self, work: Work) -> None:
        self._work = work

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(MessageRole.USER, {"role": "user", "content": text}, text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            text = self._work.answer()
            item = {"role": "assistant", "content": text}
            return TurnCompleted([FrameworkMessage(MessageRole.ASSISTANT, item, text)])
        policy = turn.resolve_tool_policy("look", ToolEffect.READ)
        calls = [
            DeferredToolCall(f"call-{at}", "look", {"at": at}, policy) for at in self._work.ask()
        ]
        return ToolCallsRequested("state", calls)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        return ToolExecutionResult(self._work.look(call.tool_call.arguments["at"]))


class _Ends:
    """Tells when a session waits for its user: what came before is durable by then."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def of(self, session_id: str) -> asyncio.Event:
        return self._waiting.setdefault(session_id, asyncio.Event())

    def told_by(self, table: FlowTable) -> FlowTable:
        return replace_table(table, steps=tuple(map(self._told_by_step, table.steps)))

    def _told_by_step(self, step: Step[Any]) -> Step[Any]:
        if step.name != "AwaitUserMessage" or step.wait_for is None:
            return step
        wait_for = step.wait_for

        async def waiting(context: StepContext, given: Any) -> Wait:
            self.of(context.flow_id).set()
            return await wait_for(context, given)

        return replace(step, wait_for=waiting)


def serving_sessions(make: Callable[[Path], Backend]) -> Serve:
    """Return what serves sessions on the backend that is made in a folder."""

    @asynccontextmanager
    async def serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
        ends = _Ends()
        table = ends.told_by(session_table(_Runner(work), flow_type="Bench"))
        backend = make(folder)
        started: set[str] = set()
        async with backend, backend.worker([table]):
            client = AgentSessionClient(backend, table)

            async def turn(session_id: str) -> None:
                if session_id not in started:
                    started.add(session_id)
                    await client.start_session(session_id)
                    await ends.of(session_id).wait()
                end = ends.of(session_id)
                end.clear()
                await client.send_user_message(session_id, PAYLOAD)
                await end.wait()

            yield turn

    return serve
