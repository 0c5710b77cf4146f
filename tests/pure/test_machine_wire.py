"""What the flow machine does for engines whose options and events go beyond our tables."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from dex_agents.errors import FlowNotActiveError, RpcLockConflictError
from dex_agents.machine import (
    AttemptFailed,
    Begin,
    ChannelWait,
    ExecuteReturned,
    ExecutionDecision,
    ExecutionOptions,
    Failure,
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
    StepsScheduled,
    StoredWait,
    TimeAdvanced,
    TimerSkipped,
    TimerWait,
    WaitReturned,
    Writes,
)
from dex_agents.table import RetryPolicy

BROKEN = Failure("it broke", "builtins.ValueError")
NULL = Raw(b"null")


class Rules:
    """Steps wait unless their options say otherwise; options come with the movements."""

    def has_wait(self, step, options):
        return options is None or options.extension != "no wait"

    def options(self, step):
        return ExecutionOptions()


class Flow:
    """One flow and its time."""

    def __init__(self, options: ExecutionOptions | None = None) -> None:
        self.machine = Machine(Rules())
        self.state = FlowState.absent("flow")
        self.now = 1000.0
        self.apply(FlowStarted("kind", ScheduledStep("A", NULL, options)))

    def apply(self, event, slots=9):
        return self.machine.apply(self.state, event, self.now, slots)

    def fail(self):
        execution = self["A-1"]
        return self.apply(AttemptFailed("A-1", execution.attempt, BROKEN, phase=execution.phase))

    def wait(self, *conditions):
        everything = (tuple(range(len(conditions))),)
        return self.apply(WaitReturned("A-1", 1, StoredWait(conditions, everything)))

    def wait_for_any(self, *conditions):
        each = tuple((position,) for position in range(len(conditions)))
        return self.apply(WaitReturned("A-1", 1, StoredWait(conditions, each)))

    def __getitem__(self, execution_id):
        return self.state.executions[execution_id]


def begun(transition):
    return [
        (each.execution.id, each.execution.phase, each.execution.attempt)
        for each in transition.effects
        if isinstance(each, Begin)
    ]


def test_wait_for_has_a_retry_policy_of_its_own():
    """wait_for is retried by its policy, execute by the other."""
    once, twice = RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=2)
    flow = Flow(ExecutionOptions(retry=once, wait_for_retry=twice))
    flow.fail()
    flow.now += 1.0
    assert begun(flow.apply(TimeAdvanced())) == [("A-1", Phase.WAIT_FOR, 2)]
    flow.apply(WaitReturned("A-1", 2, StoredWait()))
    flow.fail()
    assert flow.state.header.status is FlowStatus.FAILED


def test_without_a_policy_of_its_own_wait_for_is_retried_like_execute():
    """One policy counts for both."""
    flow = Flow(ExecutionOptions(retry=RetryPolicy(max_attempts=1)))
    flow.fail()
    assert flow.state.header.status is FlowStatus.FAILED


def test_a_failed_wait_for_can_be_passed_over():
    """execute runs as attempt 1, knows the failure, and holds no lock of wait_for any more."""
    options = ExecutionOptions(
        wait_for_retry=RetryPolicy(max_attempts=1), wait_for_proceeds=True, wait_for_locks=("W",)
    )
    flow = Flow(options)
    assert flow.state.locks == {"W": "A-1"}
    transition = flow.fail()
    assert begun(transition) == [("A-1", Phase.EXECUTE, 1)]
    assert (flow["A-1"].wait_failed, flow["A-1"].recovery) == (True, BROKEN)
    assert flow.state.locks == {}
    assert [each.event_type for each in transition.changes.history] == [
        HistoryEvent.WAIT_FOR_FAILED
    ]


def test_execute_without_its_wait_begins_afresh():
    """Of the attempts of wait_for nothing is left in its row, handed out or not."""
    options = ExecutionOptions(
        wait_for_retry=RetryPolicy(max_attempts=2), wait_for_proceeds=True, wait_for_locks=("W",)
    )
    flow = Flow(options)
    failure = Failure("no", "Error")
    first = AttemptFailed("A-1", 1, failure, carrier={"traceparent": "t"})
    flow.machine.apply(flow.state, first, flow.now, 9)
    flow.now += 1.0
    flow.machine.apply(flow.state, TimeAdvanced(), flow.now, 9)
    flow.now += 5.0
    flow.machine.apply(flow.state, AttemptFailed("A-1", 2, failure), flow.now, 0)
    row = flow["A-1"]
    assert (row.phase, row.attempt, row.is_running) == (Phase.EXECUTE, 0, False)
    assert (row.scheduled_at, row.due_at, row.first_attempt_at) == (flow.now, 0.0, 0.0)
    assert (row.last_failure, row.last_carrier, row.locks) == (None, {}, ())
    flow.machine.apply(flow.state, TimeAdvanced(), flow.now, 9)
    row = flow["A-1"]
    assert (row.attempt, row.begun_at, row.first_attempt_at) == (1, flow.now, flow.now)


def test_the_end_of_a_wait_makes_its_step_due_at_once():
    """Whatever delay its wait_for had been retried with."""
    flow = Flow(ExecutionOptions(wait_for_retry=RetryPolicy(max_attempts=2)))
    flow.fail()
    flow.now += 1.0
    flow.apply(TimeAdvanced())
    flow.now += 5.0
    returned = WaitReturned("A-1", 2, StoredWait((ChannelWait("C"),), ((0,),)))
    flow.apply(returned)
    flow.now += 7.0
    sent = RpcReturned("send", Writes({}, (Published("C", NULL),)))
    flow.machine.apply(flow.state, sent, flow.now, 0)
    row = flow["A-1"]
    assert (row.due_at, row.scheduled_at, row.first_attempt_at) == (0.0, flow.now, 0.0)


def test_a_stop_is_told_with_its_reason():
    """In the history's last line, too."""
    transition = Flow().apply(FlowStopped("enough"))
    assert transition.changes.history[-1].failure == Failure("enough", "")


