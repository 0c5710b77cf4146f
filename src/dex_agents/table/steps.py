"""The rows of a table that do something: Steps and RPCs, and what their handlers see and return.

A handler is a plain function. It reads and writes through its context, whose
changes commit together with what it returns, or not at all. The semantics of
every type here are numbered in ``docs/semantics.md``; a backend keeps all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dex_agents.table.facts import Observation
from dex_agents.table.persistence import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelCondition,
    Loadable,
    Stream,
)

__all__ = (
    "CloseKind",
    "Condition",
    "Decision",
    "Movement",
    "RecoveryError",
    "RetryPolicy",
    "Rpc",
    "RpcContext",
    "RpcResult",
    "Step",
    "StepContext",
    "StepOptions",
    "Timer",
    "Wait",
)

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the input of a row
O = TypeVar("O")  # noqa: E741 - the output of an RPC


# Waits


class Timer(Struct, frozen=True, gc=False):
    """Ready this many seconds after the wait was stored; durable, and never early."""

    seconds: float


Condition: TypeAlias = Timer | ChannelCondition


class Wait(Struct, frozen=True, gc=False):
    """What a Step waits for: conditions, and the groups of them that are enough.

    Attributes:
        conditions: In the order that results are reported in.
        candidates: Groups of positions in ``conditions``. The first group of
            which all are ready wins; only its conditions consume messages.
    """

    conditions: tuple[Condition, ...]
    candidates: tuple[tuple[int, ...], ...]

    @classmethod
    def until(cls, condition: Condition) -> Wait:
        """Wait for one condition."""
        return cls.all_of(condition)

    @classmethod
    def all_of(cls, *conditions: Condition) -> Wait:
        """Wait until every condition is ready at once."""
        return cls(conditions, (tuple(range(len(conditions))),))

    @classmethod
    def any_of(cls, *conditions: Condition) -> Wait:
        """Wait for the first ready condition: Timers before Channels, each in argument order."""
        if not conditions:
            raise ValueError("Wait.any_of needs a condition; without one it would wait for ever.")
        timers = [i for i, each in enumerate(conditions) if isinstance(each, Timer)]
        channels = [i for i, each in enumerate(conditions) if not isinstance(each, Timer)]
        return cls(conditions, tuple((i,) for i in timers + channels))

    @classmethod
    def any_combination_of(cls, *groups: tuple[Condition, ...]) -> Wait:
        """Wait for the first group of which every condition is ready; groups may share one."""
        conditions: list[Condition] = []
        for condition in (each for group in groups for each in group):
            if not any(condition is known for known in conditions):
                conditions.append(condition)
        position = {id(condition): i for i, condition in enumerate(conditions)}
        candidates = tuple(tuple(sorted(position[id(c)] for c in group)) for group in groups)
        return cls(tuple(conditions), candidates)

    @classmethod
    def skip_immediately(cls) -> Wait:
        """Do not wait."""
        return cls((), ((),))


# Options


class RetryPolicy(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a failed attempt is followed by another.

    Attributes:
        max_attempts: How many attempts there are in all; 0 for no limit.
        total_seconds: No attempt begins later than this after the first.
        initial_seconds: The delay before the second attempt.
        coefficient: What each further delay is multiplied by.
        max_seconds: The longest delay.
    """

    max_attempts: int = 0
    total_seconds: float = 4 * 3600.0
    initial_seconds: float = 1.0
    coefficient: float = 2.0
    max_seconds: float = 100.0

    def delay_after(self, attempt: int) -> float:
        """Return the seconds between a failed attempt and the next one."""
        exponent = min(attempt - 1, 64)
        try:
            delay = self.initial_seconds * float(self.coefficient) ** exponent
        except OverflowError:
            delay = self.max_seconds if self.initial_seconds else 0.0
        return float(min(delay, self.max_seconds))


