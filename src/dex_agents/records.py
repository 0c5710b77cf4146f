"""The durable and wire records of an agent session: what is stored, sent and streamed.

All are frozen `msgspec.Struct`s in JSON. They are read tolerantly: a field that
this version does not know is ignored, a field that an older version did not
write takes its default. So fields are added, never renamed or removed, and a
new field always has a default.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

__all__ = (
    "AgentEvent",
    "AgentEventType",
    "AgentInterrupt",
    "AgentInterruptResolution",
    "AgentMessage",
    "AgentMessagesPage",
    "AgentSessionStartInput",
    "AgentSnapshot",
    "AgentState",
    "AgentStatus",
    "AgentToolCall",
    "AgentUsage",
    "AgentUserMessage",
    "ApprovalResult",
    "FrameworkMessage",
    "ListAgentMessagesRequest",
    "MessageRole",
    "ResolveInterruptRequest",
    "ToolCallCompleted",
    "ToolCallStatus",
    "ToolEffect",
    "message_sequence_key",
)


class AgentStatus(StrEnum):
    """What a session is doing."""

    WAITING_FOR_USER_MESSAGE = "waiting_for_user_message"
    RUNNING_MODEL = "running_model"
    RUNNING_TOOLS = "running_tools"


class MessageRole(StrEnum):
    """Who a stored message comes from."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


