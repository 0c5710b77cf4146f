"""What holds of `Machine` after every event, whatever the events are.

A seeded driver plays the part of workers, clients and time: it finishes, fails,
abandons and loses attempts, sends what is stale, calls RPCs, stops flows. It
knows only events and effects, and keeps books of its own; after each event the
invariants below compare them with the state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dex_agents.errors import DexAgentsError, FlowNotActiveError, StaleAttemptError
from dex_agents.machine import (
    AttemptAbandoned,
    AttemptFailed,
    AttemptsLost,
    Begin,
    Cancel,
    ChannelWait,
    Event,
    ExecuteReturned,
    Execution,
    ExecutionDecision,
    ExecutionOptions,
    Failure,
    FlowHeader,
    FlowStarted,
    FlowState,
    FlowStatus,
    FlowStopped,
    Machine,
    Phase,
    Published,
    RpcReturned,
    ScheduledStep,
    StepsScheduled,
    StoredWait,
    TimeAdvanced,
    TimerSkipped,
    TimerWait,
    Transition,
    WaitReturned,
    Writes,
)
from dex_agents.machine.matching import match
from dex_agents.table import CloseKind, RetryPolicy

CHANNELS = ("inbox", "answers/1", "answers/2")
NOTHING = Raw(b"null")

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, initial_seconds=2.0)
OPTIONS = {
    "Plain": ExecutionOptions(retry=RetryPolicy(max_attempts=3)),
    "Waiter": ExecutionOptions(retry=RetryPolicy(total_seconds=60.0)),
    "Locker": ExecutionOptions(retry=TWICE, failure_step="Rescue", locks=("L1",)),
    "Both": ExecutionOptions(failure_step="Rescue", locks=("L1", "L2")),
    "Once": ExecutionOptions(
        retry=ONCE, failure_step="Rescue", failure_options=ExecutionOptions(locks=("L2",))
    ),
    "Rescue": ExecutionOptions(retry=RetryPolicy(initial_seconds=0.5, coefficient=3.0)),
    "Fragile": ExecutionOptions(retry=TWICE),
}
WITH_WAIT = {"Waiter", "Both"}
OVERRIDES = (
    None,
    None,
    None,
    ExecutionOptions(retry=ONCE, failure_step="Rescue"),
    ExecutionOptions(locks=("L2",)),
)


class RandomRules:
    """Rules that are small, and still use everything that the machine knows."""

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:
        return step in WITH_WAIT

    def options(self, step: str) -> ExecutionOptions:
        return OPTIONS[step]


MACHINE = Machine(RandomRules())


def wire(transition: Transition) -> bytes:
    """Return every byte of a transition, in order."""
    changes = transition.changes
    effects = [(type(each).__name__, each) for each in transition.effects]
    return msgspec.json.encode(
        (
            changes.header,
            list(changes.executions.items()),
            list(changes.messages.items()),
            list(changes.attributes.items()),
            changes.history,
            effects,
        )
    )


def snapshot(state: FlowState) -> bytes:
    """Return every byte of a state, its indexes and their order included."""
    return msgspec.json.encode(
        (
            state.header,
            list(state.executions.items()),
            [(name, list(queue.items())) for name, queue in state.queues.items()],
            list(state.runnable),
            list(state.running),
            list(state.timed.items()),
            [(name, list(waiters)) for name, waiters in state.waiting_on.items()],
            list(state.locks.items()),
        )
    )


class Rows:
    """What a store keeps of a flow."""

    def __init__(self) -> None:
        self.header = FlowHeader("flow")
        self.executions: dict[str, Execution] = {}
        self.messages: dict[tuple[str, int], Raw] = {}

    def store(self, transition: Transition) -> None:
        """Write what changed."""
        self.header = transition.changes.header
        for rows, changed in (
            (self.executions, transition.changes.executions),
            (self.messages, transition.changes.messages),
        ):
            for key, value in changed.items():
                if value is None:
                    assert key in rows or rows is self.executions
                    rows.pop(key, None)
                else:
                    rows[key] = value

    def load(self) -> FlowState:
        """Return the state as a worker would load it, from bytes, in any order of rows."""
        executions = msgspec.json.decode(
            msgspec.json.encode(list(self.executions.values())[::-1]), type=list[Execution]
        )
        header = msgspec.json.decode(msgspec.json.encode(self.header), type=FlowHeader)
        messages = [
            (channel, number, payload)
            for (channel, number), payload in sorted(self.messages.items(), key=lambda m: m[0])
        ]
        return FlowState(header, executions, messages)


class World:
    """One flow, and everything that a careful observer notes about it."""

    def __init__(self, random: Random, now: float) -> None:
        self.random = random
        self.now = now
        self.slots = 0
        self.state = FlowState.absent("flow")
        self.replica = FlowState.absent("flow")
        self.rows = Rows()
        self.log: list[tuple[Event, float, int]] = []
        self.wires: list[bytes] = []
        self.before: dict[str, Execution] = {}
        self.transition: Transition | None = None
        self.running: dict[str, tuple[Phase, int]] = {}
        self.last: Counter[tuple[str, Phase]] = Counter()
        self.not_before: dict[str, float] = {}
        self.ids: dict[str, None] = {}
        self.per_step: Counter[str] = Counter()
        self.published: dict[str, list[bytes]] = defaultdict(list)
        self.taken: dict[str, list[bytes]] = defaultdict(list)
        self.sent = 0
        self.seq = 0
        self.seen: Counter[str] = Counter()

    # Events

    def apply(self, event: Event) -> None:
        """Apply an event that must be accepted, note what follows, and check everything."""
        self.slots = self.random.choice((0, 0, 1, 1, 2, 5))
        self.before = dict(self.state.executions)
        was_ended = self._take_in(event)
        transition = MACHINE.apply(self.state, event, self.now, self.slots)
        self.transition = transition
        self.log.append((event, self.now, self.slots))
        self.wires.append(wire(transition))
        self.replica.apply(transition.changes)
        self.rows.store(transition)
        self._note(event, was_ended)
        for invariant in INVARIANTS:
            invariant(self)
        self.seen[type(event).__name__] += 1
        self.seen[str(self.state.header.status)] += 1

    def refuse(self, event: Event) -> None:
        """Apply an event that must be refused, and check that nothing at all changed."""
        before = snapshot(self.state)
        with pytest.raises((StaleAttemptError, FlowNotActiveError, DexAgentsError)):
            MACHINE.apply(self.state, event, self.now, 5)
        assert snapshot(self.state) == before
        self.seen["refused " + type(event).__name__] += 1

    def _take_in(self, event: Event) -> str | None:
        writes = getattr(event, "writes", None)
        for message in writes.published if writes else ():
            self.published[message.channel].append(bytes(message.payload))
        if isinstance(event, WaitReturned | ExecuteReturned | AttemptFailed | AttemptAbandoned):
            phase, attempt = self.running.pop(event.execution_id)
            assert attempt == event.attempt
            if isinstance(event, AttemptAbandoned):
                self.last[event.execution_id, phase] -= 1
                self.not_before.pop(event.execution_id, None)
            if isinstance(event, AttemptFailed):
                self._note_delay(event.execution_id, attempt, event.retry_after)
            return event.execution_id
        return None

    def _note_delay(self, execution_id: str, attempt: int, retry_after: float | None) -> None:
        execution = self.before[execution_id]
        retry = (execution.options or OPTIONS[execution.step]).retry
        delay = min(retry.initial_seconds * retry.coefficient ** (attempt - 1), retry.max_seconds)
        self.not_before[execution_id] = self.now + (delay if retry_after is None else retry_after)

    def _note(self, event: Event, ended: str | None) -> None:
        assert self.transition is not None
        changed = self.transition.changes.executions
        if isinstance(event, AttemptsLost):
            for execution_id in [name for name in self.running if self._has_ended(name)]:
                _, attempt = self.running.pop(execution_id)
                self._note_delay(execution_id, attempt, None)
        for execution_id in changed:
            if execution_id not in self.before:
                step, _, number = execution_id.rpartition("-")
                self.per_step[step] += 1
                assert execution_id not in self.ids
                assert int(number) == self.per_step[step]
                self.ids[execution_id] = None
        for execution in sorted(filter(None, changed.values()), key=lambda each: each.order):
            before = self.before.get(execution.id)
            if not (before and before.consumed):  # earlier executions are served first
                for message in execution.consumed:
                    self.taken[message.channel].append(bytes(message.payload))
        for effect in self.transition.effects:
            self._note_effect(effect)

    def _has_ended(self, execution_id: str) -> bool:
        # Whoever was running when all attempts were lost has failed, been cancelled, or begun anew.
        assert self.transition is not None
        return not any(
            isinstance(each, Cancel) and each.execution_id == execution_id
            for each in self.transition.effects
        )

    def _note_effect(self, effect: Begin | Cancel) -> None:
        if isinstance(effect, Cancel):
            assert self.running.pop(effect.execution_id)[1] == effect.attempt
            return
        execution = effect.execution
        key = (execution.id, execution.phase)
        assert execution.id not in self.running, "began while it was running"
        assert execution.attempt == self.last[key] + 1, "attempts count by one"
        assert self.now >= self.not_before.pop(execution.id, 0.0), "began before its retry was due"
        self.last[key] = execution.attempt
        self.running[execution.id] = (execution.phase, execution.attempt)

    # Chance

    def writes(self) -> Writes:
        """Return some messages and Attributes."""
        published = []
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3))):
            self.sent += 1
            published.append(Published(self.random.choice(CHANNELS), Raw(b"%d" % self.sent)))
        attributes = (
            {"A": self.random.choice((None, NOTHING))} if self.random.random() < 0.2 else {}
        )
        return Writes(attributes, tuple(published))

    def movements(self, most: int) -> tuple[ScheduledStep, ...]:
        """Return some Steps to schedule, unless there are many."""
        count = self.random.randint(0, most) if len(self.state.executions) < 10 else 0
        return tuple(self.movement() for _ in range(count))

    def movement(self) -> ScheduledStep:
        """Return a Step to schedule."""
        step = self.random.choice(tuple(OPTIONS))
        return ScheduledStep(step, NOTHING, self.random.choice(OVERRIDES))

    def wait(self) -> StoredWait:
        """Return a wait of a few conditions in a few groups."""
        conditions = tuple(self._condition() for _ in range(self.random.randint(0, 3)))
        positions = range(len(conditions))
        groups = [
            tuple(sorted(self.random.sample(positions, self.random.randint(1, len(conditions)))))
            for _ in range(self.random.randint(1, 2))
            if conditions
        ]
        return StoredWait(conditions, tuple(groups) or ((),))

    def _condition(self) -> TimerWait | ChannelWait:
        if self.random.random() < 0.45:
            return TimerWait(self.now + self.random.choice((0.0, 1.0, 7.5, 30.0)))
        at_least = self.random.randint(0, 2)
        at_most = self.random.choice((None, at_least, at_least + 1))
        return ChannelWait(self.random.choice(CHANNELS), at_least, at_most)

    def decision(self) -> ExecutionDecision:
        """Return what an execution decided."""
        chance = self.random.random()
        if chance < 0.006:
            return ExecutionDecision(close=CloseKind.FORCE_COMPLETE, output=NOTHING)
        if chance < 0.012:
            return ExecutionDecision(close=CloseKind.FORCE_FAIL, output=Raw(b'"no"'))
        if chance < 0.04:
            return ExecutionDecision(close=CloseKind.GRACEFUL_COMPLETE, output=Raw(b"1"))
        if chance < 0.2:
            return ExecutionDecision(close=CloseKind.DEAD_END)
        return ExecutionDecision(
            self.movements(3),
            cancel_steps=self._some_steps(0.1),
            cancel_sibling_steps=self._some_steps(0.3),
        )

    def _some_steps(self, probability: float) -> tuple[str, ...]:
        if self.random.random() > probability:
            return ()
        return tuple(self.random.sample(tuple(OPTIONS), 2))

    def outcome(self, execution_id: str, phase: Phase, attempt: int) -> Event:
        """Return how a running attempt ends."""
        chance = self.random.random()
        named = self.random.choice((phase, None))
        if chance < 0.08:
            return AttemptAbandoned(execution_id, attempt, named)
        fragile = execution_id.startswith("Fragile") or phase is Phase.WAIT_FOR
        if chance < (0.12 if fragile else 0.4):
            after = self.random.choice((None, None, 0.0, 3.0))
            return AttemptFailed(execution_id, attempt, Failure("broke", "E"), after, phase=named)
        if phase is Phase.WAIT_FOR:
            return WaitReturned(execution_id, attempt, self.wait(), self.writes())
        return ExecuteReturned(execution_id, attempt, self.decision(), self.writes())

    def stale(self) -> Event:
        """Return a result that comes from no current attempt."""
        known = tuple(self.ids) or ("Plain-1",)
        execution_id = self.random.choice((*known, "Plain-99", "Nowhere-1"))
        phase, attempt = self.running.get(execution_id, (Phase.EXECUTE, 1))
        if execution_id in self.running:
            if self.random.random() < 0.4:
                other = Phase.EXECUTE if phase is Phase.WAIT_FOR else Phase.WAIT_FOR
                return self._ending(execution_id, attempt, other)
            attempt += self.random.choice((-1, 1, 2))
        return self._ending(execution_id, attempt, phase)

    def _ending(self, execution_id: str, attempt: int, phase: Phase) -> Event:
        failure = Failure("late", "E")
        kinds: list[Event] = [
            AttemptFailed(execution_id, attempt, failure, phase=phase),
            AttemptAbandoned(execution_id, attempt, phase),
            WaitReturned(execution_id, attempt, StoredWait(), self.writes_nothing())
            if phase is Phase.WAIT_FOR
            else ExecuteReturned(execution_id, attempt, ExecutionDecision(self.movements(2))),
        ]
        return self.random.choice(kinds)

    def writes_nothing(self) -> Writes:
        """Return a message that must never be sent."""
        return Writes({}, (Published(CHANNELS[0], Raw(b'"stale"')),))

    def step(self) -> None:
        """Let one thing happen."""
        self.now += self.random.choice((0.0, 0.0, 0.0, 0.5, 1.0, 4.0, 35.0))
        chance = self.random.random()
        if chance < 0.12:
            self.refuse(self.stale())
        elif chance < 0.15:
            self.refuse(FlowStarted("other", self.movement()))
        elif chance < 0.28:
            self.apply(TimeAdvanced())
        elif chance < 0.29:
            self.apply(StepsScheduled("__timeout__", (self.movement(),)))
        elif chance < 0.30:
            self.apply(self.skip())
        elif chance < 0.45:
            self.apply(RpcReturned("ask", self.writes(), self.movements(2), self._some_steps(0.05)))
        elif chance < 0.46:
            self.apply(AttemptsLost(Failure("worker died", "LostError")))
        elif chance < 0.465:
            self.apply(FlowStopped(self.random.choice(("", "enough"))))
        elif self.running:
            execution_id = self.random.choice(tuple(self.running))
            self.apply(self.outcome(execution_id, *self.running[execution_id]))
        else:
            self.apply(TimeAdvanced())

    def skip(self) -> TimerSkipped:
        """Return the end of a Timer of any execution, be it waited for or not."""
        execution_id = self.random.choice([*self.state.executions, "Nobody-1"])
        return TimerSkipped(execution_id, self.random.randrange(3))

    def life(self, events: int) -> int:
        """Live until the flow closes or so many events have happened, and return how many."""
        self.refuse(TimeAdvanced())  # it does not exist yet
        self.apply(FlowStarted("kind", self.movement(), {"A": NOTHING}))
        while self.state.header.status is FlowStatus.RUNNING and len(self.log) < events:
            self.step()
        if self.state.header.status is not FlowStatus.RUNNING:
            for event in (TimeAdvanced(), FlowStopped(), RpcReturned("ask"), self.stale()):
                self.refuse(event)
            for event in (StepsScheduled("late", (self.movement(),)), self.skip()):
                self.refuse(event)
        return len(self.log)


# Invariants


def the_replayed_changes_equal_the_state(world: World) -> None:
    assert world.replica == world.state


def the_stored_rows_equal_the_state(world: World) -> None:
    loaded = world.rows.load()
    assert loaded == world.state
    for execution in loaded.executions.values():
        if execution.phase is Phase.WAITING:  # a fired Timer counts until the next event
            assert loaded.timed.get(execution.id) == next_timer(execution, 0.0)
    for state in (loaded, world.replica):
        assert set(state.runnable) == set(world.state.runnable)
        assert set(state.running) == set(world.state.running)
        assert state.locks == world.state.locks
        assert {k: set(v) for k, v in state.waiting_on.items()} == {
            k: set(v) for k, v in world.state.waiting_on.items()
        }


def the_indexes_agree_with_the_executions(world: World) -> None:
    state = world.state
    rows = state.executions.values()
    waiting = [e for e in rows if e.phase is Phase.WAITING]
    assert set(state.running) == {e.id for e in rows if e.is_running}
    assert set(state.runnable) == {
        e.id for e in rows if not e.is_running and e.phase is not Phase.WAITING
    }
    waiting_on: dict[str, set[str]] = {}
    for each in waiting:
        for condition in each.wait.conditions:
            if isinstance(condition, ChannelWait):
                waiting_on.setdefault(condition.channel, set()).add(each.id)
    assert {k: set(v) for k, v in state.waiting_on.items()} == waiting_on
    timed = {e.id: e.due_at for e in rows if e.id in state.runnable and e.due_at}
    timed |= {e.id: at for e in waiting if (at := next_timer(e, world.now)) is not None}
    assert state.timed == timed


def next_timer(execution: Execution, now: float) -> float | None:
    timers = [c.fire_at for c in execution.wait.conditions if isinstance(c, TimerWait)]
    return min((at for at in timers if at > now), default=None)


def the_version_grows_by_one(world: World) -> None:
    assert world.state.header.version == len(world.log)
    assert world.transition.changes.header is world.state.header


def the_counters_are_dense(world: World) -> None:
    assert world.state.header.counters == dict(world.per_step)
    assert world.state.header.next_order == len(world.ids) + 1
    orders = [e.order for e in world.state.executions.values()]
    assert len(set(orders)) == len(orders)


def the_running_attempts_are_those_begun(world: World) -> None:
    running = {e.id: (e.phase, e.attempt) for e in world.state.executions.values() if e.is_running}
    assert running == world.running


def slots_are_never_exceeded(world: World) -> None:
    assert sum(isinstance(each, Begin) for each in world.transition.effects) <= world.slots


def slots_are_not_left_idle(world: World) -> None:
    begun = sum(isinstance(each, Begin) for each in world.transition.effects)
    if begun < world.slots:
        for name in world.state.runnable:
            execution = world.state.executions[name]
            locks = (execution.options or OPTIONS[execution.step]).locks
            blocked = any(world.state.locks.get(lock, name) != name for lock in locks)
            assert execution.due_at > world.now or blocked


def what_began_is_stored_as_begun(world: World) -> None:
    for effect in world.transition.effects:
        if isinstance(effect, Begin) and effect.execution.id in world.running:
            assert world.state.executions[effect.execution.id] == effect.execution
            assert effect.execution.begun_at == world.now
            assert effect.execution.due_at <= world.now


def messages_are_taken_once_and_in_order(world: World) -> None:
    for channel in CHANNELS:
        published, taken = world.published[channel], world.taken[channel]
        assert taken == published[: len(taken)]
        queued = [bytes(payload) for payload in world.state.queues.get(channel, {}).values()]
        assert queued == published[len(taken) :]
        numbers = list(world.state.queues.get(channel, {}))
        assert numbers == sorted(numbers)


def no_timer_fires_early(world: World) -> None:
    for execution in world.state.executions.values():
        before = world.before.get(execution.id)
        if execution.phase is Phase.EXECUTE and (not before or before.phase is not Phase.EXECUTE):
            for position in execution.chosen:
                condition = execution.wait.conditions[position]
                assert not isinstance(condition, TimerWait) or condition.fire_at <= world.now


def nothing_that_is_ready_waits(world: World) -> None:
    for execution in world.state.executions.values():
        if execution.phase is Phase.WAITING:
            assert match(execution.wait, world.state.queues, world.now) is None


def locks_have_one_holder(world: World) -> None:
    held: Counter[str] = Counter()
    for execution in world.state.executions.values():
        held.update(execution.locks)
        wanted = (execution.options or OPTIONS[execution.step]).locks
        has_begun = execution.phase is Phase.EXECUTE and execution.attempt > 0
        assert execution.locks == (wanted if has_begun else ())
        assert all(world.state.locks[name] == execution.id for name in execution.locks)
    assert all(count == 1 for count in held.values())
    assert set(world.state.locks) == set(held)


def attempts_stay_within_their_limits(world: World) -> None:
    for execution in world.state.executions.values():
        retry = (execution.options or OPTIONS[execution.step]).retry
        assert not retry.max_attempts or execution.attempt <= retry.max_attempts
        if execution.last_failure is not None and not execution.is_running:
            assert execution.due_at <= execution.first_attempt_at + retry.total_seconds


def a_closed_flow_is_at_rest(world: World) -> None:
    header = world.state.header
    if header.status is not FlowStatus.RUNNING:
        assert not world.state.executions
        assert not world.running
        assert header.closed_at == world.now
        assert all(isinstance(each, Cancel) for each in world.transition.effects)
        assert header.wake_at is None
    else:
        assert header.closed_at is None
        assert not header.is_completing or world.state.executions


def wake_at_tells_the_truth(world: World) -> None:
    if world.state.header.status is not FlowStatus.RUNNING:
        return
    later: list[float] = []
    is_needed = bool(world.running)
    for execution in world.state.executions.values():
        if execution.phase is Phase.WAITING:
            at = next_timer(execution, world.now)
            later += [] if at is None else [at]
        elif not execution.is_running and execution.due_at > world.now:
            later.append(execution.due_at)
        else:
            is_needed = True
    expected = 0.0 if is_needed else min(later, default=None)
    assert world.state.header.wake_at == expected


def the_history_is_gapless(world: World) -> None:
    for entry in world.transition.changes.history:
        world.seq += 1
        assert (entry.seq, entry.at) == (world.seq, world.now)
    assert world.state.header.next_history == world.seq + 1


INVARIANTS = (
    the_replayed_changes_equal_the_state,
    the_stored_rows_equal_the_state,
    the_indexes_agree_with_the_executions,
    the_version_grows_by_one,
    the_counters_are_dense,
    the_running_attempts_are_those_begun,
    slots_are_never_exceeded,
    slots_are_not_left_idle,
    what_began_is_stored_as_begun,
    messages_are_taken_once_and_in_order,
    no_timer_fires_early,
    nothing_that_is_ready_waits,
    locks_have_one_holder,
    attempts_stay_within_their_limits,
    a_closed_flow_is_at_rest,
    wake_at_tells_the_truth,
    the_history_is_gapless,
)


# Tests


def worlds(seed: int, events: int = 300):
    """Yield lived flows of one seed until so many events have happened."""
    random = Random(seed)
    left = events
    while left > 0:
        world = World(random, 1000.0)
        left -= world.life(left)
        yield world


@pytest.mark.parametrize("seed", range(40))
def test_every_invariant_holds_after_every_event(seed):
    """Whatever happens to flows, in whatever order, all invariants hold after each event."""
    for world in worlds(seed):
        assert len(world.log) == world.state.header.version


@pytest.mark.parametrize("seed", range(10))
def test_a_replay_gives_the_same_bytes(seed):
    """The same events give byte-identical changes and effects, from an empty state."""
    for world in worlds(seed, 150):
        state = FlowState.absent("flow")
        replayed = [wire(MACHINE.apply(state, *entry)) for entry in world.log]
        assert replayed == world.wires
        assert state == world.state


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_loads_the_flow_before_every_event_decides_the_same(seed):
    """No transition depends on anything that is not in the stored rows, order included."""
    for world in worlds(seed, 150):
        rows = Rows()
        for entry, expected in zip(world.log, world.wires, strict=True):
            transition = MACHINE.apply(rows.load(), *entry)
            assert wire(transition) == expected
            rows.store(transition)


def test_the_driver_reaches_everything_it_is_meant_to():
    """The invariants were checked after every kind of event, refusal and end."""
    seen: Counter[str] = Counter()
    for seed in range(15):
        for world in worlds(seed):
            seen.update(world.seen)
            seen.update(str(entry) for entry in _features(world))
    events = Event.__args__
    wanted = {each.__name__ for each in events} | {str(status) for status in FlowStatus}
    wanted |= {f"refused {each.__name__}" for each in events if each is not AttemptsLost}
    wanted |= {"messages taken", "second attempt", "recovery", "many rows"}
    assert {each: seen[each] for each in wanted if seen[each] < 3} == {}


def _features(world: World) -> Any:
    if any(world.taken.values()):
        yield "messages taken"
    if any(number > 1 for number in world.last.values()):
        yield "second attempt"
    if world.per_step["Rescue"]:
        yield "recovery"
    if len(world.ids) > 30:
        yield "many rows"
