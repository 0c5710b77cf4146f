"""Plays the user of recorded conversations, and goes on where an earlier run has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from msgspec import Struct

from dex_agents.backend import Backend
from dex_agents.client import AgentSessionClient
from dex_agents.errors import FlowAlreadyStartedError, FlowNotActiveError
from dex_agents.records import (
    AgentEventType,
    AgentMessage,
    AgentSnapshot,
    AgentState,
    AgentStatus,
)
from dex_agents.table import FlowTable
from dex_agents.testing import Recording, compare_recording

__all__ = ("Driver", "SessionReport")

_ENDS = (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED)
_ASK_AGAIN_SECONDS = 1.0
"""Events are best effort: when none comes, the session itself is asked."""
_SETTLING_SECONDS = 0.05
_PAGE = 200


class SessionReport(Struct, frozen=True):
    """What became of one recording."""

    session_id: str
    turns: int
    messages: int
    tool_calls: int
    differences: list[str]


class Driver:
    """Sends each recording's user messages, one after the other as turns end.

    Args:
        backend: Open.
        table: The flow.
        allow_unknown: Whether a tool result may say that its outcome is unknown.
        advance: Told how many turns have ended.
    """

    def __init__(
        self,
        backend: Backend,
        table: FlowTable,
        *,
        allow_unknown: bool,
        advance: Callable[[int], None],
    ) -> None:
        self._client = AgentSessionClient(backend, table)
        self._flow_type = table.flow_type
        self._allow_unknown = allow_unknown
        self._advance = advance

    async def drive_all(
        self, recordings: Sequence[Recording], concurrency: int
    ) -> list[SessionReport]:
        """Drive every recording to its end, so many at once."""
        slots = asyncio.Semaphore(concurrency)

        async def drive(recording: Recording) -> SessionReport:
            async with slots:
                return await self.drive(recording)

        tasks = [asyncio.create_task(drive(each)) for each in recordings]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def drive(self, recording: Recording) -> SessionReport:
        """Drive one recording to its end, or to where its session cannot follow it."""
        messages = recording.user_messages
        problem = await self._start(recording.id, messages)
        if problem is None:
            problem = await self._talk(recording.id, messages)
        return await self._report(recording, problem)

    async def _start(self, session: str, messages: Sequence[str]) -> str | None:
        """Start the session; one that exists goes on if it is one of ours."""
        try:
            await self._client.start_session(session, messages[0] if messages else None)
        except FlowAlreadyStartedError:
            found = await self._client.describe_session(session)
            if found.flow_type != self._flow_type:
                return f"the session is of flow type {found.flow_type}, not {self._flow_type}"
        return None

    async def _talk(self, session: str, messages: Sequence[str]) -> str | None:
        """Send what is left to send. Return what went wrong, or None."""
        state, position = await self._settled(session), None
        if isinstance(state, AgentState):
            self._advance(min(state.turn_number, len(messages)))
        while isinstance(state, AgentState):
            if state.last_turn_error is not None:
                return f"turn {state.turn_number} failed: {state.last_turn_error}"
            if state.turn_number >= len(messages):
                return None
            try:
                await self._client.send_user_message(session, messages[state.turn_number])
            except FlowNotActiveError as error:
                return str(error)
            state, position = await self._turn_end(session, state.turn_number + 1, position)
            self._advance(1)
        return state

    async def _settled(self, session: str) -> AgentState | str:
        """Return the state once no message waits and no turn runs, or why there will be none."""
        while True:
            snapshot = await self._client.get_agent_snapshot(session)
            if _is_waiting(snapshot) and await self._has_begun_all(session):
                assert snapshot.state is not None  # _is_waiting has looked
                again = (await self._client.get_agent_snapshot(session)).state
                if again == snapshot.state:
                    return again
            elif closed := await self._closed(session):
                return closed
            await asyncio.sleep(_SETTLING_SECONDS)

    async def _has_begun_all(self, session: str) -> bool:
        """Return whether every message that was sent has begun its turn.

        A message that a Step has taken, and that has not begun its turn, is in
        neither the queue nor the state: only the history knows of it.
        """
        history = await self._client.read_history(session)
        sent = [each for each in history if each.step_type == "send_user_message"]
        begun = [
            each
            for each in history
            if each.step_type == "AwaitUserMessage" and each.event_type == "step_execute_completed"
        ]
        return len(sent) == len(begun)

    async def _turn_end(
        self, session: str, number: int, position: str | None
    ) -> tuple[AgentState | str, str | None]:
        """Wait for the end of a turn. Return the state, and where its events ended."""
        while True:
            position = await self._next_end(session, number, position)
            snapshot = await self._client.get_agent_snapshot(session)
            state = snapshot.state
            if state is not None and state.turn_number >= number and _is_waiting(snapshot):
                return state, position
            if closed := await self._closed(session):
                return closed, position

    async def _next_end(self, session: str, number: int, position: str | None) -> str | None:
        try:
            async with (
                asyncio.timeout(_ASK_AGAIN_SECONDS),
                aclosing(self._client.follow_events(session, position=position)) as events,
            ):
                async for each in events:
                    position = each.position
                    if each.event.type in _ENDS and each.event.turn_id == f"turn-{number}":
                        break
        except TimeoutError:
            pass
        return position

    async def _closed(self, session: str) -> str | None:
        summary = await self._client.describe_session(session)
        return None if summary.status == "running" else f"the session is {summary.status}"

    async def _report(self, recording: Recording, problem: str | None) -> SessionReport:
        messages = await self._messages(recording.id)
        differences = compare_recording(recording, messages, allow_unknown=self._allow_unknown)
        return SessionReport(
            session_id=recording.id,
            turns=sum(each.role == "user" for each in messages),
            messages=len(messages),
            tool_calls=sum(_tool_calls(each) for each in messages),
            differences=[problem, *differences] if problem is not None else differences,
        )

    async def _messages(self, session: str) -> list[AgentMessage]:
        messages: list[AgentMessage] = []
        after: int | None = 0
        while after is not None:
            page = await self._client.list_agent_messages(
                session, after_sequence=after, limit=_PAGE
            )
            messages += page.messages
            after = page.next_after_sequence
        return messages


def _is_waiting(snapshot: AgentSnapshot) -> bool:
    state = snapshot.state
    return (
        state is not None
        and state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
        and not snapshot.queued_message_count
    )


def _tool_calls(message: AgentMessage) -> int:
    item = message.framework_item
    return len(item.get("tool_calls") or ()) if isinstance(item, dict) else 0