class ToolEffect(StrEnum):
    """What running a tool twice would do to the world; it decides Step, retries and approval."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"
    UNCLASSIFIED = "unclassified"

    @property
    def is_retried(self) -> bool:
        """Whether a call may run again after a crash: then it is a ``CallTool`` Step."""
        return self in (ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE)


class ToolCallStatus(StrEnum):
    """Where one tool call stands. The last four are final and never change."""

    PENDING = "pending"
    PENDING_APPROVAL = "pending_approval"
    APPROVED = "approved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"

    @property
    def is_final(self) -> bool:
        """Whether the call has its result."""
        return self in _FINAL_STATUSES


_FINAL_STATUSES = frozenset(
    {
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.REJECTED,
        ToolCallStatus.OUTCOME_UNKNOWN,
    }
)


class ApprovalResult(StrEnum):
    """How an approval ended."""

    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"


class AgentEventType(StrEnum):
    """The kinds of message on the ``AgentEvents`` Stream."""

    TURN_STARTED = "turn_started"
    TURN_COMPLETED = "turn_completed"
    TURN_FAILED = "turn_failed"
    TEXT_DELTA = "text_delta"
    REASONING_DELTA = "reasoning_delta"
    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_FINISHED = "tool_call_finished"
    TOOL_CALL_DEFERRED = "tool_call_deferred"
    INTERRUPT_RAISED = "interrupt_raised"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    USAGE_RECORDED = "usage_recorded"


class FrameworkMessage(Struct, frozen=True):
    """One message as a runner hands it over: the framework's own item, and its text.

    Attributes:
        role: Who it comes from.
        framework_item: Any JSON value. It comes back to the runner equal.
        text: What a person would read, or None.
    """

    role: MessageRole
    framework_item: Any
    text: str | None = None


class AgentMessage(Struct, frozen=True):
    """One stored message. Messages are numbered from 1 without gaps and never change."""

    sequence: int
    role: MessageRole
    framework_item: Any
    text: str | None = None
    turn_id: str = ""


class AgentUsage(Struct, frozen=True):
    """Tokens used, by one model call or by a whole session."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0

    def __add__(self, other: AgentUsage) -> AgentUsage:
        return AgentUsage(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


class AgentState(Struct, frozen=True):
    """Where a session stands.

    Attributes:
        status: What it is doing.
        turn_number: How many turns have started; the current or last one is ``turn_id``.
        message_count: How many messages are stored; the newest has this sequence.
        last_turn_error: Why the last turn failed, until a later one completes.
        trace_context: The W3C carrier of the current turn, so that a turn stays
            one trace across attempts, workers and days of waiting.
        turn_started_at: When the current or last turn began, in UTC.
        stretch_context: The W3C carrier of the span of whatever process wrote this, to
            which the next one links.
    """

    status: AgentStatus = AgentStatus.WAITING_FOR_USER_MESSAGE
    turn_number: int = 0
    message_count: int = 0
    last_turn_error: str | None = None
    trace_context: dict[str, str] = field(default_factory=dict)
    turn_started_at: datetime | None = None
    stretch_context: dict[str, str] = field(default_factory=dict)

    @property
    def turn_id(self) -> str:
        """``"turn-<n>"``, or the empty string before the first turn."""
        return f"turn-{self.turn_number}" if self.turn_number else ""


class AgentToolCall(Struct, frozen=True):
    """One tool call of the active turn, from its request to its result.

    Attributes:
        deferral_order: Its place among all calls of the turn, from 1, in model order.
        output: What the tool returned, when ``succeeded``.
        error: Why there is no output, when ``failed`` or ``outcome_unknown``.
        rejection_message: What whoever rejected it said, or that its deadline passed.
        approval: How its approval ended, when it needed one.
    """

    tool_call_id: str
    tool_name: str
    arguments: Any
    effect: ToolEffect
    requires_approval: bool
    status: ToolCallStatus
    deferral_order: int
    turn_id: str = ""
    output: Any = None
    error: str | None = None
    rejection_message: str | None = None
    approval: ApprovalResult | None = None

    @property
    def is_final(self) -> bool:
        """Whether the call has its result."""
        return self.status.is_final


class AgentInterrupt(Struct, frozen=True):
    """A question that waits for a person: may this tool call run?

    Attributes:
        interrupt_id: Names the question. It differs in each turn, so that a late
            answer never reaches a later turn's call of the same ID.
        deadline: When it expires, in UTC, or None to wait for ever.
        raised_at: When it was asked, in UTC.
    """

    interrupt_id: str
    tool_call_id: str
    tool_name: str
    arguments: Any
    turn_id: str = ""
    deadline: datetime | None = None
    raised_at: datetime | None = None


class AgentSessionStartInput(Struct, frozen=True):
    """The input of ``StartAgentSession``."""

    initial_message: str | None = None
    trace_context: dict[str, str] = field(default_factory=dict)


class AgentUserMessage(Struct, frozen=True):
    """A message from the user, as queued; ``trace_context`` is its sender's."""

    text: str
    trace_context: dict[str, str] = field(default_factory=dict)


class AgentInterruptResolution(Struct, frozen=True):
    """The answer to one interrupt, as ``resolve_interrupt`` publishes it.

    Attributes:
        trace_context: Of whoever answered.
        raised_at: When the question was asked, in UTC.
    """

    interrupt_id: str
    approved: bool
    rejection_message: str | None = None
    trace_context: dict[str, str] = field(default_factory=dict)
    raised_at: datetime | None = None


class ToolCallCompleted(Struct, frozen=True):
    """Says that one tool call has its result; each call publishes exactly one."""

    tool_call_id: str
    status: ToolCallStatus


class AgentEvent(Struct, frozen=True):
    """One message on the ``AgentEvents`` Stream.

    Attributes:
        type: An `AgentEventType`, or the name that an adapter gave its own event.
        turn_id: The turn that it belongs to.
        step_execution_id: The Step execution that wrote it, the same for all its attempts.
        attempt: The attempt that wrote it. A reader keeps only the highest
            attempt of one ``step_execution_id``.
        payload: As the contract lists for each type.
    """

    type: str
    turn_id: str
    step_execution_id: str
    attempt: int
    payload: dict[str, Any] = field(default_factory=dict)


class ResolveInterruptRequest(Struct, frozen=True):
    """The input of the ``resolve_interrupt`` RPC."""

    interrupt_id: str
    approved: bool
    rejection_message: str | None = None
    trace_context: dict[str, str] = field(default_factory=dict)


class AgentSnapshot(Struct, frozen=True):
    """What ``get_agent_snapshot`` returns: enough to draw a session.

    Attributes:
        state: None until ``StartAgentSession`` has committed.
        messages: The last 200, oldest first.
        tool_calls: The active turn's, in model order.
    """

    state: AgentState | None = None
    messages: list[AgentMessage] = field(default_factory=list)
    pending_interrupts: list[AgentInterrupt] = field(default_factory=list)
    tool_calls: list[AgentToolCall] = field(default_factory=list)
    usage: AgentUsage = field(default_factory=AgentUsage)
    queued_message_count: int = 0


class ListAgentMessagesRequest(Struct, frozen=True):
    """The input of ``list_agent_messages``: messages after a sequence, oldest first."""

    after_sequence: int = 0
    limit: int = 50


class AgentMessagesPage(Struct, frozen=True):
    """One page of messages; ``next_after_sequence`` is None on the last page."""

    messages: list[AgentMessage] = field(default_factory=list)
    next_after_sequence: int | None = None


def message_sequence_key(sequence: int) -> str:
    """Return the key of a message in ``AgentMessages``: 12 digits, so that keys sort by number."""
    return f"{sequence:012d}"
