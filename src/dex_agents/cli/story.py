"""Tells a session live, in lines that a person can follow."""

from __future__ import annotations

from contextlib import aclosing

from rich.text import Text

from dex_agents.cli.render import console, printable
from dex_agents.client import AgentSessionClient, FollowedEvent
from dex_agents.records import AgentEvent, AgentEventType

__all__ = ("Story",)

_INDENT = 10


class Story:
    """Prints what happens, line by line.

    Attributes:
        position: Of the last event that was told; telling goes on behind it.
        events: Every event that was told.
    """

    def __init__(self) -> None:
        self.position: str | None = None
        self.events: list[AgentEvent] = []
        self._console = console()
        self._width = min(self._console.width, 100)
        self._column = 0
        self._asked: list[str] = []

    def tell(self, who: str, text: str, style: str = "") -> None:
        """Print a line: who it is about, and what it is."""
        self._end_text()
        body = Text(printable(text), style=style)
        wrapped = body.wrap(self._console, max(self._width - _INDENT, 20))
        for number, line in enumerate(wrapped):
            head = Text(f"{who if not number else '':<{_INDENT}}", style="bold")
            self._console.print(head + line, soft_wrap=True)

    async def follow(
        self, client: AgentSessionClient, session: str, until: frozenset[AgentEventType]
    ) -> None:
        """Tell a session's events until one of these types has come."""
        async with aclosing(client.follow_events(session, position=self.position)) as events:
            async for each in events:
                self.position = each.position
                self.events.append(each.event)
                self._tell_event(each)
                if each.event.type in until:
                    self._end_text()
                    return

    def _tell_event(self, followed: FollowedEvent) -> None:
        event, payload = followed.event, followed.event.payload
        if event.type == AgentEventType.TOOL_CALL_DEFERRED:
            self._asked.append(payload["tool_name"])
            return
        if self._asked and event.type != AgentEventType.INTERRUPT_RAISED:
            asked, self._asked = self._asked, []
            self.tell("Model", f"asks for {', '.join(asked)}")
        match event.type:
            case AgentEventType.TOOL_CALL_STARTED if event.attempt > 1:
                self.tell("Tool", f"{payload['tool_name']} runs again, attempt {event.attempt}")
            case AgentEventType.TOOL_CALL_FINISHED:
                status = payload["status"].replace("_", " ")
                self.tell("Tool", f"{payload['tool_name']} {status}")
            case AgentEventType.INTERRUPT_RAISED:
                self._asked = []
                self.tell("Model", f"asks for {payload['tool_name']}, which needs your approval")
            case AgentEventType.TURN_FAILED:
                self.tell("Turn", f"failed: {payload['error']}")
            case AgentEventType.TEXT_DELTA:
                self._speak(payload["text"])

    def _speak(self, text: str) -> None:
        """Print a word of the answer as it comes."""
        word = printable(text)
        if not self._column:
            self._console.print(Text(f"{'Model':<{_INDENT}}", style="bold"), end="")
            self._column = _INDENT
        elif self._column + len(word.rstrip()) > self._width:
            self._console.print("\n" + " " * _INDENT, end="", soft_wrap=True)
            self._column = _INDENT
        self._console.print(Text(word), end="", soft_wrap=True)
        self._column += len(word)

    def _end_text(self) -> None:
        if self._column:
            self._column = 0
            self._console.print()
