"""The scenario of ``dex-agents demo``: the night assistant of a small observatory.

The model is a script, the tools write to files; everything else is real. Read
it as an example of a runner's tools, of their policies, and of a write that is
safe to repeat because it looks at its idempotency key.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from dex_agents.records import AgentToolCall, ToolCallStatus, ToolEffect
from dex_agents.runner import AgentTurnContext, DeferredToolExecution, ToolPolicy
from dex_agents.session import AgentSessionOptions, session_table
from dex_agents.table import FlowTable
from dex_agents.testing import FileGate, InvocationLog, ScriptedRunner, ToolRequest

__all__ = (
    "FLOW_TYPE",
    "FOLDER_VARIABLE",
    "MOVE",
    "NOTIFY",
    "READS",
    "USER_MESSAGE",
    "Observatory",
    "flow",
)

FLOW_TYPE = "NightAssistant"
FOLDER_VARIABLE = "DEX_AGENTS_DEMO_FOLDER"
"""Names the folder that stands for the observatory."""

USER_MESSAGE = (
    "Clouds are coming in from the west. Save what you can of tonight, and tell the visitors."
)

READS = ("sky_forecast", "tonights_plan", "dome_status")
MOVE = "move_observation"
NOTIFY = "text_visitors"

_READINGS: dict[str, Any] = {
    "sky_forecast": {"clouds_from": "23:40", "clear_again": "02:10"},
    "tonights_plan": [
        {"at": "22:40", "target": "nothing yet"},
        {"at": "00:15", "target": "M13", "for": "14 visitors"},
        {"at": "02:30", "target": "NGC 7000", "for": "the camera"},
    ],
    "dome_status": {"dome": "open", "telescope": "ready"},
}
_MODEL_SECONDS = 0.4
_TOOL_SECONDS = {"sky_forecast": 0.5, "tonights_plan": 0.3, "dome_status": 0.4}
_WORD_SECONDS = 0.02


class Observatory:
    """The world outside the session: what was called, and what that changed.

    Args:
        folder: Where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.calls = InvocationLog(folder / "calls.jsonl")
        self.effects = InvocationLog(folder / "effects.jsonl")
        self.gate = FileGate(folder, MOVE)

    def tools(self) -> dict[str, Any]:
        """Return the tools by name."""
        return {**dict.fromkeys(READS, self.read), MOVE: self.move, NOTIFY: self.text_visitors}

    async def read(self, call: DeferredToolExecution) -> Any:
        """Look something up."""
        self._note(call)
        name = call.tool_call.tool_name
        await asyncio.sleep(_TOOL_SECONDS[name])
        return _READINGS[name]

    async def move(self, call: DeferredToolExecution) -> Any:
        """Move an observation, once for each idempotency key.

        The demo holds the call behind its effect and in front of its result:
        the worst moment for a worker to die.
        """
        self._note(call)
        key = call.idempotency_key
        if key not in {each["key"] for each in self.effects.entries(MOVE)}:
            self.effects.record(MOVE, key=key, arguments=call.tool_call.arguments)
        await self.gate.wait_for_release()
        return {"moved": call.tool_call.arguments}

    async def text_visitors(self, call: DeferredToolExecution) -> Any:
        """Send text messages. There is no taking them back, and no key to recognise a repeat by."""
        self._note(call)
        await asyncio.sleep(_MODEL_SECONDS)
        self.effects.record(NOTIFY, key=call.idempotency_key, arguments=call.tool_call.arguments)
        return {"messages_sent": 14}

    def _note(self, call: DeferredToolExecution) -> None:
        name = call.tool_call.tool_name
        self.calls.record(name, key=call.idempotency_key, attempt=call.attempt, pid=os.getpid())


def flow() -> FlowTable:
    """Return the assistant's flow, for ``dex-agents worker dex_agents.cli.observatory:flow``."""
    observatory = Observatory(Path(os.environ.get(FOLDER_VARIABLE, "observatory")))
    policies = {name: ToolPolicy(ToolEffect.READ) for name in READS}
    policies[MOVE] = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
    policies[NOTIFY] = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)  # asks a person first
    return session_table(
        ScriptedRunner(_answer, observatory.tools()),
        flow_type=FLOW_TYPE,
        options=AgentSessionOptions(tool_policies=policies),
    )


async def _answer(turn: AgentTurnContext) -> str | list[ToolRequest]:
    """Play the model: it decides by what the turn's tool calls have brought so far."""
    await asyncio.sleep(_MODEL_SECONDS)
    if turn.turn_id != "turn-1":
        return "My script ends with the first night. Write a runner of your own: docs/runners.md."
    called = {record.tool_name: record for record in turn.tool_calls.values()}
    if MOVE in called and NOTIFY in called:
        return await _spoken(turn, _final_words(called[MOVE], called[NOTIFY]))
    if MOVE in called:
        text = "Clouds at midnight: we watch M13 at 22:40 instead of 00:15. See you at the dome!"
        return [ToolRequest(NOTIFY, {"text": text})]
    if called:
        return [ToolRequest(MOVE, {"target": "M13", "from": "00:15", "to": "22:40"})]
    return [ToolRequest(name) for name in READS]


def _final_words(moved: AgentToolCall, notified: AgentToolCall) -> str:
    first = "M13 could not be moved."
    if moved.status is ToolCallStatus.SUCCEEDED:
        first = "M13 is at 22:40 now, an hour before the clouds."
    match notified.status:
        case ToolCallStatus.SUCCEEDED:
            second = (
                f"All {notified.output['messages_sent']} visitors have a text message about it."
            )
        case ToolCallStatus.REJECTED:
            second = "You did not want me to text the visitors, so I did not."
        case _:
            second = "I do not know whether the visitors got my message; please check."
    return f"{first} {second} The sky clears again at 02:10, so NGC 7000 can stay where it is."


async def _spoken(turn: AgentTurnContext, text: str) -> str:
    """Stream the text word by word."""
    for word in text.split(" "):
        turn.events.write_text_delta(f"{word} ")
        await asyncio.sleep(_WORD_SECONDS)
    return text