class StepOptions(Struct, frozen=True):
    """How a Step runs; a movement may bring its own, which replace the row's whole.

    Attributes:
        execute_timeout: Seconds that one attempt of ``execute`` may take.
        wait_for_timeout: Seconds that one attempt of ``wait_for`` may take.
        heartbeat_timeout: Seconds without a sign of life after which an attempt counts as dead.
        retry: For ``execute`` and ``wait_for`` alike.
        failure_step: Where a used-up ``execute`` goes, with the same input.
        failure_options: The options of that movement, or None for the row's own.
        loads: The maps, map instances and Channels that the handlers see.
        locks: The Attributes that one execution holds from its first
            ``execute`` attempt to its last.
    """

    execute_timeout: float = 2 * 3600.0
    wait_for_timeout: float = 2 * 3600.0
    heartbeat_timeout: float = 60.0
    retry: RetryPolicy = RetryPolicy()
    failure_step: str | None = None
    failure_options: StepOptions | None = None
    loads: tuple[Loadable, ...] = ()
    locks: tuple[Attribute[Any], ...] = ()

    def loading(self, *loads: Loadable) -> StepOptions:
        """Return these options, for the failure route too, with other loads."""
        failure = self.failure_options or StepOptions()
        return replace(
            self,
            loads=loads,
            failure_options=replace(failure, loads=loads) if self.failure_step else None,
        )


# Decisions


class Movement(Struct, frozen=True):
    """One Step to schedule, its input, and its own options if it has any."""

    step: str
    input: Any = None
    options: StepOptions | None = None


class CloseKind(StrEnum):
    """How a decision ends its branch, or the whole flow."""

    DEAD_END = "dead_end"
    GRACEFUL_COMPLETE = "graceful_complete"
    FORCE_COMPLETE = "force_complete"
    FORCE_FAIL = "force_fail"


class Decision(Struct, frozen=True):
    """What follows a Step: movements, or an end; and Steps to cancel."""

    next_steps: tuple[Movement, ...] = ()
    close: CloseKind | None = None
    output: Any = None
    cancel_steps: tuple[str, ...] = ()
    cancel_sibling_steps: tuple[str, ...] = ()

    @classmethod
    def go_to(cls, step: str, input: Any = None, options: StepOptions | None = None) -> Decision:  # noqa: A002
        """Schedule one Step."""
        return cls(next_steps=(Movement(step, input, options),))

    @classmethod
    def go_to_many(cls, *movements: Movement) -> Decision:
        """Schedule several Steps, in this order; they run in parallel."""
        return cls(next_steps=movements)

    @classmethod
    def dead_end(cls) -> Decision:
        """End this branch; the flow goes on."""
        return cls(close=CloseKind.DEAD_END)

    @classmethod
    def graceful_complete(cls, output: Any = None) -> Decision:
        """End this branch, and complete the flow once no other Step is left."""
        return cls(close=CloseKind.GRACEFUL_COMPLETE, output=output)

    @classmethod
    def force_complete(cls, output: Any = None) -> Decision:
        """Complete the flow at once; other Steps are cancelled."""
        return cls(close=CloseKind.FORCE_COMPLETE, output=output)

    @classmethod
    def force_fail(cls, reason: str) -> Decision:
        """Fail the flow at once; other Steps are cancelled."""
        return cls(close=CloseKind.FORCE_FAIL, output=reason)

    def canceling(self, *steps: str) -> Decision:
        """Also cancel every other execution of these Steps."""
        return replace(self, cancel_steps=(*self.cancel_steps, *steps))


class RecoveryError(Struct, frozen=True):
    """Why the Step before a failure route failed.

    Attributes:
        detail: The error's message.
        error_type: The error's qualified class name.
    """

    detail: str
    error_type: str


# Contexts


