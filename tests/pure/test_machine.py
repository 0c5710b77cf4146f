"""Promises of `Machine`, one rule after the other; numbers are those of ``docs/semantics.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dex_agents.errors import (
    DexAgentsError,
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    RpcLockConflictError,
    StaleAttemptError,
    UndeclaredError,
)
from dex_agents.machine import (
    AttemptAbandoned,
    AttemptFailed,
    AttemptsLost,
    Begin,
    Cancel,
    ChannelWait,
    Consumed,
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
    HistoryEvent,
    Machine,
    Phase,
    Published,
    RpcReturned,
    ScheduledStep,
    StoredWait,
    TableRules,
    TimeAdvanced,
    TimerWait,
    Transition,
    WaitReturned,
    Writes,
    execution_options,
)
from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    CloseKind,
    Decision,
    FlowTable,
    RetryPolicy,
    Step,
    StepOptions,
    Timer,
    Wait,
)

START = 1000.0
BROKEN = Failure("it broke", "builtins.ValueError")
NULL = Raw(b"null")


class StepRules:
    """Rules in which every Step has default options, and waits if its name begins with "Wait"."""

    def __init__(self, options: dict[str, ExecutionOptions]) -> None:
        self._options = options

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:
        return step.startswith("Wait")

    def options(self, step: str) -> ExecutionOptions:
        return self._options.get(step, ExecutionOptions())


class Flow:
    """One flow, its time, and enough slots for everything."""

    def __init__(self, **options: ExecutionOptions) -> None:
        self.machine = Machine(StepRules(options))
        self.state = FlowState.absent("flow")
        self.now = START

    def apply(self, event: Event, slots: int = 99) -> Transition:
        return self.machine.apply(self.state, event, self.now, slots)

    def start(self, *steps: str, slots: int = 99) -> Transition:
        """Start with a Step ``Start`` that goes to these Steps, or with the only one."""
        if len(steps) == 1:
            return self.apply(FlowStarted("kind", to(steps[0])), slots)
        self.apply(FlowStarted("kind", to("Start")))
        return self.end("Start-1", go(*steps), slots=slots)

    def end(
        self,
        execution_id: str,
        decision: ExecutionDecision | None = None,
        writes: Writes = Writes(),  # noqa: B008 - it is frozen
        slots: int = 99,
    ) -> Transition:
        attempt = self[execution_id].attempt
        decision = decision or ExecutionDecision()
        return self.apply(ExecuteReturned(execution_id, attempt, decision, writes), slots)

    def wait(self, execution_id: str, *conditions: Any, groups: Any = None) -> Transition:
        """End ``wait_for`` with a wait for any of these conditions."""
        groups = groups if groups is not None else tuple((i,) for i in range(len(conditions)))
        wait = StoredWait(conditions, groups)
        return self.apply(WaitReturned(execution_id, self[execution_id].attempt, wait))

    def fail(self, execution_id: str, **given: Any) -> Transition:
        return self.apply(AttemptFailed(execution_id, self[execution_id].attempt, BROKEN, **given))

    def publish(self, *messages: tuple[str, int]) -> Transition:
        return self.apply(RpcReturned("send", sending(*messages)))

    def advance(self, seconds: float, slots: int = 99) -> Transition:
        self.now += seconds
        return self.apply(TimeAdvanced(), slots)

    def __getitem__(self, execution_id: str) -> Execution:
        return self.state.executions[execution_id]

    @property
    def status(self) -> FlowStatus:
        return self.state.header.status


def to(step: str, given: Any = None, options: ExecutionOptions | None = None) -> ScheduledStep:
    return ScheduledStep(step, Raw(msgspec.json.encode(given)), options)


def go(*steps: str | ScheduledStep, **given: Any) -> ExecutionDecision:
    movements = tuple(to(step) if isinstance(step, str) else step for step in steps)
    return ExecutionDecision(movements, **given)


def sending(*messages: tuple[str, int]) -> Writes:
    return Writes({}, tuple(Published(name, Raw(b"%d" % number)) for name, number in messages))


def begun(transition: Transition) -> list[tuple[str, Phase, int]]:
    """Return what the transition hands out."""
    found = [each.execution for each in transition.effects if isinstance(each, Begin)]
    return [(each.id, each.phase, each.attempt) for each in found]


def begun_ids(transition: Transition) -> list[str]:
    return [name for name, _, _ in begun(transition)]


def consumed(execution: Execution) -> list[tuple[str, int]]:
    return [(each.channel, int(bytes(each.payload))) for each in execution.consumed]


def bytes_of(state: FlowState) -> bytes:
    return msgspec.json.encode(
        (
            state.header,
            state.executions,
            state.queues,
            state.timed,
            state.locks,
            state.waiting_on,
            state.running,
            state.runnable,
        )
    )


# Starting


def test_a_flow_starts_with_its_start_step():
    """Starting stores the type, the Attributes and one execution, and begins it."""
    flow = Flow()
    event = FlowStarted("kind", to("A", "hi"), {"Name": Raw(b"1")})
    transition = flow.apply(event)
    header = transition.changes.header
    assert (header.flow_type, header.status, header.version) == ("kind", FlowStatus.RUNNING, 1)
    assert (header.started_at, header.closed_at) == (START, None)
    assert transition.changes.attributes == {"Name": Raw(b"1")}
    assert begun(transition) == [("A-1", Phase.EXECUTE, 1)]
    assert (flow["A-1"].input, flow["A-1"].origin) == (Raw(b'"hi"'), "__start__")


def test_a_flow_starts_once():
    """A second start is refused, also of a flow that is closed."""
    flow = Flow()
    flow.start("A")
    for _ in range(2):
        before = bytes_of(flow.state)
        with pytest.raises(FlowAlreadyStartedError, match="'flow'"):
            flow.apply(FlowStarted("kind", to("A")))
        assert bytes_of(flow.state) == before
        if flow.status is FlowStatus.RUNNING:
            flow.apply(FlowStopped())


@pytest.mark.parametrize(
    "event",
    [
        TimeAdvanced(),
        FlowStopped(),
        RpcReturned("ask"),
        AttemptsLost(BROKEN),
        ExecuteReturned("A-1", 1, ExecutionDecision()),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_happens_to_a_flow_that_does_not_exist(event):
    """Any event but a start is refused, and leaves the flow absent."""
    flow = Flow()
    with pytest.raises(FlowNotFoundError, match="'flow'"):
        flow.apply(event)
    assert flow.state == FlowState.absent("flow")


# 1: execution ids


def test_executions_are_numbered_for_each_step():
    """Rule 1: an execution is the n-th of its Step, from 1, and never named twice."""
    flow = Flow()
    flow.start("A", "B", "A")
    assert set(flow.state.executions) == {"A-1", "B-1", "A-2"}
    flow.end("A-1", go("A", "C"))
    flow.end("A-2", go("A"))
    assert set(flow.state.executions) == {"B-1", "A-3", "C-1", "A-4"}
    assert flow.state.header.counters == {"Start": 1, "A": 4, "B": 1, "C": 1}


def test_an_execution_keeps_its_id_for_all_attempts():
    """Rule 1: the id is the same for each attempt, of both phases."""
    flow = Flow()
    assert begun(flow.start("WaitA")) == [("WaitA-1", Phase.WAIT_FOR, 1)]
    flow.fail("WaitA-1")
    assert begun(flow.advance(1)) == [("WaitA-1", Phase.WAIT_FOR, 2)]
    assert begun(flow.wait("WaitA-1", groups=((),))) == [("WaitA-1", Phase.EXECUTE, 1)]
    flow.fail("WaitA-1")
    assert begun(flow.advance(1)) == [("WaitA-1", Phase.EXECUTE, 2)]


def test_ids_are_not_used_again_after_a_failure_or_cancellation():
    """Rule 1: a number is used once, however its execution ended."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(max_attempts=1), failure_step="A"))
    flow.start("A", "B")
    flow.fail("A-1")
    flow.end("B-1", go("A", cancel_steps=("A",)))
    assert list(flow.state.executions) == ["A-3"]


