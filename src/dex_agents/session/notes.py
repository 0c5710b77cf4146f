"""The sentences that a model reads about what became of its tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dex_agents.encoding import encode
from dex_agents.records import AgentToolCall, ToolCallStatus

__all__ = ("EXPIRED_MESSAGE", "build_turn_failure_note", "describe_tool_call_outcome")

EXPIRED_MESSAGE = "Nobody answered before the approval deadline passed. The tool was not run."
"""The rejection message of a call whose approval expired: nobody refused it."""


def _reason(record: AgentToolCall) -> str:
    return record.error or "No reason was recorded."


def _one_line(text: str) -> str:
    """Keep a record to its one line: an output cannot pose as the next record."""
    return " ".join(text.splitlines())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def describe_tool_call_outcome(record: AgentToolCall) -> str:
    """Return what the model should read as the result of a tool call.

    A success is the tool's output: text as it is, anything else as JSON.

    Args:
        record: A final record; one that is not final is described as such.
    """
    match record.status:
        case ToolCallStatus.SUCCEEDED:
            return _text(record.output)
        case ToolCallStatus.FAILED:
            return f"The tool call failed: {_reason(record)}"
        case ToolCallStatus.REJECTED:
            return record.rejection_message or "The tool call was rejected. The tool was not run."
        case ToolCallStatus.OUTCOME_UNKNOWN:
            return (
                "It is unknown whether the tool call took effect. "
                f"Check before doing anything that depends on it. Cause: {_reason(record)}"
            )
        case _:
            return f"The tool call has no result yet ({record.status})."


def build_turn_failure_note(records: Iterable[AgentToolCall]) -> str | None:
    """Return what a failed turn leaves for the next one, so that no write is repeated.

    Args:
        records: The turn's tool calls, in any order; only final ones are told.

    Returns:
        One line for each record in ``deferral_order``, or None without a final record.
    """
    final = sorted((r for r in records if r.is_final), key=lambda record: record.deferral_order)
    if not final:
        return None
    lines = [
        _one_line(
            f"- {each.tool_name} {_text(each.arguments)} -> {each.status}: "
            f"{describe_tool_call_outcome(each)}"
        )
        for each in final
    ]
    return "\n".join(
        (
            "[Dex] The previous turn failed after these tool calls ran:",
            *lines,
            "Do not repeat these tool calls unless the user asks again.",
        )
    )
