"""What the machine stores of a flow, what happens to it, and what follows: all plain data.

Payloads (inputs, messages, Attribute values) are JSON that the machine passes
on without looking inside.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Raw, Struct, field

from dex_agents.table import CloseKind, RetryPolicy

__all__ = (
    "AttemptAbandoned",
    "AttemptFailed",
    "AttemptsLost",
    "Begin",
    "Cancel",
    "Changes",
    "ChannelWait",
    "Consumed",
    "Effect",
    "Event",
    "ExecuteReturned",
    "Execution",
    "ExecutionDecision",
    "ExecutionOptions",
    "Failure",
    "FlowHeader",
    "FlowStarted",
    "FlowStatus",
    "FlowStopped",
    "HistoryEntry",
    "HistoryEvent",
    "Phase",
    "Published",
    "RpcReturned",
    "ScheduledStep",
    "StepsScheduled",
    "StoredWait",
    "TimeAdvanced",
    "TimerSkipped",
    "TimerWait",
    "Transition",
    "WaitReturned",
    "Writes",
)


# State


class FlowStatus(StrEnum):
    """Whether a flow runs, and if not, how it ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class Phase(StrEnum):
    """Where one Step execution stands."""

    WAIT_FOR = "wait_for"
    WAITING = "waiting"
    EXECUTE = "execute"


class Failure(Struct, frozen=True, gc=False):
    """An error's message and its qualified class name."""

    detail: str
    error_type: str


class ExecutionOptions(Struct, frozen=True, gc=False, omit_defaults=True):
    """`dex_agents.table.StepOptions`, as stored with a movement's own options.

    Attributes:
        loads: ``"Map/"`` for a whole map, ``"Map/key"`` for one instance, and
            the bare name of a Channel.
        locks: Physical names of Attributes that ``execute`` holds.
        wait_for_locks: Those that ``wait_for`` holds.
        wait_for_retry: How ``wait_for`` is retried, if not as ``execute``.
        wait_for_proceeds: Whether ``execute`` runs all the same when ``wait_for`` has failed.
        extension: What a caller keeps with the options; the machine passes it on.
    """

    execute_timeout: float = 2 * 3600.0
    wait_for_timeout: float = 2 * 3600.0
    heartbeat_timeout: float = 60.0
    retry: RetryPolicy = RetryPolicy()
    failure_step: str | None = None
    failure_options: ExecutionOptions | None = None
    loads: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()
    wait_for_locks: tuple[str, ...] = ()
    wait_for_retry: RetryPolicy | None = None
    wait_for_proceeds: bool = False
    extension: str = ""


class TimerWait(Struct, frozen=True, gc=False, tag="timer"):
    """A Timer condition, with the time at which it fires."""

    fire_at: float


class ChannelWait(Struct, frozen=True, gc=False, tag="channel"):
    """A Channel condition, by physical name."""

    channel: str
    at_least: int = 1
    at_most: int | None = 1


class StoredWait(Struct, frozen=True, gc=False):
    """A wait as stored: conditions, and the groups of positions that are enough."""

    conditions: tuple[TimerWait | ChannelWait, ...] = ()
    candidates: tuple[tuple[int, ...], ...] = ((),)


class Consumed(Struct, frozen=True, gc=False):
    """One message that a wait took."""

    channel: str
    payload: Raw