# 2: waits


def test_a_wait_is_stored_before_it_counts():
    """Rule 2: ``wait_for`` runs first, its wait is stored, and ``execute`` runs when it is over."""
    flow = Flow()
    flow.start("WaitA")
    transition = flow.wait("WaitA-1", ChannelWait("inbox"))
    stored = transition.changes.executions["WaitA-1"]
    assert (stored.phase, stored.attempt, stored.is_running) == (Phase.WAITING, 0, False)
    assert stored.wait == StoredWait((ChannelWait("inbox"),), ((0,),))
    assert begun(transition) == []
    assert begun(flow.publish(("inbox", 1))) == [("WaitA-1", Phase.EXECUTE, 1)]


def test_a_step_without_wait_for_executes_at_once():
    """Rule 2: only a row that has a ``wait_for`` waits."""
    assert begun(Flow().start("A")) == [("A-1", Phase.EXECUTE, 1)]


def test_what_wait_for_writes_is_stored_with_its_wait():
    """Rule 5: the writes and the wait of ``wait_for`` commit together, and may end it."""
    flow = Flow()
    flow.start("WaitA")
    writes = Writes({"Name": NULL}, (Published("inbox", Raw(b"7")),))
    wait = StoredWait((ChannelWait("inbox"),), ((0,),))
    transition = flow.apply(WaitReturned("WaitA-1", 1, wait, writes))
    assert transition.changes.attributes == {"Name": NULL}
    assert consumed(flow["WaitA-1"]) == [("inbox", 7)]
    assert transition.changes.messages == {}


def test_a_wait_that_is_already_over_ends_at_once():
    """Rule 2: what was published earlier counts."""
    flow = Flow()
    flow.start("WaitA")
    flow.publish(("inbox", 1))
    assert begun(flow.wait("WaitA-1", ChannelWait("inbox"))) == [("WaitA-1", Phase.EXECUTE, 1)]


def test_nobody_is_looked_up_for_a_wait_that_is_over():
    """Whoever waits for a Channel is indexed exactly as long as it waits."""
    flow = Flow()
    flow.start("WaitA", "WaitB", "WaitC")
    for name in ("WaitA-1", "WaitB-1", "WaitC-1"):
        flow.wait(name, ChannelWait("inbox"))
    assert [*flow.state.waiting_on["inbox"]] == ["WaitA-1", "WaitB-1", "WaitC-1"]
    flow.publish(("inbox", 1))
    assert [*flow.state.waiting_on["inbox"]] == ["WaitB-1", "WaitC-1"]
    flow.apply(RpcReturned("drop", cancel_steps=("WaitB",)))
    assert [*flow.state.waiting_on["inbox"]] == ["WaitC-1"]
    flow.publish(("inbox", 2))
    assert flow.state.waiting_on == {}


def test_a_wait_that_is_not_over_holds_up_no_other():
    """Rule 2: every wait is looked at, also behind one that goes on."""
    flow = Flow()
    flow.start("WaitA", "WaitB")
    flow.wait("WaitA-1", ChannelWait("inbox", 2, 2))
    flow.wait("WaitB-1", ChannelWait("inbox"))
    assert begun_ids(flow.publish(("inbox", 1))) == ["WaitB-1"]


def test_a_retry_of_execute_does_not_wait_again():
    """Rule 2: a wait that is over takes nothing more, and holds up no wait that became ready."""
    flow = Flow()
    flow.start("WaitA", "WaitB")
    flow.publish(("inbox", 1), ("inbox", 2))
    flow.wait("WaitA-1", ChannelWait("inbox"))
    flow.wait("WaitB-1", TimerWait(START + 1))
    flow.fail("WaitA-1")
    assert begun_ids(flow.advance(1)) == ["WaitA-1", "WaitB-1"]
    assert consumed(flow["WaitA-1"]) == [("inbox", 1)]
    assert flow["WaitA-1"].attempt == 2
    assert [*flow.state.queues["inbox"]] == [2]


# 3: any_of and messages


def test_only_the_chosen_condition_consumes():
    """Rule 3: the first ready condition takes its messages; the others take nothing."""
    flow = Flow()
    flow.start("WaitA")
    flow.publish(("b", 1), ("a", 2), ("a", 3))
    transition = flow.wait("WaitA-1", ChannelWait("a"), ChannelWait("b"))
    assert flow["WaitA-1"].chosen == (0,)
    assert consumed(flow["WaitA-1"]) == [("a", 2)]
    assert transition.changes.messages == {("a", 2): None}
    assert {name: list(queue) for name, queue in flow.state.queues.items()} == {"b": [1], "a": [3]}


def test_a_timer_is_chosen_before_a_channel():
    """Rule 3: ``any_of`` looks at Timers first, so a late wake-up does not take a message."""
    flow = Flow()
    flow.start("WaitA")
    groups = Wait.any_of(Channel("inbox", int).for_one(), Timer(5)).candidates
    flow.wait("WaitA-1", ChannelWait("inbox"), TimerWait(START + 5), groups=groups)
    flow.now += 5
    flow.publish(("inbox", 1))
    assert (flow["WaitA-1"].chosen, flow["WaitA-1"].consumed) == ((1,), ())
    assert list(flow.state.queues["inbox"]) == [1]


def test_messages_are_consumed_first_in_first_out():
    """Rule 3: the oldest messages go first, also across transitions."""
    flow = Flow()
    flow.start("WaitA")
    flow.publish(("inbox", 1), ("other", 2))
    flow.publish(("inbox", 3), ("inbox", 4))
    flow.wait("WaitA-1", ChannelWait("inbox", 2, 2))
    assert consumed(flow["WaitA-1"]) == [("inbox", 1), ("inbox", 3)]