def test_wait_for_holds_its_locks_until_it_returns():
    """Another Step that locks the same waits for wait_for, not for the wait."""
    options = ExecutionOptions(wait_for_locks=("L",))
    flow = Flow(options)
    other = ExecutionOptions(locks=("L",), extension="no wait")
    scheduled = StepsScheduled("somebody", (ScheduledStep("B", NULL, other),))
    assert begun(flow.apply(scheduled)) == []
    assert begun(flow.wait(ChannelWait("C"))) == [("B-1", Phase.EXECUTE, 1)]


def test_a_flow_can_start_without_a_step():
    """It runs until somebody schedules a Step, whose origin is told."""
    machine, state = Machine(Rules()), FlowState.absent("flow")
    started = machine.apply(state, FlowStarted("kind", None), 1.0, 9)
    assert (started.effects, state.header.status) == ((), FlowStatus.RUNNING)
    event = StepsScheduled("clock", (ScheduledStep("A", NULL),))
    assert begun(machine.apply(state, event, 2.0, 9)) == [("A-1", Phase.WAIT_FOR, 1)]
    assert state.executions["A-1"].origin == "clock"


def test_a_closed_flow_takes_neither_steps_nor_skips():
    """Both are refused, and nothing changes."""
    flow = Flow()
    flow.apply(FlowStopped())
    before = msgspec.json.encode(flow.state.header)
    for event in (StepsScheduled("x", ()), TimerSkipped("A-1", 0)):
        with pytest.raises(FlowNotActiveError):
            flow.apply(event)
    assert msgspec.json.encode(flow.state.header) == before


def test_a_skipped_timer_has_fired():
    """The wait is over in the same transition, if the Timer was what it lacked."""
    flow = Flow()
    flow.wait(TimerWait(9000.0), ChannelWait("C"))
    flow.now += 7.0
    assert begun(flow.apply(TimerSkipped("A-1", 0))) == []
    assert flow["A-1"].wait.conditions == (TimerWait(flow.now), ChannelWait("C"))
    sent = RpcReturned("send", Writes({}, (Published("C", NULL),)))
    assert begun(flow.apply(sent)) == [("A-1", Phase.EXECUTE, 1)]
    assert flow["A-1"].chosen == (0, 1)


