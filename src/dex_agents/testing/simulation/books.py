"""What is known of a session from outside: its durable rows, read back after every commit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Raw, Struct, field

from dex_agents.encoding import decode
from dex_agents.machine import (
    Changes,
    Execution,
    FlowHeader,
    FlowState,
    FlowStatus,
    HistoryEntry,
    Phase,
)
from dex_agents.records import (
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentState,
    AgentToolCall,
    AgentUsage,
    AgentUserMessage,
    ToolCallCompleted,
)
from dex_agents.session.persistence import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
)

__all__ = ("Books", "Observed")

_UNKNOWN = AgentState()


class Observed(Struct):
    """One commit: what it changed, and what was there before.

    Attributes:
        now: The latest time that the process which wrote it has ever seen on its clock.
        messages: New and, if ever, overwritten ones: what was there, and what is.
        calls: Changed records of tool calls, by ID.
        results, answers, queued: What was published, whether consumed at once or not.
    """

    now: float
    header_before: FlowHeader
    header: FlowHeader
    state_before: AgentState
    pending_before: list[AgentInterrupt]
    calls_before: dict[str, AgentToolCall]
    executions: dict[str, tuple[Execution | None, Execution | None]] = field(default_factory=dict)
    messages: dict[int, tuple[Raw | None, AgentMessage | None]] = field(default_factory=dict)
    calls: dict[str, tuple[AgentToolCall | None, AgentToolCall | None]] = field(
        default_factory=dict
    )
    results: list[ToolCallCompleted] = field(default_factory=list)
    answers: list[AgentInterruptResolution] = field(default_factory=list)
    queued: list[AgentUserMessage] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)


class Books:
    """One session, as its commits have made it, and what the agent and its users did.

    Attributes:
        accepted: User messages that a client was told are stored.
        uncertain: User messages of which a client was told nothing, or of an error.
        handed_out: The attempts that a durable commit has begun, as
            ``(execution, phase, attempt)``.
        begun: Those of which a handler has begun.
        costs: What each attempt of a model call returned.
        keys: How often a tool's body ran, by idempotency key.
        owners: The tool call that each idempotency key was first seen with.
    """

    def __init__(self, flow_id: str) -> None:
        self.flow_id = flow_id
        self.rows = FlowState.absent(flow_id)
        self.attributes: dict[str, Raw | None] = {}
        self.state: AgentState = _UNKNOWN
        self.usage = AgentUsage()
        self.pending: list[AgentInterrupt] = []
        self.calls: dict[str, AgentToolCall] = {}
        self.texts: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.uncertain: set[str] = set()
        self.handed_out: set[tuple[str, Phase, int]] = set()
        self.begun: set[tuple[str, Phase, int]] = set()
        self.costs: dict[tuple[str, int], AgentUsage] = {}
        self.spent = AgentUsage()
        self.keys: Counter[str] = Counter()
        self.owners: dict[str, tuple[str, str]] = {}
        self.published: Counter[tuple[str, str]] = Counter()
        self.answered: dict[str, AgentInterruptResolution] = {}
        self.history_length = 0

    def take(self, changes: Changes, now: float) -> Observed:
        """Bring the books up to date, and return what has changed."""
        seen = Observed(
            now,
            self.rows.header,
            changes.header,
            self.state,
            self.pending,
            dict(self.calls),
            history=changes.history,
        )
        self._read_published(changes, seen)
        for execution_id, after in changes.executions.items():
            seen.executions[execution_id] = (self.rows.executions.get(execution_id), after)
            if after is not None and after.is_running:
                self.handed_out.add((after.id, after.phase, after.attempt))
        self.rows.apply(changes)
        for name, raw in changes.attributes.items():
            self._read_attribute(name, raw, seen)
        return seen

    def _read_attribute(self, name: str, raw: Raw | None, seen: Observed) -> None:
        before = self.attributes.get(name)
        self.attributes[name] = raw
        prefix, _, key = name.partition("/")
        if name == AGENT_STATE.name:
            self.state = _read(raw, AgentState) or _UNKNOWN
        elif name == AGENT_USAGE.name:
            self.usage = _read(raw, AgentUsage) or AgentUsage()
        elif name == PENDING_INTERRUPTS.name:
            self.pending = _read(raw, list[AgentInterrupt]) or []
        elif prefix == AGENT_MESSAGES.name:
            message = _read(raw, AgentMessage)
            seen.messages[int(key)] = (before, message)
            if message is not None and message.text is not None:
                self.texts[message.text] += 1
        elif prefix == AGENT_TOOL_CALLS.name:
            after = _read(raw, AgentToolCall)
            seen.calls[key] = (self.calls.get(key), after)
            if after is None:
                self.calls.pop(key, None)
            else:
                self.calls[key] = after

    def _read_published(self, changes: Changes, seen: Observed) -> None:
        """Find what was published: it is queued now, or was consumed in the same commit."""
        first = self.rows.header.next_message
        published = [
            (channel, raw)
            for (channel, number), raw in changes.messages.items()
            if raw is not None and number >= first
        ]
        taken = Counter(channel for (channel, _), raw in changes.messages.items() if raw is None)
        for execution_id, after in changes.executions.items():
            before = self.rows.executions.get(execution_id)
            if after is None or not after.consumed or (before is not None and before.consumed):
                continue
            for each in after.consumed:
                if taken[each.channel]:
                    taken[each.channel] -= 1  # it had been queued before
                else:
                    published.append((each.channel, each.payload))
        for channel, raw in published:
            if channel == TOOL_CALL_RESULTS.name:
                seen.results.append(decode(bytes(raw), ToolCallCompleted, channel))
            elif channel == QUEUED_USER_MESSAGES.name:
                seen.queued.append(decode(bytes(raw), AgentUserMessage, channel))
            elif channel.startswith(INTERRUPT_RESOLUTIONS.name):
                seen.answers.append(decode(bytes(raw), AgentInterruptResolution, channel))

    @property
    def is_at_rest(self) -> bool:
        """Whether it is closed, or waits for its user and nothing else."""
        rows = self.rows
        if rows.header.status is not FlowStatus.RUNNING:
            return True
        at = [*rows.executions.values()]
        return (
            len(at) == 1
            and at[0].step == "AwaitUserMessage"
            and at[0].phase is Phase.WAITING
            and not rows.queues
        )

    def queued_texts(self) -> list[str]:
        """Return the user messages that wait, or that a Step has taken and not dealt with."""
        name = QUEUED_USER_MESSAGES.name
        waiting = [*self.rows.queues.get(name, {}).values()]
        for execution in self.rows.executions.values():
            waiting += [each.payload for each in execution.consumed if each.channel == name]
        return [decode(bytes(raw), AgentUserMessage, name).text for raw in waiting]


def _read(raw: Raw | None, tp: Any) -> Any:
    return None if raw is None else decode(bytes(raw), tp, "a row")