def test_each_message_goes_to_one_execution_in_the_order_of_scheduling():
    """Rule 3: of two that wait for one message, the one that was scheduled first gets it."""
    flow = Flow()
    flow.start("WaitA", "WaitB")
    flow.wait("WaitB-1", ChannelWait("inbox"))
    flow.wait("WaitA-1", ChannelWait("inbox"))
    assert begun_ids(flow.publish(("inbox", 1))) == ["WaitA-1"]
    assert flow["WaitB-1"].phase is Phase.WAITING
    assert begun_ids(flow.publish(("inbox", 2))) == ["WaitB-1"]
    assert consumed(flow["WaitB-1"]) == [("inbox", 2)]


def test_consumption_is_part_of_the_commit_that_makes_the_step_runnable():
    """Rule 3: the message's row goes in the same changes that end the wait, slots or not."""
    flow = Flow()
    flow.start("WaitA")
    flow.publish(("inbox", 1))
    wait = StoredWait((ChannelWait("inbox"),), ((0,),))
    transition = flow.apply(WaitReturned("WaitA-1", 1, wait), slots=0)
    assert transition.changes.messages == {("inbox", 1): None}
    assert transition.changes.executions["WaitA-1"].consumed == (Consumed("inbox", Raw(b"1")),)
    assert transition.effects == ()


def test_consumed_messages_survive_every_attempt():
    """Rule 3: a retried Step sees the messages that its wait took."""
    flow = Flow()
    flow.start("WaitA")
    flow.publish(("inbox", 1))
    flow.wait("WaitA-1", ChannelWait("inbox"))
    flow.fail("WaitA-1")
    (begin,) = flow.advance(1).effects
    assert consumed(begin.execution) == [("inbox", 1)]


# 4: attempts


def test_attempts_begin_when_they_are_handed_out():
    """Rule 4: without a free slot nothing begins and no attempt is counted."""
    flow = Flow()
    flow.start("A", "B", "C", slots=2)
    assert [flow[name].attempt for name in ("A-1", "B-1", "C-1")] == [1, 1, 0]
    assert begun(flow.advance(0, slots=1)) == [("C-1", Phase.EXECUTE, 1)]


def test_an_attempt_is_on_record_before_it_runs():
    """Rule 4: the changes that are stored before the effect already hold the attempt."""
    transition = Flow().start("A")
    (begin,) = transition.effects
    assert transition.changes.executions["A-1"] == begin.execution
    assert (begin.execution.is_running, begin.execution.begun_at) == (True, START)


def _crash(flow: Flow) -> None:
    flow.apply(AttemptsLost(Failure("the worker died", "LostError")))


@pytest.mark.parametrize(
    "end", [lambda flow: flow.fail("A-1"), _crash], ids=["failed", "worker died"]
)
def test_whatever_ended_an_attempt_the_next_is_one_higher(end: Callable[[Flow], Any]):
    """Rule 4: exceptions and dead workers count alike."""
    flow = Flow()
    flow.start("A")
    for attempt in (2, 3, 4):
        end(flow)
        assert begun(flow.advance(100)) == [("A-1", Phase.EXECUTE, attempt)]


def test_a_hand_out_that_never_began_uses_up_no_attempt():
    """Rule 4: an abandoned attempt is handed out again under its number."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(max_attempts=1)))
    flow.start("A")
    for _ in range(3):
        transition = flow.apply(AttemptAbandoned("A-1", 1))
        assert begun(transition) == [("A-1", Phase.EXECUTE, 1)]
    assert transition.changes.history == []


def test_a_hand_out_that_never_began_starts_no_total_time():
    """Rule 4: the total time counts from the first attempt that began."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(total_seconds=10.0)))
    flow.start("A")
    flow.apply(AttemptAbandoned("A-1", 1), slots=0)
    flow.advance(1000)
    flow.fail("A-1")
    assert begun(flow.advance(1)) == [("A-1", Phase.EXECUTE, 2)]


def test_a_hand_out_that_never_began_holds_no_lock():
    """Rule 4: a first attempt that was abandoned gives its locks back."""
    flow = Flow(A=ExecutionOptions(locks=("Name",)))
    flow.start("A")
    flow.apply(AttemptAbandoned("A-1", 1), slots=0)
    flow.machine.require_locks(flow.state, "ask", ("Name",))


def test_an_attempt_is_kept_with_the_worker_that_it_was_handed_to():
    """Rule 4: who asked for work is on record with what it got, if it said its name."""
    flow = Flow()
    flow.start("A", "B", slots=1)
    flow.machine.apply(flow.state, TimeAdvanced(), flow.now, slots=1, worker="w-1")
    assert [(flow[name].attempt, flow[name].worker) for name in ("A-1", "B-1")] == [
        (1, ""),
        (1, "w-1"),
    ]


def test_a_caller_that_names_no_slots_is_handed_nothing():
    """Rule 4: whoever only brings an event cannot be given an attempt to run."""
    flow = Flow()
    transition = flow.machine.apply(flow.state, FlowStarted("kind", to("A")), flow.now)
    assert (transition.effects, flow["A-1"].attempt) == ((), 0)


def test_an_abandoned_retry_is_due_at_once():
    """Rule 4: what it once waited for is over, also when the clock was set back since."""
    flow = Flow()
    flow.start("A")
    flow.fail("A-1")
    assert begun(flow.advance(-500)) == [("A-1", Phase.EXECUTE, 2)]
    flow.apply(AttemptAbandoned("A-1", 2), slots=0)
    assert (flow["A-1"].due_at, flow["A-1"].is_running) == (0.0, False)
    assert begun(flow.advance(0)) == [("A-1", Phase.EXECUTE, 2)]


def test_an_abandoned_retry_keeps_its_place():
    """Rule 4: a later attempt that was abandoned keeps its locks and its total time."""
    flow = Flow(A=ExecutionOptions(locks=("Name",)))
    flow.start("A")
    flow.fail("A-1")
    flow.advance(1)
    flow.apply(AttemptAbandoned("A-1", 2), slots=0)
    assert (flow["A-1"].attempt, flow["A-1"].first_attempt_at) == (1, START)
    assert flow.state.locks == {"Name": "A-1"}