@pytest.mark.parametrize(("execution_id", "position"), [("A-1", 1), ("A-1", 7), ("B-1", 0)])
def test_what_is_no_waiting_timer_cannot_be_skipped(execution_id, position):
    """A Channel, a position or an execution that is not there is passed over."""
    flow = Flow()
    flow.wait(TimerWait(9000.0), ChannelWait("C"))
    rows = msgspec.json.encode(flow.state.executions)
    assert flow.apply(TimerSkipped(execution_id, position)).effects == ()
    assert msgspec.json.encode(flow.state.executions) == rows


def test_a_timer_is_skipped_by_its_own_position():
    """A Channel beside it cannot stand for it, and a Timer after the wait is no more there."""
    flow = Flow()
    waits = (ChannelWait("C"), TimerWait(9000.0))
    flow.wait_for_any(*waits)
    flow.apply(TimerSkipped("A-1", 0))
    assert flow["A-1"].wait.conditions == waits
    assert begun(flow.apply(TimerSkipped("A-1", 1))) == [("A-1", Phase.EXECUTE, 1)]
    assert flow["A-1"].chosen == (1,)
    assert flow.apply(TimerSkipped("A-1", 1)).changes.executions == {}


def test_messages_are_discarded_before_others_are_published():
    """A discarded message is gone from the rows; one that is not queued is passed over."""
    flow = Flow()
    both = (Published("C", Raw(b"1")), Published("C", Raw(b"2")))
    flow.apply(RpcReturned("send", Writes({}, both)))
    writes = Writes({}, (Published("C", Raw(b"3")),), (("C", 1), ("C", 99), ("D", 1)))
    transition = flow.apply(RpcReturned("swap", writes))
    assert flow.state.queues == {"C": {2: Raw(b"2"), 3: Raw(b"3")}}
    assert transition.changes.messages == {("C", 1): None, ("C", 3): Raw(b"3")}


def test_a_lock_that_no_step_holds_delays_steps_and_refuses_rpcs():
    """It holds until its holder lets go, and is no part of the stored rows."""
    flow = Flow(ExecutionOptions(locks=("L",)))
    flow.state.lock("rpc", ("L", "M"))
    with pytest.raises(RpcLockConflictError):
        flow.machine.require_locks(flow.state, "ask", ("M",))
    assert begun(flow.apply(WaitReturned("A-1", 1, StoredWait()))) == []
    flow.state.unlock("rpc")
    assert begun(flow.apply(TimeAdvanced())) == [("A-1", Phase.EXECUTE, 1)]
    assert flow.state.locks == {"L": "A-1"}
    flow.apply(ExecuteReturned("A-1", 1, ExecutionDecision()))
    assert flow.state.locks == {}


def test_a_retry_does_not_wait_for_a_clock_that_was_set_back():
    """It waits its second; when the clock reads a time before the attempt, it runs at once."""
    flow = Flow()
    flow.now += 0.1
    flow.fail()
    assert begun(flow.apply(TimeAdvanced())) == []
    assert flow.state.header.wake_at > flow.now
    flow.now -= 3600.0
    assert begun(flow.apply(TimeAdvanced())) == [("A-1", Phase.WAIT_FOR, 2)]


def test_a_timer_waits_for_a_clock_that_was_set_back():
    """It never fires before its time by the wall, however long ago it was set."""
    flow = Flow()
    flow.wait(TimerWait(1010.0))
    for now in (1009.9, 500.0, 1009.9):
        flow.now = now
        assert begun(flow.apply(TimeAdvanced())) == []
    flow.now = 1010.0
    assert begun(flow.apply(TimeAdvanced())) == [("A-1", Phase.EXECUTE, 1)]
