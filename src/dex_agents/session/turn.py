"""What a model call starts from, and the check of what a runner gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from dex_agents.encoding import clean_text, json_value
from dex_agents.errors import RunnerContractError
from dex_agents.records import (
    AgentMessage,
    AgentSessionStartInput,
    AgentToolCall,
    AgentUsage,
    FrameworkMessage,
    MessageRole,
    ToolEffect,
)
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnOutcome,
    DeferredToolCall,
    ToolCallsRequested,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.session.persistence import message_at

__all__ = (
    "StoredMessages",
    "checked_outcome",
    "checked_result",
    "checked_user_message",
    "initial_message",
    "interrupt_id",
    "stored_message",
)


_LARGEST_COUNT = 2**63 - 1


class StoredMessages(Sequence[AgentMessage]):
    """The messages of a session in order, decoded only as they are read.

    A turn at message 10,000 whose runner reads the last ten costs what a turn
    at message 100 costs.
    """

    def __init__(self, entries: Mapping[str, AgentMessage], count: int) -> None:
        self._entries = entries
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> AgentMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[AgentMessage]: ...
    def __getitem__(self, index: int | slice) -> AgentMessage | list[AgentMessage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(index)
        return message_at(self._entries, position + 1)

    def __iter__(self) -> Iterator[AgentMessage]:
        return (self[i] for i in range(self._count))

    def __repr__(self) -> str:
        return f"<StoredMessages of {self._count}>"


def initial_message(start: AgentSessionStartInput) -> str | None:
    """Return the message that begins a session's first turn; None when it is blank."""
    text = clean_text(start.initial_message or "")
    return text if text.strip() else None


def interrupt_id(record: AgentToolCall) -> str:
    """Return the ID of the question whether a tool call may run; it differs in each turn."""
    return f"{record.turn_id}.{record.tool_call_id}"


def stored_message(message: FrameworkMessage, sequence: int, turn_id: str) -> AgentMessage:
    """Return a runner's message in its stored form.

    Raises:
        EncodingError: Its ``framework_item`` is not JSON.
    """
    return AgentMessage(
        sequence=sequence,
        role=MessageRole(message.role),
        framework_item=json_value(message.framework_item, "framework_item"),
        text=None if message.text is None else clean_text(message.text),
        turn_id=turn_id,
    )


def checked_user_message(runner: AgentFrameworkRunner, text: str) -> FrameworkMessage:
    """Return the runner's form of a user message.

    Raises:
        RunnerContractError: It is no `FrameworkMessage`, or has another role.
    """
    message = runner.build_user_message(text)
    _require_message(message, "build_user_message")
    if message.role != MessageRole.USER:
        raise RunnerContractError(
            f"build_user_message must return role 'user', not {str(message.role)!r}."
        )
    return message


def checked_outcome(outcome: object, recorded_ids: Mapping[str, Any]) -> AgentTurnOutcome:
    """Return what ``run_model_step`` returned, once it keeps the contract.

    Args:
        outcome: What the runner returned.
        recorded_ids: The tool call IDs that this turn has used already.

    Raises:
        RunnerContractError: It names what is wrong.
    """
    if isinstance(outcome, TurnCompleted):
        _require_sequence(outcome.new_messages, "TurnCompleted.new_messages")
        for message in outcome.new_messages:
            _require_message(message, "TurnCompleted.new_messages")
    elif isinstance(outcome, ToolCallsRequested):
        _require_calls(outcome, recorded_ids)
    else:
        raise RunnerContractError(
            "run_model_step must return TurnCompleted or ToolCallsRequested, "
            f"not {type(outcome).__name__}."
        )
    _require_usage(outcome.usage)
    return outcome


def checked_result(result: Any) -> Any:
    """Return the JSON value that ``execute_deferred_tool_call`` returned.

    Raises:
        RunnerContractError: It is no `ToolExecutionResult`.
        EncodingError: Its output is not JSON.
    """
    if not isinstance(result, ToolExecutionResult):
        raise RunnerContractError(
            "execute_deferred_tool_call must return ToolExecutionResult, "
            f"not {type(result).__name__}."
        )
    return json_value(result.output, "tool output")


def _require_sequence(value: Any, where: str) -> None:
    # It is read more than once, so a generator would be empty by then.
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RunnerContractError(f"{where} must be a list or tuple, not {type(value).__name__}.")


def _require_usage(usage: Any) -> None:
    if not isinstance(usage, AgentUsage):
        raise RunnerContractError(f"usage must be AgentUsage, not {type(usage).__name__}.")
    for name in usage.__struct_fields__:
        count = getattr(usage, name)
        if type(count) is not int or not 0 <= count <= _LARGEST_COUNT:
            raise RunnerContractError(
                f"usage.{name} must be a whole number from 0 up, not {count!r}."
            )


def _require_message(message: Any, where: str) -> None:
    if not isinstance(message, FrameworkMessage):
        raise RunnerContractError(
            f"{where} must hold FrameworkMessage, not {type(message).__name__}."
        )
    if message.role not in MessageRole.__members__.values():
        raise RunnerContractError(f"{where} holds the unknown role {message.role!r}.")
    if not isinstance(message.text, str | None):
        raise RunnerContractError(f"{where} holds a text that is {type(message.text).__name__}.")


def _require_calls(outcome: ToolCallsRequested, recorded_ids: Mapping[str, Any]) -> None:
    state = outcome.framework_run_state
    if not isinstance(state, str) or not state:
        raise RunnerContractError("ToolCallsRequested.framework_run_state must be non-empty text.")
    _require_sequence(outcome.tool_calls, "ToolCallsRequested.tool_calls")
    if not outcome.tool_calls:
        raise RunnerContractError(
            "ToolCallsRequested has no tool calls; return TurnCompleted for a final answer."
        )
    seen = set(recorded_ids)
    for call in outcome.tool_calls:
        _require_call(call)
        if call.tool_call_id in seen:
            raise RunnerContractError(
                f"The tool call ID {call.tool_call_id!r} is used twice in one turn. "
                "Make it unique in the adapter, for example with a counter."
            )
        seen.add(call.tool_call_id)


def _require_call(call: Any) -> None:
    if not isinstance(call, DeferredToolCall):
        raise RunnerContractError(f"tool_calls must hold DeferredToolCall, not {call!r}.")
    call_id = call.tool_call_id
    if not isinstance(call_id, str) or not call_id.strip() or "/" in call_id:
        raise RunnerContractError(
            f"The tool call ID {call_id!r} of {call.tool_name!r} is empty or holds a '/'."
        )
    if call_id != clean_text(call_id):
        raise RunnerContractError(f"The tool call ID {call_id!r} holds a lone surrogate.")
    if not isinstance(call.tool_name, str) or not call.tool_name:
        raise RunnerContractError(f"The tool call {call_id!r} names no tool.")
    if not isinstance(call.policy, ToolPolicy):
        raise RunnerContractError(
            f"The policy of tool call {call_id!r} must be ToolPolicy; "
            "get it from turn.resolve_tool_policy."
        )
    _require_policy(call.policy, call_id)


def _require_policy(policy: ToolPolicy, call_id: str) -> None:
    if not isinstance(policy.effect, ToolEffect):
        raise RunnerContractError(
            f"The effect of tool call {call_id!r} must be a ToolEffect, not {policy.effect!r}."
        )
    if not isinstance(policy.requires_approval, bool | None):
        raise RunnerContractError(
            f"requires_approval of tool call {call_id!r} must be True, False or None, "
            f"not {policy.requires_approval!r}."
        )