def test_lost_attempts_fail_together_in_the_order_of_scheduling():
    """Rule 4: when a worker dies, each running attempt fails; what waits goes on waiting."""
    flow = Flow(Z=ExecutionOptions(retry=RetryPolicy(max_attempts=1), failure_step="R"))
    flow.start("Z", "A", "Z", "WaitB")
    flow.wait("WaitB-1", ChannelWait("inbox"))
    flow.apply(AttemptAbandoned("Z-1", 1))  # it begins last now
    lost = Failure("the worker died", "LostError")
    transition = flow.apply(AttemptsLost(lost), slots=0)
    assert [entry.step_execution_id for entry in transition.changes.history] == [
        "Z-1",
        "A-1",
        "Z-2",
    ]
    assert (flow["R-1"].origin, flow["R-2"].origin) == ("Z-1", "Z-2")
    assert (flow["A-1"].last_failure, flow["A-1"].is_running) == (lost, False)
    assert flow["A-1"].last_carrier == {}
    assert flow["WaitB-1"].phase is Phase.WAITING


def test_losing_attempts_can_end_the_flow():
    """Rule 7: a lost last attempt without a route fails the flow once, whoever else was lost."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(max_attempts=1)))
    flow.start("A", "A", "B")
    transition = flow.apply(AttemptsLost(BROKEN))
    assert flow.status is FlowStatus.FAILED
    assert sum(e.event_type is HistoryEvent.FLOW_CLOSED for e in transition.changes.history) == 1


def test_attempts_of_the_two_phases_are_counted_apart():
    """Rule 4: ``execute`` begins at attempt 1 with nothing left of ``wait_for``'s failures."""
    flow = Flow()
    flow.start("WaitA")
    flow.fail("WaitA-1", carrier={"traceparent": "x"})
    flow.advance(1)
    (begin,) = flow.wait("WaitA-1", groups=((),)).effects
    assert (begin.execution.attempt, begin.execution.first_attempt_at) == (1, START + 1)
    assert (begin.execution.last_failure, begin.execution.last_carrier) == (None, {})


# 5: one commit


def test_writes_publishes_and_decision_of_an_attempt_commit_together():
    """Rule 5: one transition holds all of them."""
    flow = Flow()
    flow.start("A")
    writes = Writes({"Name": Raw(b"1"), "Gone": None}, (Published("inbox", Raw(b"7")),))
    changes = flow.end("A-1", go("B"), writes).changes
    assert changes.attributes == {"Name": Raw(b"1"), "Gone": None}
    assert changes.messages == {("inbox", 1): Raw(b"7")}
    assert set(changes.executions) == {"A-1", "B-1"}
    assert changes.executions["A-1"] is None


def test_what_a_step_publishes_can_end_a_wait_in_the_same_commit():
    """Rule 5: a message that is taken at once is never stored."""
    flow = Flow()
    flow.start("WaitA", "B")
    flow.wait("WaitA-1", ChannelWait("inbox"))
    transition = flow.end("B-1", None, sending(("inbox", 1), ("inbox", 2)))
    assert consumed(flow["WaitA-1"]) == [("inbox", 1)]
    assert transition.changes.messages == {("inbox", 2): Raw(b"2")}


def test_a_transition_names_only_what_it_changed():
    """Changes do not grow with the flow."""
    flow = Flow()
    flow.start(*[f"Wait{i}" for i in range(50)], "A")
    flow.publish(*[("other", i) for i in range(50)])
    changes = flow.end("A-1", go("A")).changes
    assert set(changes.executions) == {"A-1", "A-2"}
    assert changes.messages == {}
    assert len(changes.history) == 1


# 6: stale attempts

ENDINGS: dict[str, Callable[[str, int], Event]] = {
    "execute": lambda name, n: ExecuteReturned(name, n, go("B"), sending(("inbox", 1))),
    "wait_for": lambda name, n: WaitReturned(name, n, StoredWait(), sending(("inbox", 1))),
    "failure": lambda name, n: AttemptFailed(name, n, BROKEN),
    "abandoned": AttemptAbandoned,
}


def _refused(flow: Flow, event: Event, error: type[DexAgentsError] = StaleAttemptError) -> str:
    before = bytes_of(flow.state)
    with pytest.raises(error) as caught:
        flow.apply(event)
    assert bytes_of(flow.state) == before
    return str(caught.value)


@pytest.mark.parametrize("kind", ENDINGS)
def test_results_of_attempts_that_are_not_current_are_refused(kind):
    """Rule 6: an older, newer or unknown attempt changes nothing."""
    flow = Flow()
    flow.start("A")
    flow.fail("A-1")
    flow.advance(1)  # attempt 2 runs
    for name, attempt in (("A-1", 1), ("A-1", 3), ("A-1", 0), ("A-2", 1), ("X-1", 1)):
        assert f"Attempt {attempt} of {name} " in _refused(flow, ENDINGS[kind](name, attempt))


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_second_result_of_one_attempt_is_refused(kind):
    """Rule 6: an attempt ends once; between attempts there is none to end."""
    flow = Flow()
    flow.start("A", "C")
    flow.fail("A-1")
    _refused(flow, ENDINGS[kind]("A-1", 1))
    flow.advance(1)
    flow.end("A-1")
    _refused(flow, ENDINGS[kind]("A-1", 2))


def test_a_result_of_the_other_phase_is_refused():
    """Rule 6: ``execute`` cannot end while ``wait_for`` runs, nor the other way round."""
    flow = Flow()
    flow.start("WaitA")
    assert "Attempt 1 of WaitA-1 " in _refused(flow, ENDINGS["execute"]("WaitA-1", 1))
    flow.wait("WaitA-1", groups=((),))
    _refused(flow, ENDINGS["wait_for"]("WaitA-1", 1))


def test_a_late_failure_of_wait_for_does_not_end_execute():
    """Rule 6: the phases count apart, so an end that names its phase is held to it."""
    flow = Flow()
    flow.start("WaitA")
    flow.wait("WaitA-1", groups=((),))  # attempt 1 of execute runs
    _refused(flow, AttemptFailed("WaitA-1", 1, BROKEN, phase=Phase.WAIT_FOR))
    _refused(flow, AttemptAbandoned("WaitA-1", 1, Phase.WAIT_FOR))
    flow.apply(AttemptFailed("WaitA-1", 1, BROKEN, phase=Phase.EXECUTE))
    assert flow["WaitA-1"].last_failure == BROKEN


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_result_for_what_waits_or_was_cancelled_is_refused(kind):
    """Rule 6: neither a waiting nor a cancelled execution has a current attempt."""
    flow = Flow()
    flow.start("WaitA", "B")
    flow.wait("WaitA-1", ChannelWait("inbox"))
    for attempt in (0, 1):
        _refused(flow, ENDINGS[kind]("WaitA-1", attempt))
    flow.apply(RpcReturned("drop", cancel_steps=("B",)))
    _refused(flow, ENDINGS[kind]("B-1", 1))


# 7: retries and failure routes


