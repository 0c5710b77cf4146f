"""SIGKILL at exact moments on Dex: at most the running call repeats; no write is doubled."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_dex.testing import ChildExitedError
from tests.dex.conftest import told

pytestmark = pytest.mark.timeout(120)


async def test_a_killed_model_call_runs_once_more(gated):
    """Only the model call that was running is made again, as attempt 2."""
    gate = gated.close_gate("model")
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("model-1", "hello")
    await gate.wait_until_reached()
    worker.kill()
    gated.open_gate("model")
    await gated.stack.start_worker()

    snapshot = await gated.settled("model-1")

    assert [m.text for m in snapshot.messages] == ["hello", "answer to hello"]
    first, last = (entry["attempt"] for entry in gated.log.entries("model"))
    assert first == 1
    assert (await gated.finals("model-1"))["RunModel-1"] == last > 1


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_killed_idempotent_write_repeats_under_one_key(gated, moment):
    """The next attempt brings the key of the first, so that the effect can be told apart."""
    gate = gated.close_gate(f"{moment}-keyed_write")
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("keyed-1", "write")
    await gate.wait_until_reached()
    worker.kill()
    gated.open_gate(f"{moment}-keyed_write")
    await gated.stack.start_worker()

    snapshot = await gated.settled("keyed-1")

    effects = gated.effects("keyed_write")
    assert {e["key"] for e in effects} == {"keyed-1/turn-1/call-1"}
    assert len(effects) == (1 if moment == "before" else 2)
    assert (await gated.finals("keyed-1"))["CallTool-1"] == effects[-1]["attempt"] > 1
    assert gated.log.count("model") == 2
    assert told(snapshot) == ["keyed_write done"]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_killed_once_only_write_is_outcome_unknown(gated, moment):
    """It never runs again, also when it had taken effect; the model is told that nobody knows."""
    gate = gated.close_gate(f"{moment}-once_write")
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("once-1", "write")
    await gate.wait_until_reached()
    worker.kill()
    gated.open_gate(f"{moment}-once_write")
    await gated.stack.start_worker()

    snapshot = await gated.settled("once-1")

    assert len(gated.effects("once_write")) == (0 if moment == "before" else 1)
    assert gated.log.count("served") == 1
    assert len(told(snapshot)) == 1
    assert told(snapshot)[0].startswith("It is unknown whether the tool call took effect")
    assert "RecordToolOutcomeUnknown-1" in await gated.finals("once-1")


async def test_parallel_reads_that_are_recorded_do_not_repeat(gated):
    """Of five reads four are recorded and one is running: only that one runs twice."""
    gate = gated.close_gate("after-read-3")
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("reads-1", "look")
    await gate.wait_until_reached()
    await wait_for_agent_snapshot(
        gated.sessions,
        "reads-1",
        lambda s: sum(call.is_final for call in s.tool_calls) == 4,
        description="four recorded reads",
    )
    worker.kill()
    gated.open_gate("after-read-3")
    await gated.stack.start_worker()

    snapshot = await gated.settled("reads-1")

    assert [len(gated.effects(f"read-{n}")) for n in range(5)] == [1, 1, 1, 2, 1]
    assert told(snapshot) == [f"read {n}" for n in range(5)]


async def test_an_approval_outlives_its_worker(gated):
    """The worker dies while a human thinks; once approved, the tool runs once."""
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("approval-1", "write")
    interrupt = await wait_for_agent_snapshot(
        gated.sessions,
        "approval-1",
        lambda s: next(iter(s.pending_interrupts), None),
        description="a pending approval",
    )
    worker.kill()
    await gated.stack.start_worker()
    assert not gated.effects("approved_write")
    assert await gated.sessions.resolve_interrupt(
        "approval-1", interrupt.interrupt_id, approved=True
    )

    snapshot = await gated.settled("approval-1")

    assert len(gated.effects("approved_write")) == 1
    assert told(snapshot) == ["approved_write done"]


async def test_the_other_worker_takes_over(gated):
    """Of two workers the one that runs a call is killed: the other one makes the call again."""
    gate = gated.close_gate("after-keyed_write")
    workers = [await gated.stack.start_worker(), await gated.stack.start_worker()]
    await gated.sessions.start_session("keyed-1", "write")
    await gate.wait_until_reached()
    first = gated.log.entries("served")[0]["pid"]
    doomed, other = sorted(workers, key=lambda each: each.pid != first)
    assert doomed.pid == first
    gated.open_gate("after-keyed_write")
    doomed.kill()

    snapshot = await gated.settled("keyed-1")

    assert [entry["pid"] for entry in gated.log.entries("served")] == [first, other.pid]
    assert told(snapshot) == ["keyed_write done"]


async def test_a_tool_that_kills_its_worker_each_time_is_given_up(open_gated):
    """Three attempts, three dead workers; then the read has failed and the session goes on."""
    gated = await open_gated("pull")
    worker = await gated.stack.start_worker()
    await gated.sessions.start_session("poison-1", "try")
    assert await worker.wait() == -signal.SIGKILL
    for _ in range(2):
        with suppress(ChildExitedError):  # it may die as soon as it serves
            worker = await gated.stack.start_worker()
            assert await worker.wait() == -signal.SIGKILL
    await gated.stack.start_worker()

    snapshot = await gated.settled("poison-1")

    assert [e["attempt"] for e in gated.effects("poison")] == [1, 2, 3]
    assert len(told(snapshot)) == 1
    assert told(snapshot)[0].startswith("The tool call failed: ")
