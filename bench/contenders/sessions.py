"""dex-agents as a contender: its own client sends, its own worker runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.contenders.driver import Serve, Turn
from bench.contenders.work import PAYLOAD, Work
from bench.workload import Ends, Runner
from dex_agents import (
    AgentSessionClient,
    AgentTurnContext,
    AgentTurnOutcome,
    Backend,
    DeferredToolExecution,
    ToolExecutionResult,
    session_table,
)

__all__ = ("serving_sessions",)


class _Runner(Runner):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            self._work.answer()
        else:
            self._work.ask()
        return await super().run_model_step(turn)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self._work.look(call.tool_call.arguments["at"])
        return await super().execute_deferred_tool_call(call)


def serving_sessions(make: Callable[[Path], Backend]) -> Serve:
    """Return what serves sessions on the backend that is made in a folder."""

    @asynccontextmanager
    async def serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
        ends = Ends()
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
