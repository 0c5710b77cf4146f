"""A runner that replays recorded conversations in place of a model and its tools."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from dex_agents.records import AgentToolCall, FrameworkMessage, ToolCallStatus
from dex_agents.runner import (
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    ToolCallsRequested,
    ToolExecutionResult,
    TurnCompleted,
)
from dex_agents.session import describe_tool_call_outcome
from dex_agents.testing.chat import (
    ChatItem,
    chat_messages,
    read_run_state,
    user_message,
    write_run_state,
)
from dex_agents.testing.errors import RecordingError
from dex_agents.testing.recording import Recording
from dex_agents.testing.replay import Replay

__all__ = ("RecordedRunner",)

OnToolCall: TypeAlias = Callable[[DeferredToolExecution], Awaitable[object] | object]


class RecordedRunner:
    """Replays each recording as the session whose ID is the recording's.

    Model responses and tool results come from the recording. The runner keeps
    nothing between calls: its place is the number of stored messages plus the
    number of items in the run state. A session that leaves its recording (another
    user message, a turn that failed) gets a `RecordingError` that says where.

    The stored messages are the recording's, one to one, without an end that
    the model did not answer. A tool call that did not succeed stores the
    recorded tool message with what became of the call as its ``content``.
    Where the recording ends on a tool message, the turn completes without a
    final answer.

    Args:
        recordings: With IDs that differ.
        on_tool_call: Called for every real tool call, before its result is
            returned; may be async. Tests count effects and stop workers there.

    Raises:
        RecordingError: Two recordings have one ID.
    """

    def __init__(
        self, recordings: Iterable[Recording], *, on_tool_call: OnToolCall | None = None
    ) -> None:
        self._replays: dict[str, Replay] = {}
        for each in recordings:
            if each.id in self._replays:
                raise RecordingError(each.id, "there are two of this ID.")
            self._replays[each.id] = Replay(each.id, each.messages)
        self._on_tool_call = on_tool_call

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the chat form of a user message."""
        return user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Replay the next model response.

        Raises:
            RecordingError: The session is not at a place of its recording.
        """
        replay = self._replay(turn.flow_id)
        items = _resumed(replay, turn) if turn.is_resuming else _begun(replay, turn)
        place = len(turn.messages) + len(items)
        response = replay.response_at(place)
        items += [replay.messages[each] for each in response]
        if response and (call_ids := replay.call_ids.get(response[-1])):
            return ToolCallsRequested(write_run_state(items), _calls(turn, items[-1], call_ids))
        return TurnCompleted(chat_messages(items))

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Return the recorded result of a call.

        Raises:
            RecordingError: The recording has no such call.
        """
        record = call.tool_call
        result = self._replay(call.flow_id).result(record.turn_id, record.tool_call_id)
        if self._on_tool_call is not None:
            answer = self._on_tool_call(call)
            if inspect.isawaitable(answer):
                await answer
        return ToolExecutionResult(result["content"])

    def _replay(self, flow_id: str) -> Replay:
        replay = self._replays.get(flow_id)
        if replay is None:
            raise RecordingError(flow_id, "there is none for the session of this ID.")
        return replay


def _begun(replay: Replay, turn: AgentTurnContext) -> list[ChatItem]:
    """Return no items, once the turn's user message is the recording's."""
    place = len(turn.messages)
    if place > len(replay.messages):
        problem = f"it ends after {len(replay.messages)} messages; the session has {place}."
        raise RecordingError(replay.recording_id, problem)
    expected, stored = replay.messages[place - 1], turn.messages[-1].framework_item
    if stored != expected:
        problem = f"message {place} is {expected!r}; the session has {stored!r}."
        raise RecordingError(replay.recording_id, problem)
    return []


def _resumed(replay: Replay, turn: AgentTurnContext) -> list[ChatItem]:
    """Return the turn's items so far, with the results of the calls that were running."""
    items = read_run_state(turn.framework_run_state)
    if items is None:
        raise RecordingError(replay.recording_id, "the run state is not one of this runner.")
    for place in replay.results_at(len(turn.messages) + len(items)):
        record = turn.tool_calls[replay.result_ids[place]]
        items.append(_result(replay.messages[place], record))
    return items


def _result(recorded: ChatItem, record: AgentToolCall) -> ChatItem:
    if record.status is ToolCallStatus.SUCCEEDED:
        return recorded
    return {**recorded, "content": describe_tool_call_outcome(record)}


def _calls(
    turn: AgentTurnContext, item: ChatItem, call_ids: Sequence[str]
) -> list[DeferredToolCall]:
    return [
        DeferredToolCall(
            call_id, call["name"], call["arguments"], turn.resolve_tool_policy(call["name"])
        )
        for call_id, call in zip(call_ids, item["tool_calls"], strict=True)
    ]
