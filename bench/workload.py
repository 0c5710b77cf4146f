"""The work that is measured: turns of seven Steps, over a runner and tools that return at once.

A session gets all its messages up front. Where its time is to be taken, a
message tells the runner to pause: the first model call of that turn begins
only once the commit before it is durable, says that it is there, and goes on
when told to. From one pause to the next lie whole turns and nothing else: no
client calls, no polling.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace as replace_table
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from bench.contenders.work import PAYLOAD, STEPS_PER_TURN, TOOL_CALLS
from dex_agents import (
    AgentSessionClient,
    AgentSnapshot,
    AgentTurnContext,
    AgentTurnOutcome,
    Backend,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    TelemetryOptions,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    TurnCompleted,
    session_table,
)
from dex_agents.executor import Executor
from dex_agents.table import FlowTable, Step, StepContext, Wait
from dex_agents_memory import MemoryBackend
from dex_agents_sqlite import SqliteBackend

__all__ = (
    "BACKENDS",
    "PAYLOAD",
    "STEPS_PER_TURN",
    "TOOL_CALLS",
    "Bench",
    "Ends",
    "Gate",
    "MeasuredSession",
    "Runner",
    "Sizes",
    "Stopwatch",
    "grow",
    "pause",
    "serving",
    "turn",
)

MESSAGES_PER_TURN = 2
BACKENDS = ("memory", "sqlite")

_PAUSE, _GROW = "pause ", "grow "


class Sizes(Struct, frozen=True):
    """How much is measured.

    Attributes:
        turns: Of one session; what runs many of them shares them out.
        near: The message at which a turn counts as early.
        far: The message at which a turn counts as late.
        open_sessions: How many sessions wait in one file.
        questions: How many messages are timed on their way to the model.
        seconds: How long a contender runs one session, then many.
        conversation_turns: Of the long conversation that each contender has.
        conversation_seconds: After so many it is cut short.
        turns_together: Of all sessions together, where their number grows.
        most_sessions: The most sessions at once.
        most_calls: The most tool calls at once.
        most_payload: The most bytes of one message, tool result or answer.
        most_workers: The most worker processes on one file.
    """

    turns: int = 200
    near: int = 100
    far: int = 10_000
    open_sessions: int = 10_000
    questions: int = 100
    seconds: float = 1.5
    conversation_turns: int = 1_000
    conversation_seconds: float = 15.0
    turns_together: int = 512
    most_sessions: int = 256
    most_calls: int = 256
    most_payload: int = 10_485_760
    most_workers: int = 4

    @classmethod
    def quick(cls, turns: int, far: int) -> Sizes:
        """Return sizes that show that everything runs, and say nothing of its speed."""
        return cls(
            turns=turns,
            far=far,
            open_sessions=100,
            questions=3,
            seconds=0.2,
            conversation_turns=5,
            turns_together=16,
            most_sessions=4,
            most_calls=4,
            most_payload=1_048_576,
            most_workers=1,
        )


def turn(payload: str = PAYLOAD) -> str:
    """Return the user message of an ordinary turn."""
    return payload


def pause(payload: str = PAYLOAD) -> str:
    """Return the user message of a turn that waits before its first model call answers."""
    return _PAUSE + payload[len(_PAUSE) :]


def grow(messages: int) -> str:
    """Return the user message of a turn without tools that adds so many messages, itself one."""
    return f"{_GROW}{messages - 1} "


class Gate:
    """Where one session pauses."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()
        self.opened.clear()


