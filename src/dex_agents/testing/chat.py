"""The chat format in which the kit's runners keep their framework items and run state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dex_agents.encoding import encode, json_value
from dex_agents.records import FrameworkMessage, MessageRole

__all__ = ("ChatItem", "chat_messages", "read_run_state", "user_message", "write_run_state")

ChatItem = dict[str, Any]
"""One message of a chat: ``role``, ``content`` and, by role, tool calls or their ID."""

_decoder = msgspec.json.Decoder(list[ChatItem])


def user_message(text: str) -> FrameworkMessage:
    """Return the chat form of a user message."""
    return FrameworkMessage(MessageRole.USER, {"role": "user", "content": text}, text)


def chat_messages(items: Iterable[ChatItem]) -> list[FrameworkMessage]:
    """Return chat items as the messages of a turn."""
    return [
        FrameworkMessage(MessageRole(item["role"]), item, item.get("content")) for item in items
    ]


def write_run_state(items: Sequence[ChatItem]) -> str:
    """Return the run state of a turn: the JSON of its items so far."""
    name = "framework_run_state"
    return encode(json_value(list(items), name), name).decode()


def read_run_state(run_state: str | None) -> list[ChatItem] | None:
    """Return the items of a run state, or None when it is not of this format."""
    if run_state is None:
        return []
    try:
        return _decoder.decode(run_state)
    except msgspec.DecodeError:
        return None