def test_retries_back_off():
    """Rule 7: each delay doubles up to the maximum, and nothing begins before it is over."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(initial_seconds=2.0, max_seconds=10.0)))
    flow.start("A")
    for delay in (2.0, 4.0, 8.0, 10.0, 10.0):
        transition = flow.fail("A-1")
        assert begun(transition) == []
        assert transition.changes.header.wake_at == flow.now + delay
        assert begun(flow.advance(delay - 0.001)) == []
        assert begun_ids(flow.advance(0.001)) == ["A-1"]


def test_a_retry_that_is_not_due_holds_up_nothing():
    """Rule 7: while one waits for its next attempt, those behind it are handed out."""
    flow = Flow()
    flow.start("A", "B", slots=1)
    flow.apply(AttemptFailed("A-1", 1, BROKEN), slots=0)
    assert begun_ids(flow.advance(0.5)) == ["B-1"]


def test_a_retry_after_replaces_the_back_off():
    """Rule 7: who failed may say when to try again."""
    flow = Flow()
    flow.start("A")
    assert flow.fail("A-1", retry_after=33.0).changes.header.wake_at == START + 33
    flow.advance(33)
    assert begun(flow.fail("A-1", retry_after=0.0)) == [("A-1", Phase.EXECUTE, 3)]


def test_a_retry_knows_how_the_attempt_before_failed():
    """Rule 7: the failure and its trace carrier go along to the next attempt."""
    flow = Flow()
    flow.start("A")
    flow.fail("A-1", carrier={"traceparent": "x"})
    (begin,) = flow.advance(1).effects
    assert begin.execution.last_failure == BROKEN
    assert begin.execution.last_carrier == {"traceparent": "x"}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_attempts_end_at_their_maximum(limit):
    """Rule 7: the last attempt's failure goes to the route."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(limit), failure_step="R"))
    flow.start("A")
    for _ in range(limit - 1):
        flow.fail("A-1")
        flow.advance(100)
    assert begun(flow.fail("A-1")) == [("R-1", Phase.EXECUTE, 1)]


def test_no_attempt_is_planned_beyond_the_total_time():
    """Rule 7: a retry that would begin too late is not made; one just in time is."""
    retry = RetryPolicy(total_seconds=3.0, initial_seconds=1.0)
    flow = Flow(A=ExecutionOptions(retry=retry, failure_step="R"))
    flow.start("A")
    flow.fail("A-1")  # at 1 s
    flow.advance(1)
    flow.fail("A-1")  # 1 + 2 = 3 s
    assert begun(flow.advance(2)) == [("A-1", Phase.EXECUTE, 3)]
    assert begun_ids(flow.fail("A-1")) == ["R-1"]


def test_the_failure_route_gets_the_same_input_and_the_error():
    """Rule 7: input, error message and type reach the route; its options are the given ones."""
    route = ExecutionOptions(execute_timeout=5.0)
    options = ExecutionOptions(retry=RetryPolicy(1), failure_step="R", failure_options=route)
    flow = Flow(A=options)
    flow.apply(FlowStarted("kind", to("A", {"x": [1]})))
    flow.fail("A-1")
    recovery = flow["R-1"]
    assert (recovery.input, recovery.recovery) == (Raw(b'{"x":[1]}'), BROKEN)
    assert (recovery.options, recovery.origin) == (route, "A-1")
    assert flow.machine.options(recovery) is route


def test_a_failure_route_keeps_its_error_through_retries():
    """Rule 7: the route's own failures do not hide what it was taken for."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(1), failure_step="R"))
    flow.start("A")
    flow.fail("A-1")
    flow.apply(AttemptFailed("R-1", 1, Failure("other", "E")))
    (begin,) = flow.advance(1).effects
    assert begin.execution.recovery == BROKEN


def test_without_a_route_the_flow_fails_and_says_why():
    """Rule 7: the flow's failure names the execution and the error."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(1)))
    flow.start("A", "B")
    transition = flow.fail("A-1")
    header = transition.changes.header
    assert header.status is FlowStatus.FAILED
    assert header.failure == Failure(
        "A-1 failed and has no failure route: it broke", "builtins.ValueError"
    )
    assert transition.effects == (Cancel("B-1", 1),)


def test_a_used_up_wait_for_fails_the_flow():
    """Rule 7: the failure route is ``execute``'s; ``wait_for`` has none."""
    flow = Flow(WaitA=ExecutionOptions(retry=RetryPolicy(2), failure_step="R"))
    flow.start("WaitA")
    flow.fail("WaitA-1")
    flow.advance(1)
    flow.fail("WaitA-1")
    assert flow.status is FlowStatus.FAILED
    assert "R" not in flow.state.header.counters


# 8: movements and cancelling


def test_movements_are_scheduled_in_order_and_run_in_parallel():
    """Rule 8: ``go_to_many`` hands out in the order of its movements."""
    flow = Flow()
    transition = flow.start("C", "A", "B", "A")
    assert begun_ids(transition) == ["C-1", "A-1", "B-1", "A-2"]
    orders = [flow[name].order for name in begun_ids(transition)]
    assert orders == sorted(orders)


def test_scarce_slots_go_to_what_was_scheduled_first():
    """Rule 8: the order of scheduling holds across transitions, also for retries."""
    flow = Flow()
    flow.start("A", "B", "C", slots=1)
    flow.apply(AttemptFailed("A-1", 1, BROKEN), slots=0)
    assert begun_ids(flow.advance(1, slots=2)) == ["A-1", "B-1"]


def test_an_execution_has_its_steps_options_until_its_movement_brings_some():
    """Rule 8: the options in force are the movement's, or else those of the Step."""
    row, own = ExecutionOptions(execute_timeout=1.0), ExecutionOptions(execute_timeout=2.0)
    flow = Flow(A=row)
    flow.start("S")
    flow.end("S-1", go("A", to("A", None, own)))
    assert flow.machine.options(flow["A-1"]) is row
    assert flow.machine.options(flow["A-2"]) is own


def test_a_movement_may_bring_options_of_its_own():
    """Rule 8: a movement's options replace those of the Step."""
    flow = Flow(A=ExecutionOptions(retry=RetryPolicy(1)))
    flow.start("S")
    own = ExecutionOptions(retry=RetryPolicy(2), failure_step="R")
    flow.end("S-1", go(to("A", None, own)))
    flow.fail("A-1")
    flow.advance(1)
    assert begun_ids(flow.fail("A-1")) == ["R-1"]


def test_a_decision_cancels_by_type():
    """Rule 8: every other execution of the Step goes, running, waiting or not begun."""
    flow = Flow()
    flow.start("A", "WaitB", "A", "C", slots=3)
    flow.wait("WaitB-1", ChannelWait("inbox"))
    flow.apply(RpcReturned("more", next_steps=(to("A"),)), slots=0)
    transition = flow.end("C-1", go("D", cancel_steps=("A", "WaitB")))
    assert set(flow.state.executions) == {"D-1"}
    assert [e for e in transition.effects if isinstance(e, Cancel)] == [
        Cancel("A-1", 1),
        Cancel("A-2", 1),
    ]
    assert begun_ids(flow.publish(("inbox", 1))) == []


