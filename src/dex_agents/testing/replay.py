"""What a recording says at each place: worked out once, when the recording is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dex_agents.testing.chat import ChatItem
from dex_agents.testing.errors import RecordingError

__all__ = ("Replay", "answered")


def answered(messages: Sequence[ChatItem]) -> Sequence[ChatItem]:
    """Return a conversation without the end that nobody answered.

    That is user messages behind which the model said nothing more, and a last
    model message of whose tool calls a result is missing.
    """
    end = len(messages)
    while end and (start := _unanswered_from(messages, end)) < end:
        end = start
    return messages[:end]


def _unanswered_from(messages: Sequence[ChatItem], end: int) -> int:
    if messages[end - 1]["role"] == "user":
        return end - 1
    last = end - 1
    while last > 0 and messages[last]["role"] == "tool":
        last -= 1
    return last if len(messages[last].get("tool_calls") or ()) > end - 1 - last else end


class Replay:
    """One recording, indexed by place.

    Tool call IDs that a turn uses again are made unique as an adapter would
    make them: ``<id>.2`` for the second use. Only the session sees these; the
    framework items keep what the provider wrote.

    Attributes:
        messages: What is replayed.
        call_ids: The unique IDs of a model message's calls, by its place.
        result_ids: The unique ID that a tool message answers, by its place.

    Raises:
        RecordingError: The messages are no conversation.
    """

    def __init__(self, recording_id: str, messages: Sequence[ChatItem]) -> None:
        self.recording_id = recording_id
        self.messages = answered(messages)
        self.call_ids: dict[int, list[str]] = {}
        self.result_ids: dict[int, str] = {}
        self._results: dict[tuple[str, str], ChatItem] = {}
        self._used: set[str] = set()
        self._open: list[tuple[str, str]] = []
        self._turn = 0
        for place, message in enumerate(self.messages):
            self._index(place, message)

    def result(self, turn_id: str, tool_call_id: str) -> ChatItem:
        """Return the tool message that answers a call.

        Raises:
            RecordingError: The recording has no such call in this turn.
        """
        found = self._results.get((turn_id, tool_call_id))
        if found is None:
            raise RecordingError(self.recording_id, f"{turn_id} has no tool call {tool_call_id!r}.")
        return found

    def results_at(self, place: int) -> range:
        """Return the places of the tool messages that begin here."""
        return self._run(place, "tool")

    def response_at(self, place: int) -> range:
        """Return the places of one model response: up to its tool calls, or to the turn's end."""
        run = self._run(place, "assistant")
        asking = next((each for each in run if each in self.call_ids), None)
        return run if asking is None else range(place, asking + 1)

    def _run(self, place: int, role: str) -> range:
        end = place
        while end < len(self.messages) and self.messages[end]["role"] == role:
            end += 1
        return range(place, end)

    def _index(self, place: int, message: ChatItem) -> None:
        if message["role"] == "tool":
            self._index_result(place, message)
            return
        if self._open:
            self._fail(place, f"tool call {self._open[0][0]!r} before it has no result")
        if message["role"] == "user":
            self._index_user(place, message)
        elif not self._turn:
            self._fail(place, "a conversation begins with a user message")
        elif calls := message.get("tool_calls"):
            self._index_calls(place, calls)

    def _index_user(self, place: int, message: ChatItem) -> None:
        if not message["content"].strip():
            self._fail(place, "a session takes no blank user message")
        self._turn += 1
        self._used = set()

    def _index_calls(self, place: int, calls: Sequence[dict[str, Any]]) -> None:
        self._open = [(call["id"], self._unique(call["id"])) for call in calls]
        self.call_ids[place] = [unique for _, unique in self._open]

    def _index_result(self, place: int, message: ChatItem) -> None:
        provided = message["tool_call_id"]
        index = next((i for i, each in enumerate(self._open) if each[0] == provided), None)
        if index is None:
            self._fail(place, f"it answers {provided!r}, which nobody called")
            return
        _, unique = self._open.pop(index)
        self.result_ids[place] = unique
        self._results[f"turn-{self._turn}", unique] = message

    def _unique(self, provided: str) -> str:
        stem = provided.replace("/", "_") or "call"
        unique, use = stem, 1
        while unique in self._used:
            use += 1
            unique = f"{stem}.{use}"
        self._used.add(unique)
        return unique

    def _fail(self, place: int, problem: str) -> None:
        raise RecordingError(self.recording_id, f"message {place + 1}: {problem}.")
