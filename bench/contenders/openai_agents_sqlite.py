"""The OpenAI Agents SDK with its SQLite session. It stores messages, not Steps: no crash inside a
turn is survived, so it says what a turn costs without that promise.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from bench.contenders.driver import Turn, drive
from bench.contenders.work import PAYLOAD, Work


class _Model(Model):
    def __init__(self, work: Work) -> None:
        self._work = work
        self._turns = 0

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:  # noqa: A002, ARG002
        last = input[-1]
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(type="output_text", text=self._work.answer(), annotations=[])
            output: list[Any] = [
                ResponseOutputMessage(
                    id="message",
                    type="message",
                    role="assistant",
                    status="completed",
                    content=[text],
                )
            ]
        else:
            self._turns += 1
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    call_id=f"call-{self._turns}-{at}",
                    name="look",
                    arguments=json.dumps({"at": at}),
                )
                for at in self._work.ask()
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def _serve(folder: Path, work: Work) -> AsyncIterator[Turn]:
    set_tracing_disabled(True)

    @function_tool
    async def look(at: int) -> str:
        return work.look(at)

    agent = Agent(name="bench", model=_Model(work), tools=[look])
    config = RunConfig(tracing_disabled=True)
    sessions: dict[str, SQLiteSession] = {}

    async def turn(name: str) -> None:
        if name not in sessions:
            sessions[name] = SQLiteSession(name, folder / "sessions.db")
        await Runner.run(agent, PAYLOAD, session=sessions[name], run_config=config)

    yield turn
    for session in sessions.values():
        session.close()


if __name__ == "__main__":
    drive(_serve)
