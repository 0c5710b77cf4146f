"""Says in words where a session's stored messages differ from its recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dex_agents.records import AgentMessage, AgentToolCall, ToolCallStatus, ToolEffect
from dex_agents.session import describe_tool_call_outcome
from dex_agents.testing.chat import ChatItem
from dex_agents.testing.recording import Recording

__all__ = ("compare_recording",)

_SHOWN = 80


def compare_recording(
    recording: Recording, messages: Sequence[AgentMessage], *, allow_unknown: bool = False
) -> list[str]:
    """Return every difference between a recording and what a session stored of it.

    An end of the recording that the model did not answer is not replayed and
    does not count; see `Recording.replayed_messages`.

    Args:
        recording: What was replayed.
        messages: All stored messages of the session, in order.
        allow_unknown: Whether a tool result may say that its outcome is unknown.
    """
    expected = recording.replayed_messages
    differences = []
    if len(messages) != len(expected):
        differences.append(
            f"the recording has {len(expected)} messages, the session stored {len(messages)}"
        )
    turn = 0
    for number, (item, message) in enumerate(zip(expected, messages, strict=False), start=1):
        turn += item["role"] == "user"
        found = _differences(item, message, number, f"turn-{turn}", allow_unknown)
        differences += [f"message {number} ({item['role']}): {each}" for each in found]
    return differences


def _differences(
    item: ChatItem, message: AgentMessage, number: int, turn_id: str, allow_unknown: bool
) -> Iterator[str]:
    stored = message.framework_item
    yield from _unequal("sequence", number, message.sequence)
    yield from _unequal("stored role", item["role"], str(message.role))
    yield from _unequal("turn", turn_id, message.turn_id)
    if not isinstance(stored, dict):
        yield f"the framework item is {_shown(stored)}"
        return
    yield from _unequal("text", stored.get("content"), message.text)
    may_differ = allow_unknown and item["role"] == "tool" and _is_unknown(stored.get("content"))
    for key in dict.fromkeys((*item, *stored)):
        if not (may_differ and key == "content"):
            yield from _unequal(key, item.get(key, "missing"), stored.get(key, "missing"))


def _unequal(what: str, expected: Any, stored: Any) -> Iterator[str]:
    if expected != stored:
        yield f"{what} is {_shown(stored)}, the recording has {_shown(expected)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _is_unknown(content: Any) -> bool:
    before, _, after = _unknown_sentence("\0").partition("\0")
    return isinstance(content, str) and content.startswith(before) and content.endswith(after)


def _unknown_sentence(error: str) -> str:
    record = AgentToolCall(
        tool_call_id="call",
        tool_name="tool",
        arguments={},
        effect=ToolEffect.UNCLASSIFIED,
        requires_approval=False,
        status=ToolCallStatus.OUTCOME_UNKNOWN,
        deferral_order=1,
        error=error,
    )
    return describe_tool_call_outcome(record)
