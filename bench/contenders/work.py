"""The same work for everyone: a model and a tool that return at once, and count their calls.

Knows nothing of any contender, and imports nothing that their environment may lack.
"""

from __future__ import annotations

__all__ = ("PAYLOAD", "SESSIONS", "STEPS_PER_TURN", "TOOL_CALLS", "Work")

PAYLOAD = "x" * 1024
TOOL_CALLS = 3
SESSIONS = 64
STEPS_PER_TURN = 7
"""AwaitUserMessage, RunModel, three times CallTool, ResumeTurn, RunModel."""


class Work:
    """What a turn does: one model call, three tool calls, one more model call."""

    def __init__(self) -> None:
        self.model_calls = 0
        self.tool_calls = 0

    def ask(self) -> list[int]:
        """Return the tool calls that the model asks for."""
        self.model_calls += 1
        return list(range(TOOL_CALLS))

    def look(self, at: int) -> str:  # noqa: ARG002 - every call gets the same
        """Return a tool's result."""
        self.tool_calls += 1
        return PAYLOAD

    def answer(self) -> str:
        """Return the model's last word."""
        self.model_calls += 1
        return PAYLOAD

    def require(self, turns: int) -> None:
        """Raise unless so many turns were done, all of each."""
        expected = (2 * turns, TOOL_CALLS * turns)
        if (self.model_calls, self.tool_calls) != expected:
            raise RuntimeError(
                f"{turns} turns are {expected} model and tool calls, "
                f"not {self.model_calls, self.tool_calls}"
            )