class Ends:
    """Tells when a session waits for its user: what came before is durable by then."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def of(self, session_id: str) -> asyncio.Event:
        """Return what is set each time that the session begins to wait."""
        return self._waiting.setdefault(session_id, asyncio.Event())

    def told_by(self, table: FlowTable) -> FlowTable:
        """Return the table with its wait for the user telling."""
        return replace_table(table, steps=tuple(map(self._told_by_step, table.steps)))

    def _told_by_step(self, step: Step[Any]) -> Step[Any]:
        if step.name != "AwaitUserMessage" or step.wait_for is None:
            return step
        wait_for = step.wait_for

        async def waiting(context: StepContext, given: Any) -> Wait:
            self.of(context.flow_id).set()
            return await wait_for(context, given)

        return replace(step, wait_for=waiting)


class Runner:
    """Asks for reads, three by default, then answers.

    Args:
        tool_calls: How many reads the model asks for at once.
        payload: What each of them returns, and what the model answers.
    """

    def __init__(self, tool_calls: int = TOOL_CALLS, payload: str = PAYLOAD) -> None:
        self.gates: dict[str, Gate] = {}
        self._tool_calls = tool_calls
        self._payload = payload

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(MessageRole.USER, {"role": "user", "content": text}, text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return TurnCompleted([self._answer()])
        text = turn.messages[-1].text or ""
        await self.pass_gate(turn.flow_id, text)
        if text.startswith(_GROW):
            return TurnCompleted([self._answer()] * int(text.split()[1]))
        policy = turn.resolve_tool_policy("look", ToolEffect.READ)
        calls = [
            DeferredToolCall(f"call-{i}", "look", {"at": i}, policy)
            for i in range(self._tool_calls)
        ]
        return ToolCallsRequested("state", calls)

    async def pass_gate(self, flow_id: str, text: str) -> None:
        """Wait where a message says so."""
        if text.startswith(_PAUSE):
            await self.gates[flow_id].pass_through()

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:  # noqa: ARG002 - every call gets the same
        return ToolExecutionResult(self._payload)

    def _answer(self) -> FrameworkMessage:
        item = {"role": "assistant", "content": self._payload}
        return FrameworkMessage(MessageRole.ASSISTANT, item, "done")


class Bench:
    """An open backend with one worker."""

    def __init__(
        self, backend: Backend, worker: Executor, runner: Runner, client: AgentSessionClient
    ) -> None:
        self.backend = backend
        self.worker = worker
        self.runner = runner
        self.client = client

    async def paused(self, session_id: str, messages: Sequence[str]) -> MeasuredSession:
        """Start a session, send it everything, and return it at its first pause."""
        self.runner.gates[session_id] = Gate()
        await self.client.start_session(session_id)
        for text in messages:
            await self.client.send_user_message(session_id, text)
        session = MeasuredSession(self, session_id)
        await session.until_paused()
        return session


class MeasuredSession:
    """A session that stands at a pause."""

    def __init__(self, bench: Bench, session_id: str) -> None:
        self.session_id = session_id
        self._client = bench.client
        self._gate = bench.runner.gates[session_id]

    async def until_paused(self) -> None:
        """Wait for the pause."""
        await self._gate.reached.wait()
        self._gate.reached.clear()

    async def to_next_pause(self) -> None:
        """Let it run from this pause to the next."""
        self._gate.opened.set()
        await self.until_paused()

    async def snapshot(self) -> AgentSnapshot:
        """Return what a user is shown of it."""
        return await self._client.get_agent_snapshot(self.session_id)

    async def stop(self) -> None:
        """End the session."""
        await self._client.stop_session(self.session_id)


@asynccontextmanager
async def serving(
    name: str,
    *,
    runner: Runner | None = None,
    wrap: Callable[[FlowTable], FlowTable] | None = None,
    telemetry: TelemetryOptions | None = None,
    **options: Any,
) -> AsyncIterator[Bench]:
    """Open a fresh backend with a worker, and leave nothing behind.

    Args:
        name: Of the backend.
        runner: None for an ordinary one.
        wrap: Changes the table that is served.
        telemetry: Of the backend.
        options: Of the worker.
    """
    runner = runner or Runner()
    table = session_table(runner, flow_type="Bench")
    table = wrap(table) if wrap else table
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        path = Path(folder) / "bench.db"
        backend = (
            SqliteBackend(path, telemetry=telemetry)
            if name == "sqlite"
            else MemoryBackend(telemetry=telemetry)
        )
        async with backend, backend.worker([table], **options) as worker:
            yield Bench(backend, worker, runner, AgentSessionClient(backend, table))


class Stopwatch:
    """Takes the seconds that a block lasts, with the garbage of what went before collected.

    Attributes:
        seconds: By the clock.
        cpu_seconds: Of this process on any processor.
    """

    seconds = 0.0
    cpu_seconds = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        self._begun, self._cpu_begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.cpu_seconds = time.process_time() - self._cpu_begun