class Execution(Struct, frozen=True, gc=False, omit_defaults=True):
    """One Step execution that has not ended.

    Attributes:
        id: ``"<Step>-<n>"``.
        order: Executions are served in this order.
        attempt: The attempt that runs, or that ran last; 0 before the first.
        is_running: Whether the attempt began and has not ended.
        due_at: Not handed out before this time.
        scheduled_at: When it became runnable.
        begun_at: When the current attempt began.
        first_attempt_at: When the first attempt of this phase began.
        chosen: The positions of the conditions that ended the wait.
        recovery: The failure that a failure route was taken for.
        wait_failed: Whether it is executed although its ``wait_for`` failed.
        last_failure: How the previous attempt failed.
        last_carrier: The W3C carrier of the previous attempt's span.
        locks: The Attributes that it holds, by physical name.
        worker: Whom the current attempt was handed to, if the caller said.
    """

    id: str
    step: str
    order: int
    input: Raw
    phase: Phase
    origin: str = ""
    attempt: int = 0
    is_running: bool = False
    due_at: float = 0.0
    scheduled_at: float = 0.0
    begun_at: float = 0.0
    first_attempt_at: float = 0.0
    wait: StoredWait | None = None
    chosen: tuple[int, ...] = ()
    consumed: tuple[Consumed, ...] = ()
    options: ExecutionOptions | None = None
    recovery: Failure | None = None
    last_failure: Failure | None = None
    last_carrier: dict[str, str] = field(default_factory=dict)
    locks: tuple[str, ...] = ()
    wait_failed: bool = False
    worker: str = ""

    def is_due(self, now: float) -> bool:
        """Whether it may be handed out, once it is runnable.

        A clock that reads a time before the last attempt began was set back, so
        that the delay cannot be told any more. A retry does not wait for it.
        """
        return self.due_at <= now or now < self.begun_at


class FlowHeader(Struct, frozen=True, gc=False, omit_defaults=True):
    """What there is once in a flow.

    Attributes:
        version: Counts the transitions; a commit names the one that it follows.
        wake_at: From when a worker is needed: 0 for now, None for not until
            somebody changes the flow.
        counters: How many executions each Step has had.
        is_completing: Whether it completes once no execution is left.
        failure: Why it failed, or the reason that it was stopped for.
    """

    flow_id: str
    flow_type: str = ""
    status: FlowStatus = FlowStatus.RUNNING
    version: int = 0
    wake_at: float | None = None
    started_at: float = 0.0
    closed_at: float | None = None
    counters: dict[str, int] = field(default_factory=dict)
    next_order: int = 1
    next_message: int = 1
    next_history: int = 1
    is_completing: bool = False
    outputs: tuple[Raw, ...] = ()
    failure: Failure | None = None


class HistoryEvent(StrEnum):
    """The kinds of line in a flow's history."""

    FLOW_STARTED = "flow_started"
    FLOW_CLOSED = "flow_closed"
    WAIT_FOR_COMPLETED = "step_wait_for_completed"
    WAIT_FOR_FAILED = "step_wait_for_failed"
    EXECUTE_COMPLETED = "step_execute_completed"
    EXECUTE_FAILED = "step_execute_failed"
    ATTEMPT_FAILED = "step_attempt_failed"
    CANCELED = "step_canceled"
    RPC_COMPLETED = "rpc_execution_completed"


class HistoryEntry(Struct, frozen=True, gc=False, omit_defaults=True):
    """One line of a flow's history. Times are seconds since 1970.

    Attributes:
        seq: Its number in the flow, from 1.
        at: When it was committed.
        event_type: A `HistoryEvent`.
        step_type: The Step, or the RPC.
        step_execution_id: The execution, where there is one.
        final_attempt: The attempt that ended so.
        origin: The execution, or ``__rpc/<name>``, that scheduled it.
        scheduled_at: When it became runnable.
        begun_at: When the attempt began.
        failure: How it failed.
        worker: Whom the attempt was handed to, if the caller said.
    """

    seq: int
    at: float
    event_type: HistoryEvent
    step_type: str = ""
    step_execution_id: str = ""
    final_attempt: int = 0
    origin: str = ""
    scheduled_at: float = 0.0
    begun_at: float = 0.0
    failure: Failure | None = None
    worker: str = ""


# Events


class Published(Struct, frozen=True, gc=False):
    """One message for a Channel."""

    channel: str
    payload: Raw


class Writes(Struct, frozen=True, gc=False):
    """What a handler changed beside its decision; None deletes an Attribute.

    Attributes:
        discarded: Queued messages to remove, by Channel and number; a gone one is passed over.
    """

    attributes: dict[str, Raw | None] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    discarded: tuple[tuple[str, int], ...] = ()


class ScheduledStep(Struct, frozen=True, gc=False):
    """A movement: the Step to schedule, with its input."""

    step: str
    input: Raw
    options: ExecutionOptions | None = None


