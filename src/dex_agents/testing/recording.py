"""Recorded conversations in the chat format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from dex_agents.testing.chat import ChatItem
from dex_agents.testing.errors import BrokenLineError, RecordingError
from dex_agents.testing.replay import Replay, answered

__all__ = ("Recording",)


class _ToolCall(Struct):
    id: str
    name: str
    arguments: Any


class _User(Struct, tag="user", tag_field="role", forbid_unknown_fields=True):
    content: str


class _Assistant(Struct, tag="assistant", tag_field="role"):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Tool(Struct, tag="tool", tag_field="role"):
    tool_call_id: str
    content: str


class _Line(Struct):
    id: str
    messages: list[ChatItem]


_lines = msgspec.json.Decoder(_Line)


class Recording(Struct, frozen=True):
    """One recorded conversation.

    Attributes:
        id: The session ID under which it is replayed.
        messages: Chat messages: ``user`` with ``content``; ``assistant`` with
            ``content``, ``tool_calls`` (``id``, ``name``, ``arguments``) or both;
            ``tool`` with ``tool_call_id`` and ``content``. Other keys are kept,
            except on user messages, which have none.

    Raises:
        RecordingError: The messages are no conversation; the error names the message.
    """

    id: str
    messages: Sequence[ChatItem]

    def __post_init__(self) -> None:
        for number, message in enumerate(self.messages, start=1):
            try:
                msgspec.convert(message, _User | _Assistant | _Tool)
            except msgspec.ValidationError as error:
                raise RecordingError(self.id, f"message {number}: {error}") from error
        Replay(self.id, self.messages)

    @classmethod
    def read_file(cls, path: str | Path) -> list[Self]:
        """Return the recordings of a JSON lines file; blank lines are skipped.

        Raises:
            BrokenLineError: It names the file and the line.
        """
        recordings = []
        for number, line in enumerate(Path(path).read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                read = _lines.decode(line)
                recordings.append(cls(read.id, read.messages))
            except (msgspec.DecodeError, RecordingError) as error:
                raise BrokenLineError(path, number, str(error)) from error
        return recordings

    @property
    def replayed_messages(self) -> Sequence[ChatItem]:
        """The messages that a replay stores: all but an end that the model did not answer.

        A turn that the recording ends on a tool message is replayed: it
        completes without a final answer.
        """
        return answered(self.messages)

    @property
    def user_messages(self) -> list[str]:
        """What the user says in the replay, one text a turn; not what remained unanswered."""
        return [each["content"] for each in self.replayed_messages if each["role"] == "user"]