def test_a_step_that_goes_to_its_own_type_is_not_cancelled_by_its_own_decision():
    """Rule 8: cancelling comes before scheduling, so new movements stay."""
    flow = Flow()
    flow.start("A", "A")
    flow.end("A-1", go("A", cancel_steps=("A",)))
    assert set(flow.state.executions) == {"A-3"}


def test_siblings_are_what_the_same_decision_scheduled():
    """Rule 8: cancelling siblings spares executions of other origins."""
    flow = Flow()
    flow.start("S", "T")
    flow.end("S-1", go("A", "B", "C"))
    flow.end("T-1", go("B"))
    flow.end("A-1", go(cancel_sibling_steps=("B",)))
    assert set(flow.state.executions) == {"C-1", "B-2"}


def test_siblings_are_cancelled_in_the_order_of_scheduling():
    """Rule 8: which of them began first does not matter."""
    flow = Flow()
    flow.start("C", "A", "B", slots=1)
    flow.advance(0)
    flow.apply(AttemptAbandoned("A-1", 1))  # it begins last now
    transition = flow.end("C-1", go(cancel_sibling_steps=("A", "B")))
    assert transition.effects == (Cancel("A-1", 1), Cancel("B-1", 1))


def test_a_cancelled_step_gives_its_lock_to_the_next():
    """Rule 8: cancelling releases locks in the same transition."""
    options = ExecutionOptions(locks=("Name",))
    flow = Flow(A=options, B=options)
    flow.start("A", "B")
    assert flow.state.locks == {"Name": "A-1"}
    transition = flow.apply(RpcReturned("drop", cancel_steps=("A",)))
    assert transition.effects[0] == Cancel("A-1", 1)
    assert begun_ids(transition) == ["B-1"]
    assert flow.state.locks == {"Name": "B-1"}


# 10: RPCs and locks


def test_an_rpc_commits_writes_publishes_steps_and_cancels_together():
    """Rule 10: all that an RPC does is one transition."""
    flow = Flow()
    flow.start("A", "WaitB")
    flow.wait("WaitB-1", ChannelWait("inbox"))
    writes = Writes({"Name": Raw(b"1")}, sending(("inbox", 1)).published)
    event = RpcReturned("ask", writes, (to("C"), to("D")), ("A",))
    transition = flow.apply(event)
    assert transition.changes.attributes == {"Name": Raw(b"1")}
    assert transition.effects[0] == Cancel("A-1", 1)
    assert begun_ids(transition) == ["WaitB-1", "C-1", "D-1"]
    assert flow["C-1"].origin == "__rpc/ask"
    assert transition.changes.history[0].event_type is HistoryEvent.RPC_COMPLETED
    assert transition.changes.history[0].step_type == "ask"


def test_locks_are_held_from_the_first_attempt_to_the_last():
    """Rule 10: a lock is taken when ``execute`` begins, kept between attempts, then released."""
    flow = Flow(WaitA=ExecutionOptions(locks=("Name", "Other")))

    def is_locked() -> bool:
        try:
            flow.machine.require_locks(flow.state, "ask", ("Unused", "Other"))
        except RpcLockConflictError as error:
            assert "RPC ask cannot lock Other" in str(error)
            return True
        return False

    flow.start("WaitA")
    assert not is_locked()  # wait_for holds nothing
    flow.wait("WaitA-1", ChannelWait("inbox"))
    assert not is_locked()
    flow.publish(("inbox", 1))
    assert is_locked()
    flow.fail("WaitA-1")
    assert is_locked()
    flow.advance(1)
    assert is_locked()
    flow.end("WaitA-1")
    assert not is_locked()


def test_a_lock_has_one_holder_and_waits_in_order():
    """Rule 10: who cannot have all its locks takes none, and does not hold up the others."""
    flow = Flow(A=ExecutionOptions(locks=("X", "Y")), B=ExecutionOptions(locks=("Y",)))
    transition = flow.start("B", "A", "B", "C")
    assert begun_ids(transition) == ["B-1", "C-1"]
    assert flow.state.locks == {"Y": "B-1"}
    assert begun_ids(flow.end("B-1")) == ["A-1"]
    assert flow.state.locks == {"X": "A-1", "Y": "A-1"}
    assert begun_ids(flow.end("A-1")) == ["B-2"]


def test_a_used_up_step_releases_its_lock_for_its_failure_route():
    """Rule 10: the last attempt's end is the lock's end."""
    options = ExecutionOptions(retry=RetryPolicy(1), failure_step="R", locks=("X",))
    flow = Flow(A=options, R=ExecutionOptions(locks=("X",)))
    flow.start("A")
    assert begun_ids(flow.fail("A-1")) == ["R-1"]
    assert flow.state.locks == {"X": "R-1"}


# 11: Timers


def test_timers_never_fire_early_and_fire_at_once_after_downtime():
    """Rule 11: a Timer is due from its time on, however long nobody looked."""
    flow = Flow()
    flow.start("WaitA", "WaitB")
    flow.wait("WaitA-1", TimerWait(START + 10))
    transition = flow.wait("WaitB-1", TimerWait(START + 20))
    assert transition.changes.header.wake_at == START + 10
    assert begun_ids(flow.advance(9.999)) == []
    flow.now = START + 10
    assert begun_ids(flow.apply(TimeAdvanced())) == ["WaitA-1"]
    assert begun_ids(flow.advance(1e6)) == ["WaitB-1"]


def test_a_due_timer_fires_with_whatever_event_comes_first():
    """Rule 11: any transition after its time fires a Timer."""
    flow = Flow()
    flow.start("WaitA", "B")
    flow.wait("WaitA-1", TimerWait(START + 10))
    flow.now += 11
    assert begun_ids(flow.end("B-1")) == ["WaitA-1"]


def test_a_fired_timer_that_is_not_enough_does_not_wake_the_flow_again():
    """Rule 11: once a group's Timer has fired, only its Channel is waited for."""
    flow = Flow()
    flow.start("WaitA")
    conditions = (TimerWait(START + 5), ChannelWait("inbox"), TimerWait(START + 50))
    flow.wait("WaitA-1", *conditions, groups=((0, 1), (2,)))
    assert flow.state.header.wake_at == START + 5
    assert flow.advance(5).changes.header.wake_at == START + 50
    flow.publish(("inbox", 1))
    assert flow["WaitA-1"].chosen == (0, 1)


def test_a_timer_condition_alone_leaves_nothing_to_wake_for():
    """Rule 11: when every Timer of an unfinished wait has fired, nothing wakes the flow."""
    flow = Flow()
    flow.start("WaitA")
    flow.wait("WaitA-1", TimerWait(START + 5), ChannelWait("inbox"), groups=((0, 1),))
    assert flow.advance(5).changes.header.wake_at is None


