"""A model and its tools that do whatever the contract lets them do, as chance has it."""

from __future__ import annotations

import asyncio
import contextvars
from random import Random
from typing import Protocol

from dex_agents.machine import Phase
from dex_agents.records import AgentUsage, FrameworkMessage, MessageRole, ToolEffect
from dex_agents.runner import (
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    ToolCallsRequested,
    ToolExecutionError,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.table import StepContext

__all__ = ("ATTEMPT", "WITNESS", "RandomAgent", "Witness")

ATTEMPT: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar("attempt")
"""The Step execution and the attempt that a runner is called from."""

_EFFECTS = tuple(ToolEffect)
_MOST_CALLS = 6
_BAD_TURNS = ("turn-3",)
"""Turns in which the provider is down most of the time."""
_PAUSES = (0.0, 0.0, 0.0, 0.01, 0.1, 1.0, 5.0, 40.0)
_LONG_PAUSES = (200.0, 1000.0)


class Witness(Protocol):
    """Who is told what the agent does, and may end its process in the middle of it."""

    chance: Random

    def model_answered(self, flow_id: str, attempt: tuple[str, int], usage: AgentUsage) -> None:
        """Learn what a model call cost."""
        ...

    def tool_called(self, call: DeferredToolExecution) -> None:
        """Learn that a tool's body has begun, and with it its effect."""
        ...

    def begun(self, context: StepContext, phase: Phase) -> None:
        """Learn that a handler has begun."""
        ...

    async def perhaps_crash(self) -> None:
        """End the process that this runs in, or do nothing."""
        ...


WITNESS: contextvars.ContextVar[Witness] = contextvars.ContextVar("witness")
"""Of the world that is running. One agent, and so one table, serves all worlds."""


class RandomAgent:
    """A runner without a memory whose every decision is drawn by its `WITNESS`."""

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return a message of plain text."""
        return FrameworkMessage(MessageRole.USER, text, text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Fail, break the contract, ask for tools, or answer."""
        witness = WITNESS.get()
        turn.events.write_text_delta("so")
        await _pause(witness.chance)
        drawn = witness.chance.random()
        if drawn < (0.7 if turn.turn_id in _BAD_TURNS else 0.1):
            raise RuntimeError("the provider is overloaded")
        if drawn > 0.98:
            return None  # type: ignore[return-value]
        usage = AgentUsage(witness.chance.randint(1, 9), witness.chance.randint(1, 9))
        witness.model_answered(turn.flow_id, ATTEMPT.get(), usage)
        if len(turn.tool_calls) < _MOST_CALLS and witness.chance.random() < 0.6:
            calls = _calls(turn, witness.chance)
            return ToolCallsRequested(f"after {len(turn.tool_calls)}", calls, usage)
        count = witness.chance.choice((0, 1, 1, 2))
        answers = [FrameworkMessage(MessageRole.ASSISTANT, n, f"answer {n}") for n in range(count)]
        return TurnCompleted(answers, usage)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Have an effect, with a crash before or after it, and succeed or fail."""
        witness = WITNESS.get()
        await witness.perhaps_crash()
        witness.tool_called(call)
        await witness.perhaps_crash()
        await _pause(witness.chance)
        drawn = witness.chance.random()
        if drawn < 0.1:
            raise ToolExecutionError("there is no such order")
        if drawn < 0.2:
            raise RuntimeError("the service is down")
        if drawn < 0.22:
            return None  # type: ignore[return-value]
        if drawn < 0.24:
            return ToolExecutionResult(b"no JSON")
        return ToolExecutionResult({"ran": call.idempotency_key})


def _calls(turn: AgentTurnContext, chance: Random) -> list[DeferredToolCall]:
    first = len(turn.tool_calls) + 1
    count = chance.choice((1, 1, 2, 3))
    ids = [f"call-{number}" for number in range(first, first + count)]
    if chance.random() < 0.02:
        ids[-1] = ids[0] if count > 1 else ""
    return [
        DeferredToolCall(
            call_id,
            "tool",
            {"n": first},
            ToolPolicy(chance.choice(_EFFECTS), chance.choice((None, None, True, False))),
        )
        for call_id in ids
    ]


async def _pause(chance: Random) -> None:
    pauses = _LONG_PAUSES if chance.random() < 0.01 else _PAUSES
    if pause := chance.choice(pauses):
        await asyncio.sleep(pause)
