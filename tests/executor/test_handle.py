"""A handle starts over from fresh state, and tells what ran elsewhere from what never began."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from dex_agents.errors import StoreUnavailableError
from dex_agents.executor import VirtualClock
from dex_agents.executor.handle import FlowHandle, Served
from dex_agents.machine import (
    AttemptFailed,
    Failure,
    FlowStarted,
    FlowState,
    Machine,
    RpcReturned,
    ScheduledStep,
    StoredWait,
    TableRules,
    WaitReturned,
)
from dex_agents.table import Decision, FlowTable, RetryPolicy, Step, StepOptions, Wait
from dex_agents.testing import wait_until
from dex_agents_memory.store import MemoryStore

NOTHING = Raw(b"null")
NOW = StoredWait((), ((),))
"""A wait that is over at once."""


async def _end(_context, _given):
    return Decision.graceful_complete()


async def _skip(_context, _given):
    return Wait.skip_immediately()


TABLE = FlowTable(
    "Flow",
    (
        Step(
            "Once",
            _end,
            options=StepOptions(retry=RetryPolicy(max_attempts=1)),
            next_steps=("Waits", "Again"),
        ),
        Step("Waits", _end, wait_for=_skip),
        Step("Again", _end, options=StepOptions(retry=RetryPolicy(initial_seconds=60.0))),
    ),
)


class ForgetfulStore(MemoryStore):
    """Writes everything, and says of the next few commits that it did not."""

    untold = 0

    def commit(self, commit):
        untold, self.untold = self.untold > 0, max(self.untold - 1, 0)
        if not untold:
            super().commit(commit)
            return
        super().commit(replace(commit, done=lambda _: None))
        commit.finish(StoreUnavailableError("s.db", "it did not say why"))


class Worker:
    """An owner of handles that only notes which attempts begin."""

    def __init__(self, name, store, slots=10):
        self.worker = name
        self.store = store
        self.slots = slots
        self.begun = []
        self.starved = []

    def free_slots(self):
        return self.slots

    def take_slots(self, count):
        self.slots -= count

    def return_slots(self, count):
        self.slots += count

    def starve(self, handle):
        self.starved.append(handle)

    def begin(self, handle, execution):
        self.begun.append((execution.id, str(execution.phase), execution.attempt))
        return _Attempt(execution)

    def refused(self, handle, error):
        pass

    def store_refused(self, handle, error):
        pass

    def drop(self, handle):
        handle.close()


class _Attempt:
    def __init__(self, execution):
        self.execution = execution

    def cancel(self):
        pass


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    return ForgetfulStore(clock)


def handle_of(worker, state=None):
    served = Served(TABLE, Machine(TableRules(TABLE)))
    return FlowHandle(worker, served, state or FlowState.absent("f"))


def start(handle, step):
    return handle.request(lambda _: (FlowStarted("Flow", ScheduledStep(step, NOTHING)), None))


async def recovered(handle, store):
    """Wait until a handle has tried the store again, and it took everything."""
    await wait_until(
        "a recovery", lambda: not store.untold and handle.is_settled and not handle._is_behind
    )


async def test_what_ran_elsewhere_is_lost_and_not_run_again(store):
    """The flow went to another worker, which began a call, and came back unnoticed."""
    first, second = Worker("first", store, slots=0), Worker("second", store)
    handle = handle_of(first)
    await start(handle, "Once")
    claimed = []
    store.claim("second", 60.0, ["Flow"], 1, claimed.extend)
    assert claimed == ["f"]
    handle_of(second, store.load("f")).take_over()
    assert second.begun == [("Once-1", "execute", 1)]

    store.release("second", lambda _: None)
    first.slots = 10
    store.claim("first", 60.0, ["Flow"], 1, claimed.extend)
    handle.refresh()

    assert first.begun == []
    header = store.header("f")
    assert (header.status, header.failure.error_type) == ("failed", "dex_agents.WorkerLost")


async def test_a_step_goes_on_after_a_commit_that_was_durable_all_the_same(store):
    """The end of a wait was stored although it seemed to fail; its Step is executed, once."""
    worker = Worker("w", store)
    handle = handle_of(worker)
    await start(handle, "Waits")
    store.untold = 1
    (waiting,) = handle.attempts.values()
    handle.ended(waiting, WaitReturned("Waits-1", 1, NOW))
    await recovered(handle, store)
    assert worker.begun == [("Waits-1", "wait_for", 1), ("Waits-1", "execute", 1)]


@pytest.mark.parametrize("untold", [1, 2, 3])
async def test_an_attempt_that_has_begun_is_not_abandoned(store, untold):
    """However often a hand-out seemed to fail, each attempt begins once."""
    worker = Worker("w", store, slots=2)
    handle = handle_of(worker)
    await start(handle, "Once")
    store.untold = untold
    steps = tuple(ScheduledStep(name, NOTHING) for name in ("Again", "Again", "Again"))
    with pytest.raises(StoreUnavailableError):
        await handle.request(lambda _: (RpcReturned("rpc", next_steps=steps), None))
    await recovered(handle, store)
    assert len(worker.begun) == len(set(worker.begun)) == 2
    running = {
        (each.id, str(each.phase), each.attempt)
        for each in store.load("f").executions.values()
        if each.is_running
    }
    assert running == set(worker.begun)


async def test_a_retry_comes_though_the_clock_was_set_back(store, clock):
    """It was due by the clock of before; by the clock of now it is due later, and then it comes."""
    worker = Worker("w", store)
    handle = handle_of(worker)
    await start(handle, "Again")
    (attempt,) = handle.attempts.values()
    handle.ended(attempt, AttemptFailed("Again-1", 1, Failure("no", "Error")))
    worker.slots = 0
    await clock.advance(3600)
    assert worker.starved
    clock._now -= 3600
    worker.slots = 10
    handle.tick()
    assert worker.begun == [("Again-1", "execute", 1)]
    await clock.advance(60)
    assert worker.begun == [("Again-1", "execute", 1), ("Again-1", "execute", 2)]