def test_wake_at_is_now_while_something_runs_or_could():
    """A worker is needed while attempts run, and when something is due without a slot."""
    flow = Flow()
    assert flow.start("A", slots=0).changes.header.wake_at == 0.0
    assert flow.advance(0).changes.header.wake_at == 0.0
    assert flow.fail("A-1").changes.header.wake_at == START + 1
    flow.advance(1)
    assert flow.end("A-1").changes.header.wake_at is None


# 12: stopping and closing


def test_a_stopped_flow_runs_nothing_more():
    """Rule 12: everything is cancelled, the reason is kept, and every event is refused."""
    flow = Flow()
    flow.start("A", "WaitB", "C", slots=2)
    flow.now += 5
    transition = flow.apply(FlowStopped("enough"))
    header = transition.changes.header
    assert (header.status, header.closed_at) == (FlowStatus.STOPPED, START + 5)
    assert header.failure == Failure("enough", "")
    assert transition.effects == (Cancel("A-1", 1), Cancel("WaitB-1", 1))
    assert transition.changes.executions == {"A-1": None, "WaitB-1": None, "C-1": None}
    for event in (TimeAdvanced(), FlowStopped(), RpcReturned("x"), AttemptsLost(BROKEN)):
        assert "'flow' is stopped" in _refused(flow, event, FlowNotActiveError)
    for kind in ENDINGS.values():
        _refused(flow, kind("A-1", 1))


def test_a_stop_needs_no_reason():
    """Rule 12: without a reason there is no failure to show."""
    flow = Flow()
    flow.start("A")
    assert flow.apply(FlowStopped()).changes.header.failure is None


def test_a_closed_flow_keeps_its_messages():
    """Rule 12: what was not consumed stays readable."""
    flow = Flow()
    flow.start("A")
    flow.publish(("inbox", 1))
    transition = flow.apply(FlowStopped())
    assert transition.changes.messages == {}
    assert list(flow.state.queues["inbox"]) == [1]


def test_executions_are_cancelled_in_the_order_of_scheduling():
    """Two workers that stop the same flow write the same history."""
    flow = Flow()
    flow.start("A", "B", "C", slots=0)
    flow.advance(0, slots=1)  # A-1 begins, which must not move it behind the others
    transition = flow.apply(FlowStopped())
    canceled = [e.step_execution_id for e in transition.changes.history][:-1]
    assert canceled == ["A-1", "B-1", "C-1"]


def test_a_dead_end_leaves_the_flow_open():
    """A branch that ends without closing leaves a flow that RPCs can still use."""
    flow = Flow()
    flow.start("A")
    flow.end("A-1", ExecutionDecision(close=CloseKind.DEAD_END))
    assert (flow.status, flow.state.executions) == (FlowStatus.RUNNING, {})
    assert begun_ids(flow.apply(RpcReturned("more", next_steps=(to("A"),)))) == ["A-2"]


def test_a_graceful_completion_waits_for_the_other_branches():
    """The flow completes with the last execution, and keeps the outputs in order."""
    flow = Flow()
    flow.start("A", "B", "C")
    done = ExecutionDecision(close=CloseKind.GRACEFUL_COMPLETE, output=Raw(b"1"))
    flow.end("A-1", done)
    flow.end("B-1", go("D"))
    assert (flow.status, flow.state.header.is_completing) == (FlowStatus.RUNNING, True)
    flow.end("D-1", ExecutionDecision(close=CloseKind.GRACEFUL_COMPLETE, output=Raw(b"2")))
    flow.end("C-1")
    assert flow.status is FlowStatus.COMPLETED
    assert flow.state.header.outputs == (Raw(b"1"), Raw(b"2"))


def test_a_graceful_completion_follows_a_cancellation_too():
    """Whatever takes the last execution away completes the flow."""
    flow = Flow()
    flow.start("A", "B")
    flow.end("A-1", ExecutionDecision(close=CloseKind.GRACEFUL_COMPLETE))
    flow.apply(RpcReturned("drop", cancel_steps=("B",)))
    assert flow.status is FlowStatus.COMPLETED


def test_a_forced_completion_cancels_the_other_branches():
    """The flow completes at once, with its output."""
    flow = Flow()
    flow.start("A", "B")
    output = ExecutionDecision(close=CloseKind.FORCE_COMPLETE, output=Raw(b"1"))
    transition = flow.end("A-1", output)
    assert (flow.status, flow.state.header.outputs) == (FlowStatus.COMPLETED, (Raw(b"1"),))
    assert transition.effects == (Cancel("B-1", 1),)


@pytest.mark.parametrize("reason", ["no", 'say "no"', "", '"', "line\nbreak", "ü\\"])
def test_a_forced_failure_says_its_reason(reason):
    """The flow fails at once, with exactly the given reason."""
    flow = Flow()
    flow.start("A", "B")
    output = Raw(msgspec.json.encode(reason))
    transition = flow.end("A-1", ExecutionDecision(close=CloseKind.FORCE_FAIL, output=output))
    assert (flow.status, flow.state.header.failure) == (FlowStatus.FAILED, Failure(reason, ""))
    assert transition.effects == (Cancel("B-1", 1),)
    assert flow.state.header.outputs == ()


@pytest.mark.parametrize(
    ("output", "reason"), [(None, ""), (Raw(b'{"code":7}'), '{"code":7}'), (Raw(b"7"), "7")]
)
def test_a_forced_failure_may_give_any_reason(output, reason):
    """A reason that is no text is told as JSON, and none at all as an empty one."""
    flow = Flow()
    flow.start("A")
    flow.end("A-1", ExecutionDecision(close=CloseKind.FORCE_FAIL, output=output))
    assert flow.state.header.failure == Failure(reason, "")


# History, and what is loaded


def test_the_history_tells_what_happened():
    """Each line has its number, time, execution and attempt."""
    flow = Flow(WaitA=ExecutionOptions(retry=RetryPolicy(2), failure_step="R"))
    entries = []
    for transition in (
        flow.start("WaitA"),
        flow.wait("WaitA-1", groups=((),)),
        flow.fail("WaitA-1"),
        flow.advance(1),
        flow.fail("WaitA-1"),
        flow.end("R-1", ExecutionDecision(close=CloseKind.GRACEFUL_COMPLETE)),
    ):
        entries += transition.changes.history
    assert [entry.seq for entry in entries] == list(range(1, 7))
    assert [(e.event_type, e.step_execution_id, e.final_attempt) for e in entries] == [
        (HistoryEvent.FLOW_STARTED, "", 0),
        (HistoryEvent.WAIT_FOR_COMPLETED, "WaitA-1", 1),
        (HistoryEvent.ATTEMPT_FAILED, "WaitA-1", 1),
        (HistoryEvent.EXECUTE_FAILED, "WaitA-1", 2),
        (HistoryEvent.EXECUTE_COMPLETED, "R-1", 1),
        (HistoryEvent.FLOW_CLOSED, "", 0),
    ]
    assert [entry.at for entry in entries] == [START] * 3 + [START + 1] * 3
    assert [entry.failure for entry in entries[2:4]] == [BROKEN, BROKEN]
    assert [entry.step_type for entry in entries] == ["", "WaitA", "WaitA", "WaitA", "R", ""]
    assert (entries[4].origin, entries[4].begun_at) == ("WaitA-1", START + 1)


