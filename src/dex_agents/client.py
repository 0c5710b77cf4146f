"""The client of agent sessions: the same on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from msgspec import Struct

from dex_agents.backend import Backend, CompiledFlow, FlowSummary, StepHistoryEntry, StreamMessage
from dex_agents.encoding import clean_text
from dex_agents.errors import RpcLockConflictError
from dex_agents.records import (
    AgentEvent,
    AgentMessagesPage,
    AgentSessionStartInput,
    AgentSnapshot,
    AgentUserMessage,
    ListAgentMessagesRequest,
    ResolveInterruptRequest,
)
from dex_agents.session import client_table
from dex_agents.table import FlowTable
from dex_agents.telemetry.carrier import current_carrier

__all__ = ("AgentSessionClient", "FollowedEvent")

T = TypeVar("T")

_LOCK_PATIENCE_SECONDS = 5.0
_LOCK_RETRY_SECONDS = 0.02


class FollowedEvent(Struct, frozen=True):
    """One event of a session, as a reader should apply it.

    Attributes:
        position: Follow from here to go on behind it.
        event: The event.
        supersedes: An earlier attempt of the same Step execution wrote events
            before: drop what was shown of them first.
    """

    position: str
    event: AgentEvent
    supersedes: bool = False


class AgentSessionClient:
    """Starts sessions, talks to them and watches them.

    A client needs no worker: what it wrote is durable when the call returns.

    Args:
        backend: An open backend; of a compiled flow the engine's own client, such as
            ``dex.AsyncClient``.
        flow: The session's table, just its flow type, or a compiled flow, such as
            `dex_agents.AgentSessionFlow`.
    """

    def __init__(self, backend: Backend | Any, flow: FlowTable | CompiledFlow | str) -> None:
        if isinstance(flow, FlowTable):
            self._backend, self._table = backend, flow
        elif isinstance(flow, str):
            self._backend, self._table = backend, client_table(flow)
        else:
            self._backend, self._table = flow.backend_for(backend), flow.table

    async def start_session(self, session_id: str, initial_message: str | None = None) -> None:
        """Start a session; a non-blank first message begins its first turn.

        Args:
            session_id: The flow ID. No two sessions of a store may share one. Not
                blank, and without ``/``, ``$``, ``:`` and control characters.
            initial_message: The first user message, or None to wait for one.

        Raises:
            FlowAlreadyStartedError: The ID is taken, by a running or closed session.
            FlowIdError: The ID cannot be one.
        """
        text = None if initial_message is None else clean_text(initial_message)
        start = AgentSessionStartInput(text, current_carrier())
        await self._backend.start_flow(self._table, session_id, start)

    async def send_user_message(self, session_id: str, text: str) -> bool:
        """Queue a user message for the session's next turn.

        Returns:
            False, and nothing is queued, when the text is blank.

        Raises:
            FlowNotFoundError: There is no such session.
            FlowNotActiveError: The session is closed.
        """
        message = AgentUserMessage(clean_text(text), current_carrier())
        return bool(await self._invoke(session_id, "send_user_message", message))

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        rejection_message: str | None = None,
    ) -> bool:
        """Answer a pending interrupt.

        Args:
            session_id: The session.
            interrupt_id: From the snapshot's ``pending_interrupts``.
            approved: Whether the tool call may run.
            rejection_message: What the model reads when it may not. Dropped on approval.

        Returns:
            False when the interrupt is not pending or its deadline has passed.

        Raises:
            FlowNotFoundError: There is no such session.
            FlowNotActiveError: The session is closed.
            RpcLockConflictError: A Step held the interrupts for 5 seconds.
        """
        message = None if rejection_message is None else clean_text(rejection_message)
        request = ResolveInterruptRequest(interrupt_id, approved, message, current_carrier())
        return bool(await self._invoke(session_id, "resolve_interrupt", request))

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """Return what is needed to draw a session, closed ones too.

        Raises:
            FlowNotFoundError: There is no such session.
        """
        return await self._invoke(session_id, "get_agent_snapshot", None)  # type: ignore[no-any-return]

    async def list_agent_messages(
        self, session_id: str, *, after_sequence: int = 0, limit: int = 50
    ) -> AgentMessagesPage:
        """Return stored messages behind a sequence, oldest first.

        Args:
            session_id: The session.
            after_sequence: 0 for the first page, then ``next_after_sequence``.
            limit: How many; clamped to 1..200.

        Raises:
            FlowNotFoundError: There is no such session.
        """
        request = ListAgentMessagesRequest(after_sequence, limit)
        return await self._invoke(session_id, "list_agent_messages", request)  # type: ignore[no-any-return]

    async def stop_session(self, session_id: str, reason: str = "") -> None:
        """Stop a session for good. It runs nothing more and stays readable.

        Raises:
            FlowNotFoundError: There is no such session.
            FlowNotActiveError: It is closed already.
        """
        await self._backend.stop_flow(session_id, clean_text(reason))

    async def describe_session(self, session_id: str) -> FlowSummary:
        """Return a session's flow type and status.

        Raises:
            FlowNotFoundError: There is no such session.
        """
        return await self._backend.describe_flow(session_id)

    async def read_history(self, session_id: str) -> Sequence[StepHistoryEntry]:
        """Return every Step that ended, with its attempts, oldest first.

        Raises:
            FlowNotFoundError: There is no such session.
        """
        return await self._backend.read_history(session_id)

    async def follow_events(
        self, session_id: str, *, position: str | None = None, follow: bool = True
    ) -> AsyncGenerator[FollowedEvent, None]:
        """Yield a session's events, without those of attempts that were superseded.

        Of one Step execution only the highest attempt seen counts: late events
        of a lower one are left out, and the first event of a higher one says
        that it supersedes what came before.

        Args:
            session_id: The session.
            position: Of the last event that was seen, or None for all that are kept.
            follow: Whether to wait for more until the session is closed.

        Raises:
            FlowNotFoundError: There is no such session.
            StreamPositionError: The position was never given out.
        """
        highest: dict[str, int] = {}
        messages = self._backend.read_stream(
            self._table, session_id, "AgentEvents", position, follow=follow
        )
        async with aclosing(messages):
            async for message in messages:
                event: AgentEvent = message.value
                seen = highest.get(event.step_execution_id, event.attempt)
                if event.attempt > 1 and position and event.step_execution_id not in highest:
                    seen = await self._shown_attempt(session_id, message)
                if event.attempt < seen:
                    continue
                highest[event.step_execution_id] = event.attempt
                yield FollowedEvent(message.position, event, supersedes=event.attempt > seen)

    async def _shown_attempt(self, session_id: str, message: StreamMessage) -> int:
        """Return the attempt that a reader who comes back had seen of a message's execution."""
        event: AgentEvent = message.value
        shown = 0
        earlier = self._backend.read_stream(
            self._table, session_id, "AgentEvents", None, follow=False
        )
        async with aclosing(earlier):
            async for each in earlier:
                if each.position == message.position:
                    break
                if each.value.step_execution_id == event.step_execution_id:
                    shown = max(shown, each.value.attempt)
        return shown or event.attempt

    async def _invoke(self, session_id: str, rpc: str, request: Any) -> Any:
        """Call an RPC; a lock that a Step holds is tried again for 5 seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LOCK_PATIENCE_SECONDS
        while True:
            try:
                return await self._backend.invoke_rpc(self._table, session_id, rpc, request)
            except RpcLockConflictError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_LOCK_RETRY_SECONDS)