class ExecutionDecision(Struct, frozen=True, gc=False):
    """What ``execute`` decided."""

    next_steps: tuple[ScheduledStep, ...] = ()
    close: CloseKind | None = None
    output: Raw | None = None
    cancel_steps: tuple[str, ...] = ()
    cancel_sibling_steps: tuple[str, ...] = ()


class FlowStarted(Struct, frozen=True, gc=False, tag=True):
    """Somebody started the flow; without a first Step it waits for one to be scheduled."""

    flow_type: str
    start: ScheduledStep | None
    attributes: dict[str, Raw | None] = field(default_factory=dict)


class WaitReturned(Struct, frozen=True, gc=False, tag=True):
    """An attempt of ``wait_for`` returned; Timers count from now."""

    execution_id: str
    attempt: int
    wait: StoredWait
    writes: Writes = Writes()


class ExecuteReturned(Struct, frozen=True, gc=False, tag=True):
    """An attempt of ``execute`` returned."""

    execution_id: str
    attempt: int
    decision: ExecutionDecision
    writes: Writes = Writes()


class AttemptFailed(Struct, frozen=True, gc=False, tag=True):
    """An attempt ended without a result: exception, timeout, missed heartbeat, dead worker.

    Attributes:
        phase: Whether it was an attempt of ``wait_for`` or of ``execute``, which
            are counted apart. None fits either.
    """

    execution_id: str
    attempt: int
    failure: Failure
    retry_after: float | None = None
    carrier: dict[str, str] = field(default_factory=dict)
    phase: Phase | None = None


class AttemptAbandoned(Struct, frozen=True, gc=False, tag=True):
    """An attempt was handed out but never began; it is handed out again under its number."""

    execution_id: str
    attempt: int
    phase: Phase | None = None


class AttemptsLost(Struct, frozen=True, gc=False, tag=True):
    """The worker of every running attempt died."""

    failure: Failure


class RpcReturned(Struct, frozen=True, gc=False, tag=True):
    """A transactional RPC returned."""

    rpc: str
    writes: Writes = Writes()
    next_steps: tuple[ScheduledStep, ...] = ()
    cancel_steps: tuple[str, ...] = ()


class TimeAdvanced(Struct, frozen=True, gc=False, tag=True):
    """Time has passed, or a worker has free slots: nothing else happened."""


class StepsScheduled(Struct, frozen=True, gc=False, tag=True):
    """Something that is no handler of the flow scheduled Steps."""

    origin: str
    next_steps: tuple[ScheduledStep, ...]


class TimerSkipped(Struct, frozen=True, gc=False, tag=True):
    """Somebody ended a Timer early; a Timer that is not waited for is passed over."""

    execution_id: str
    position: int


class FlowStopped(Struct, frozen=True, gc=False, tag=True):
    """Somebody stopped the flow."""

    reason: str = ""


Event: TypeAlias = (
    FlowStarted
    | WaitReturned
    | ExecuteReturned
    | AttemptFailed
    | AttemptAbandoned
    | AttemptsLost
    | RpcReturned
    | TimeAdvanced
    | StepsScheduled
    | TimerSkipped
    | FlowStopped
)
"""Everything that can happen to a flow."""


# What follows


class Changes(Struct):
    """What a transition changed: rows to write and, where None, to delete.

    Attributes:
        messages: By Channel and number.
        history: Lines to append.
    """

    header: FlowHeader
    executions: dict[str, Execution | None] = field(default_factory=dict)
    messages: dict[tuple[str, int], Raw | None] = field(default_factory=dict)
    attributes: dict[str, Raw | None] = field(default_factory=dict)
    history: list[HistoryEntry] = field(default_factory=list)


class Begin(Struct, frozen=True, gc=False):
    """Run this attempt: ``wait_for`` or ``execute``, as its phase says."""

    execution: Execution


class Cancel(Struct, frozen=True, gc=False):
    """Stop this attempt's handler; its result would be refused."""

    execution_id: str
    attempt: int


Effect: TypeAlias = Begin | Cancel


class Transition(Struct, frozen=True, gc=False):
    """What one event led to: changes to store first, effects to perform then."""

    changes: Changes
    effects: tuple[Effect, ...] = ()