def test_the_history_tells_how_long_each_attempt_waited_for_a_worker():
    """Each line tells when its attempt could have begun, and when it did."""
    flow = Flow()
    entries = flow.start("A", slots=0).changes.history
    flow.advance(3)  # it begins
    entries += flow.fail("A-1").changes.history  # to be tried again 1 s later
    flow.advance(5)
    entries += flow.end("A-1").changes.history
    assert [(e.event_type, e.scheduled_at, e.begun_at) for e in entries] == [
        (HistoryEvent.FLOW_STARTED, 0.0, 0.0),
        (HistoryEvent.ATTEMPT_FAILED, START, START + 3),
        (HistoryEvent.EXECUTE_COMPLETED, START + 4, START + 8),
    ]


def test_the_history_names_what_an_rpc_cancelled():
    """The RPC comes first, under its name; then each execution that it cancelled."""
    flow = Flow()
    flow.start("A", "B")
    entries = flow.apply(RpcReturned("drop", cancel_steps=("A",))).changes.history
    assert [(e.event_type, e.step_type, e.step_execution_id) for e in entries] == [
        (HistoryEvent.RPC_COMPLETED, "drop", ""),
        (HistoryEvent.CANCELED, "A", "A-1"),
    ]


def test_a_header_keeps_what_the_start_wrote():
    """No later event changes the flow's type, nor when it was started."""
    flow = Flow()
    flow.start("A")
    header = flow.advance(5).changes.header
    assert (header.flow_type, header.started_at, header.version) == ("kind", START, 2)


def test_a_loaded_state_goes_on_where_the_stored_one_was():
    """Rows in any order give the same indexes: Timers fire, and messages and locks are there."""
    flow = Flow(A=ExecutionOptions(locks=("Name",)))
    flow.start("WaitT", "WaitC", "A", "B")
    flow.wait("WaitT-1", TimerWait(START + 5))
    flow.wait("WaitC-1", ChannelWait("inbox", 3, 3))
    flow.publish(("inbox", 1), ("inbox", 2))
    stored = bytes_of(flow.state)
    queue = flow.state.queues["inbox"].items()
    executions = reversed(list(flow.state.executions.values()))
    flow.state = FlowState(
        flow.state.header, executions, [("inbox", number, payload) for number, payload in queue]
    )
    assert [*flow.state.executions] == ["WaitT-1", "WaitC-1", "A-1", "B-1"]
    assert flow.state.locks == {"Name": "A-1"}
    assert begun_ids(flow.advance(5)) == ["WaitT-1"]
    assert begun_ids(flow.publish(("inbox", 3))) == ["WaitC-1"]
    assert consumed(flow["WaitC-1"]) == [("inbox", 1), ("inbox", 2), ("inbox", 3)]
    assert bytes_of(flow.state) != stored


def test_replayed_changes_lead_to_the_same_state():
    """What a transition changed, applied to a copy as a store would, gives an equal state."""
    flow, copy = Flow(), FlowState.absent("flow")
    for transition in (
        flow.start("WaitA"),
        flow.publish(("inbox", 1), ("other", 2)),
        flow.wait("WaitA-1", ChannelWait("inbox")),
        flow.end("WaitA-1", go("B")),
    ):
        copy.apply(transition.changes)
    assert copy == flow.state
    assert ([*copy.executions], copy.queues) == (["B-1"], {"other": {2: Raw(b"2")}})


def test_a_state_shows_itself_briefly():
    """A state's ``repr`` names the flow, its version and what its executions do."""
    flow = Flow()
    flow.start("A")
    flow.apply(RpcReturned("more", next_steps=(to("B"),)), slots=0)
    assert repr(flow.state) == "<FlowState 'flow' v2 running [A-1:execute#1*, B-1:execute#0]>"
    assert flow.state != "flow"


# Rules from a table


def test_a_table_gives_the_machine_its_rules():
    """Waits, retries, routes, loads and locks of a row reach the machine by physical name."""

    async def execute(context: Any, given: Any) -> Decision:
        return Decision.dead_end()

    async def wait_for(context: Any, given: Any) -> Wait:
        return Wait.skip_immediately()

    name, items = Attribute("Name", str), AttributeMap("Items", int)
    inbox, answers = Channel("Inbox", str), ChannelMap("Answers", str)
    options = StepOptions(
        1.0,
        2.0,
        3.0,
        RetryPolicy(4, 5.0, 6.0, 7.0, 8.0),
        "B",
        StepOptions(loads=(answers["a b"],)),
        (items, items["k"], inbox, answers),
        (name,),
    )
    steps = (Step("A", execute, wait_for=wait_for, options=options), Step("B", execute))
    rules = TableRules(FlowTable("Flow", steps, (), (name, items, inbox, answers)))
    assert (rules.has_wait("A", None), rules.has_wait("B", None)) == (True, False)
    assert rules.options("B") == ExecutionOptions()
    assert rules.options("A") == execution_options(options)
    assert rules.options("A") == ExecutionOptions(
        1.0,
        2.0,
        3.0,
        RetryPolicy(4, 5.0, 6.0, 7.0, 8.0),
        "B",
        ExecutionOptions(loads=("Answers/a%20b",)),
        ("Items/", "Items/k", "Inbox", "Answers/"),
        ("Name",),
    )


def test_a_step_that_the_table_no_longer_has_is_named():
    """An execution was stored by another version of the table."""

    async def execute(context: Any, given: Any) -> Decision:
        return Decision.dead_end()

    rules = TableRules(FlowTable("Flow", (Step("A", execute),)))
    with pytest.raises(UndeclaredError, match=r"execution of Flow used Step Gone"):
        rules.options("Gone")


def test_an_execution_that_waits_for_nothing_yet_is_not_looked_for():
    """A row without its wait, as a damaged file may hold one, wakes nobody."""
    state = FlowState(FlowHeader("f", version=1))
    state.put(Execution("Step-1", "Step", 1, b"null", Phase.WAITING))
    assert (state.timed, state.waiting_on, [*state.executions]) == ({}, {}, ["Step-1"])
