"""OpenAI's Responses on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from dex_agents.testing.provider.script import Reply, pieces

__all__ = ("PATH", "answered", "body", "events")

PATH = "/v1/responses"

_OF_THE_MODEL = ("function_call", "reasoning")


def answered(request: dict[str, Any]) -> int:
    """Return how many answers of the model a request holds: runs of items that it made."""
    given = request["input"]
    items = given if isinstance(given, list) else []
    made = [item.get("role") == "assistant" or item.get("type") in _OF_THE_MODEL for item in items]
    return sum(now and not before for before, now in zip([False, *made], made, strict=False))


def body(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """Return a whole answer."""
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": request["model"],
        "output": _output(reply, number),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        },
    }


def events(
    request: dict[str, Any], reply: Reply, number: int
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the events of a streamed answer."""
    whole = body(request, reply, number)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    numbers = count()

    def event(kind: str, **data: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, "sequence_number": next(numbers), **data}

    yield event("response.created", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        yield event("response.output_item.added", output_index=index, item=_begun(item))
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            for piece in pieces(item["arguments"]):
                yield event(f"{kind}.delta", delta=piece, **place)
            yield event(f"{kind}.done", arguments=item["arguments"], name=item["name"], **place)
        elif item["type"] == "reasoning":
            yield from _text(event, "reasoning_summary", item["summary"][0], place)
        else:
            yield from _text(event, "output", item["content"][0], place)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=whole)


def _text(
    event: Any, kind: str, part: dict[str, Any], place: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    is_summary = kind == "reasoning_summary"
    at = {"summary_index": 0} if is_summary else {"content_index": 0}
    around = "response.reasoning_summary_part" if is_summary else "response.content_part"
    logprobs: dict[str, Any] = {} if is_summary else {"logprobs": []}
    yield event(f"{around}.added", part={**part, "text": ""}, **place, **at)
    for piece in pieces(part["text"]):
        yield event(f"response.{kind}_text.delta", delta=piece, **place, **at, **logprobs)
    yield event(f"response.{kind}_text.done", text=part["text"], **place, **at, **logprobs)
    yield event(f"{around}.done", part=part, **place, **at)


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    empty = {"arguments": "", "content": [], "summary": []}
    return {**item, **{key: empty[key] for key in empty if key in item}}


def _output(reply: Reply, number: int) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        part = {"type": "summary_text", "text": reply.reasoning}
        output.append({"id": f"rs_{number}", "type": "reasoning", "summary": [part]})
    if reply.text:
        content = {"type": "output_text", "text": reply.text, "annotations": []}
        output.append(
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        )
    for index, call in enumerate(reply.calls):
        output.append(
            {
                "id": f"fc_{number}_{index}",
                "type": "function_call",
                "call_id": call.call_id if call.call_id is not None else f"call_{number}_{index}",
                "name": call.name,
                "arguments": call.text,
                "status": "completed",
            }
        )
    return output