class DataContext(Protocol):
    """What every handler can do with the flow's data. Its changes commit with what it returns."""

    @property
    def flow_id(self) -> str:
        """The flow's ID."""
        ...

    def now(self) -> float:
        """Return the worker's time in seconds since 1970."""
        ...

    def get(self, attribute: Attribute[T]) -> T | None:
        """Return an Attribute's value, the handler's own writes included, or None."""
        ...

    def set(self, attribute: Attribute[T], value: T) -> None:
        """Write an Attribute."""
        ...

    def delete(self, attribute: Attribute[T]) -> None:
        """Delete an Attribute; nothing happens when it has no value."""
        ...

    def entries(self, attribute_map: AttributeMap[T]) -> Mapping[str, T]:
        """Return a loaded map by key, decoded as it is read, the handler's own writes included."""
        ...

    def publish(self, channel: Channel[T], message: T) -> None:
        """Put a message at the end of a Channel."""
        ...

    def queue_size(self, channel: Channel[T]) -> int:
        """Return how many messages wait on a Channel."""
        ...


class StepContext(DataContext, Protocol):
    """What a Step's ``wait_for`` and ``execute`` see."""

    @property
    def step_execution_id(self) -> str:
        """``"<Step>-<n>"``, the same for all attempts."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        ...

    @property
    def recovery_error(self) -> RecoveryError | None:
        """Why the Step before failed, when this one is its failure route."""
        ...

    def results(self, channel: Channel[T]) -> tuple[T, ...]:
        """Return the messages that this execution's wait consumed from a Channel."""
        ...

    def write(self, stream: Stream[T], message: T) -> None:
        """Append to a Stream: best effort, outside the commit, from any thread."""
        ...

    async def heartbeat(self) -> None:
        """Record that this attempt is alive."""
        ...

    def keep_alive(self, seconds: float) -> AbstractContextManager[None]:
        """Return a block during which a sign of life is recorded every so many seconds."""
        ...

    def trace_carrier(self) -> dict[str, str]:
        """Return the W3C carrier of what this attempt is a part of; empty when nothing traces.

        That is its `Stretch`, or its own span where it has none.
        """
        ...

    def observe(self, describe: Callable[[], Observation]) -> None:
        """Tell telemetry what came out; ``describe`` is not called while nothing watches."""
        ...


class RpcContext(DataContext, Protocol):
    """What an RPC's handler sees."""


class RpcResult(Struct, Generic[O], frozen=True):
    """What an RPC returns, and what it sets in motion."""

    output: O
    next_steps: tuple[Movement, ...] = ()
    cancel_steps: tuple[str, ...] = ()


# Rows


class Step(Struct, Generic[I], frozen=True):
    """One Step of a flow.

    Attributes:
        name: Its name; executions are ``<name>-<n>``.
        execute: ``async (context, input) -> Decision``.
        input: The type of its input; ``NoneType`` for none.
        wait_for: ``async (context, input) -> Wait``, run first, or None.
        options: How it runs.
        next_steps: Every Step that ``execute`` may go to.
        is_inline: Its handlers only read and write their context, and never wait. An
            engine that can may run them within the commit that schedules them, in place
            of handing them out: what is not stored by then has not happened.
    """

    name: str
    execute: Callable[[StepContext, I], Awaitable[Decision]]
    input: type[I] = NoneType  # type: ignore[assignment]
    wait_for: Callable[[StepContext, I], Awaitable[Wait]] | None = None
    options: StepOptions = StepOptions()
    next_steps: tuple[str, ...] = ()
    is_inline: bool = False


class Rpc(Struct, Generic[I, O], frozen=True):
    """One call that clients make into a flow.

    Attributes:
        name: Its name.
        handler: ``(context, input) -> RpcResult``; synchronous and short.
        input: The type of its input; ``NoneType`` for none.
        output: The type of its output.
        is_read_only: It sees a committed state, changes nothing, and serves closed flows too.
        loads: The maps, map instances and Channels that it sees.
        locks: The Attributes that no Step may hold while it runs.
        next_steps: Every Step that it may start.
    """

    name: str
    handler: Callable[[RpcContext, I], RpcResult[O]]
    input: type[I] = NoneType  # type: ignore[assignment]
    output: type[O] = NoneType  # type: ignore[assignment]
    is_read_only: bool = False
    loads: tuple[Loadable, ...] = ()
    locks: tuple[Attribute[Any], ...] = ()
    next_steps: tuple[str, ...] = ()
