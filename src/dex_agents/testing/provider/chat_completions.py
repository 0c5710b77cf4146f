"""OpenAI's Chat Completions on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dex_agents.testing.provider.script import Reply, pieces

__all__ = ("PATH", "answered", "body", "events")

PATH = "/v1/chat/completions"


def answered(request: dict[str, Any]) -> int:
    """Return how many answers of the model a request holds."""
    return sum(message.get("role") == "assistant" for message in request["messages"])


def body(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """Return a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = _calls(reply, number)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {
        **_head(request, number, "chat.completion"),
        "choices": [choice],
        "usage": _usage(reply),
    }


def events(
    request: dict[str, Any], reply: Reply, number: int
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the events of a streamed answer; ``[DONE]`` follows them."""
    head = _head(request, number, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(reply.text):
        yield chunk({"content": piece})
    for index, call in enumerate(_calls(reply, number)):
        function = call["function"]
        begun = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(reply))
    yield None, {**head, "choices": [], "usage": _usage(reply)}


def _calls(reply: Reply, number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": call.call_id if call.call_id is not None else f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.text},
        }
        for index, call in enumerate(reply.calls)
    ]


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _head(request: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": kind,
        "created": 1_700_000_000,
        "model": request["model"],
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }
