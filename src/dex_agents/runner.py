"""The contract between a session and an agent framework: three methods, called from Steps.

An adapter implements `AgentFrameworkRunner`. The session calls it from Steps,
so each call may run again after a crash or a retry: keep the runner stateless
between calls and derive everything from the arguments. The guide for authors
is ``docs/runners.md``.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from dex_agents.encoding import clean_text, json_value
from dex_agents.errors import DexAgentsError
from dex_agents.records import (
    AgentEvent,
    AgentEventType,
    AgentMessage,
    AgentToolCall,
    AgentUsage,
    FrameworkMessage,
    ToolCallStatus,
    ToolEffect,
)

__all__ = (
    "AgentEventWriter",
    "AgentFrameworkRunner",
    "AgentTurnContext",
    "AgentTurnOutcome",
    "DeferredToolCall",
    "DeferredToolExecution",
    "ModelCallDetails",
    "ToolCallsRequested",
    "ToolExecutionError",
    "ToolExecutionResult",
    "ToolPolicy",
    "TurnCompleted",
)


class ToolPolicy(Struct, frozen=True):
    """How one tool is treated.

    Attributes:
        effect: What running it twice would do.
        requires_approval: Whether a person must agree first. None uses the
            effect's default: yes for ``non_idempotent_write`` and ``unclassified``.
    """

    effect: ToolEffect
    requires_approval: bool | None = None

    @property
    def is_approval_required(self) -> bool:
        """Whether a call runs only after ``AwaitToolApproval`` approves it."""
        if self.requires_approval is None:
            return not ToolEffect(self.effect).is_retried
        return self.requires_approval


class DeferredToolCall(Struct, frozen=True):
    """One tool call that the model asked for and the framework did not run.

    Attributes:
        tool_call_id: Non-empty, without ``/``, unique within the turn.
        arguments: Any JSON value, usually an object or the model's JSON text.
        policy: From ``turn.resolve_tool_policy(tool_name, framework_effect)``.
    """

    tool_call_id: str
    tool_name: str
    arguments: Any
    policy: ToolPolicy


class TurnCompleted(Struct, frozen=True):
    """The model gave its final answer.

    Attributes:
        new_messages: Everything the turn produced after its user message, in
            order, across all of its model calls.
        usage: Of this model call only.
    """

    new_messages: Sequence[FrameworkMessage]
    usage: AgentUsage = AgentUsage()


class ToolCallsRequested(Struct, frozen=True):
    """The model asked for tools.

    Attributes:
        framework_run_state: Non-empty text from which the framework goes on
            once the tools have results.
        tool_calls: In model order; at least one.
        usage: Of this model call only.
    """

    framework_run_state: str
    tool_calls: Sequence[DeferredToolCall]
    usage: AgentUsage = AgentUsage()


AgentTurnOutcome: TypeAlias = TurnCompleted | ToolCallsRequested
"""What one model call led to."""


class ModelCallDetails(Struct, frozen=True):
    """What an adapter knows of a model call beyond its usage; for traces and metrics only.

    Attributes:
        provider: Who serves the model, such as ``"openai"`` or ``"anthropic"``.
        request_model: The model that was asked for.
        response_model: The model that answered.
        response_id: The provider's ID of the answer.
        finish_reasons: Why the model stopped, such as ``("stop",)``.
    """

    provider: str | None = None
    request_model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    finish_reasons: Sequence[str] = ()


def _unwatched(_details: ModelCallDetails, /) -> None:
    """Take details where nothing is watching."""


class ToolExecutionResult(Struct, frozen=True):
    """What a tool returned: text, or any other JSON value."""

    output: Any


class ToolExecutionError(DexAgentsError):
    """A failure that the model should see. The call is recorded ``failed`` and not retried."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = str(message)


class AgentEventWriter:
    """Writes to the session's ``AgentEvents`` Stream, tagged with turn, Step execution and attempt.

    Safe to call from any thread. Streams are best effort: what is written after
    the call returned is dropped, not raised.
    """

    def __init__(
        self,
        write: Callable[[AgentEvent], None],
        turn_id: str,
        step_execution_id: str,
        attempt: int,
    ) -> None:
        self._write = write
        self._turn_id = turn_id
        self._step_execution_id = step_execution_id
        self._attempt = attempt
        self._lock = threading.Lock()
        self._is_open = True

    def write_text_delta(self, text: str) -> None:
        """Stream a piece of the answer. One call is one message: batch very small pieces."""
        self.write_checked(AgentEventType.TEXT_DELTA, {"text": clean_text(text)})

    def write_reasoning_delta(self, text: str) -> None:
        """Stream a piece of the model's reasoning."""
        self.write_checked(AgentEventType.REASONING_DELTA, {"text": clean_text(text)})

    def write_tool_call_started(self, tool_call_id: str, tool_name: str) -> None:
        """Say that a tool runs. The tool Steps do this themselves."""
        self.write_checked(
            AgentEventType.TOOL_CALL_STARTED,
            {"tool_call_id": tool_call_id, "tool_name": clean_text(tool_name)},
        )

    def write_tool_call_finished(
        self, tool_call_id: str, tool_name: str, status: ToolCallStatus
    ) -> None:
        """Say that a tool call has its result. The tool Steps do this themselves."""
        self.write_checked(
            AgentEventType.TOOL_CALL_FINISHED,
            {
                "tool_call_id": tool_call_id,
                "tool_name": clean_text(tool_name),
                "status": str(status),
            },
        )

    def write_event(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Stream an event of any type.

        Args:
            event_type: One of `AgentEventType`, or a name of the adapter's own.
            payload: A JSON object.

        Raises:
            EncodingError: The payload is not JSON.
        """
        self.write_checked(clean_text(event_type), json_value(dict(payload), "event payload"))

    def write_checked(self, event_type: str, payload: dict[str, Any]) -> None:
        """Stream an event whose payload is known to be JSON."""
        event = AgentEvent(
            event_type, self._turn_id, self._step_execution_id, self._attempt, payload
        )
        with self._lock:
            if self._is_open:
                self._write(event)

    def close(self) -> None:
        """Drop every later write. The session calls this when the runner's call ends."""
        with self._lock:
            self._is_open = False


class ToolPolicyResolver(Protocol):
    """The policy for a tool: an explicit policy, else framework metadata, else the default."""

    def __call__(self, name: str, framework_effect: ToolEffect | None = None, /) -> ToolPolicy: ...


class AgentTurnContext(Struct, frozen=True):
    """The committed state that one model call starts from.

    Attributes:
        flow_id: The session ID.
        turn_id: ``"turn-<n>"``.
        attempt: Of this ``RunModel`` execution, from 1.
        messages: Every stored message in sequence order; the last user message
            belongs to this turn. Decoded as they are read: treat as read-only.
        framework_run_state: None for the turn's first model call, else the
            value from this turn's last ``ToolCallsRequested``.
        tool_calls: Every call of this turn by its ID. All are final.
        resolve_tool_policy: ``(name, framework_effect=None) -> ToolPolicy``.
        events: Streams to whoever watches the session.
        heartbeat: ``await turn.heartbeat()`` records liveness. The session does
            so every 20 seconds by itself.
        describe_model_call: Tells traces and metrics of the call; as often as something
            new is known, and before the call fails too.
    """

    flow_id: str
    turn_id: str
    attempt: int
    messages: Sequence[AgentMessage]
    framework_run_state: str | None
    tool_calls: Mapping[str, AgentToolCall]
    resolve_tool_policy: ToolPolicyResolver
    events: AgentEventWriter
    heartbeat: Callable[[], Awaitable[None]]
    describe_model_call: Callable[[ModelCallDetails], None] = _unwatched

    @property
    def is_resuming(self) -> bool:
        """Whether this call continues a turn whose tools have run."""
        return self.framework_run_state is not None

    def recorded_tool_call(self, tool_call_id: str) -> AgentToolCall | None:
        """Return the record of one tool call of this turn, or None."""
        return self.tool_calls.get(tool_call_id)


class DeferredToolExecution(Struct, frozen=True):
    """One tool call to run now.

    Attributes:
        flow_id: The session ID.
        tool_call: The record, approved where approval is required.
        idempotency_key: ``"<flow_id>/<turn_id>/<tool_call_id>"``, the same on every attempt.
        attempt: Of this Step execution, from 1.
        events: Streams to whoever watches the session.
        heartbeat: ``await call.heartbeat()`` records liveness.
    """

    flow_id: str
    tool_call: AgentToolCall
    idempotency_key: str
    attempt: int
    events: AgentEventWriter
    heartbeat: Callable[[], Awaitable[None]]


@runtime_checkable
class AgentFrameworkRunner(Protocol):
    """What an adapter implements for its framework."""

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the framework's form of a user message, with role ``user``.

        Also called for the note that a failed turn leaves.
        """
        ...

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Make at most one model call, and run no tool that can be deferred.

        Without run state, build the framework's input from the messages. With
        run state, restore the framework from it and give every tool call the
        result from its record. Any exception fails the attempt; ``RunModel``
        retries up to three attempts within 30 minutes.
        """
        ...

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run the real tool once and return its result.

        Calls of one model response run in parallel, so this may run
        concurrently with itself.

        Raises:
            ToolExecutionError: For a failure that the model should see. Any
                other exception is a failure of the Step.
        """
        ...
