"""What a scripted provider answers, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, json

__all__ = ("Call", "Cut", "Fault", "Reply", "Slow", "Trouble", "pieces")

_PIECE = 8


class Call(Struct, frozen=True):
    """One tool call that the model asks for.

    Attributes:
        name: The tool.
        arguments: A JSON value; text is sent as it is, so that it may be malformed.
        call_id: The provider's ID; None for one of its own. It may be empty or used twice.
    """

    name: str
    arguments: Any = {}
    call_id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as they are sent."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.encode(self.arguments).decode()


class Reply(Struct, frozen=True):
    """One answer of the model: reasoning, text and tool calls, in this order.

    Attributes:
        text: What it says; empty for nothing.
        calls: What it asks for.
        reasoning: What it thinks aloud; Chat Completions have no place for it.
        input_tokens: What the request cost, cached tokens included.
        output_tokens: What the answer cost, reasoning included.
        cached_tokens: Of the input.
        reasoning_tokens: Of the output.
        finish: The provider's own word for why it stopped; None for the usual one.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    reasoning: str = ""
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    finish: str | None = None


class Fault(Struct, frozen=True):
    """The provider refuses a request.

    Attributes:
        status: The HTTP status.
        message: What its error says.
        retry_after: The ``Retry-After`` header, in seconds; None for none.
    """

    status: int
    message: str = "scripted fault"
    retry_after: float | None = None


class Cut(Struct, frozen=True):
    """The connection breaks: after so many events of a stream, or half-way through a body."""

    after: int = 2


class Slow(Struct, frozen=True):
    """Every event of a stream, or the one body, comes only after so many seconds."""

    seconds: float


Trouble = Fault | Cut | Slow
"""What may happen to one request."""


def pieces(text: str) -> list[str]:
    """Return a text as the pieces in which it is streamed."""
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
