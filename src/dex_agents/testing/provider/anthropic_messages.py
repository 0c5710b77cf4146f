"""Anthropic's Messages on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import json

from dex_agents.testing.provider.script import Reply, pieces

__all__ = ("PATH", "answered", "body", "events")

PATH = "/v1/messages"


def answered(request: dict[str, Any]) -> int:
    """Return how many answers of the model a request holds."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def body(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """Return a whole answer.

    Raises:
        msgspec.DecodeError: Arguments are malformed; this API sends such only in a stream.
    """
    content = [
        {**block, "input": json.decode(block["input"])} if block["type"] == "tool_use" else block
        for block in _content(reply, number)
    ]
    return {**_head(request, reply, number), "content": content, "stop_reason": _finish(reply)}


def events(
    request: dict[str, Any], reply: Reply, number: int
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the events of a streamed answer."""

    def event(kind: str, **data: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, **data}

    yield event("message_start", message=_head(request, reply, number))
    for index, block in enumerate(_content(reply, number)):
        key, kind = _STREAMED[block["type"]]
        empty: Any = {} if block["type"] == "tool_use" else ""
        own = "input" if block["type"] == "tool_use" else key
        yield event("content_block_start", index=index, content_block={**block, own: empty})
        for piece in pieces(block[own]):
            yield event("content_block_delta", index=index, delta={"type": kind, key: piece})
        if block["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": _finish(reply), "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": reply.output_tokens})
    yield event("message_stop")


_STREAMED = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_use": ("partial_json", "input_json_delta"),
}
"""By kind of block: under which key its pieces come, and what a piece is called."""


def _content(reply: Reply, number: int) -> list[dict[str, Any]]:
    """Return the blocks; the input of a tool use is text as yet."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append(
            {"type": "thinking", "thinking": reply.reasoning, "signature": f"signed-{number}"}
        )
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for index, call in enumerate(reply.calls):
        call_id = call.call_id if call.call_id is not None else f"toolu_{number}_{index}"
        content.append({"type": "tool_use", "id": call_id, "name": call.name, "input": call.text})
    return content


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_use" if reply.calls else "end_turn")


def _head(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.input_tokens - reply.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.cached_tokens,
            "output_tokens": reply.output_tokens,
        },
    }
