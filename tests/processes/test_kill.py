"""SIGKILL at exact moments: at most the running call repeats, and no write is silently doubled."""

from __future__ import annotations

import pytest

from dex_agents.testing import wait_for_agent_snapshot

pytestmark = pytest.mark.timeout(90)


async def test_a_killed_model_call_runs_once_more(workshop):
    """Only the model call that was running is made again, as attempt 2."""
    gate = workshop.close_gate("model")
    worker = await workshop.start_worker()
    await workshop.sessions.start_session("model-1", "hello")
    await gate.wait_until_reached()
    await worker.kill()
    workshop.open_gate("model")
    await workshop.start_worker()

    snapshot = await workshop.settled("model-1")

    assert [m.text for m in snapshot.messages] == ["hello", "answer to hello"]
    assert [e["attempt"] for e in workshop.log.entries("model")] == [1, 2]
    assert (await workshop.finals("model-1"))["RunModel-1"] == 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_killed_idempotent_write_repeats_under_one_key(workshop, moment):
    """The second attempt brings the key of the first, so that the effect can be told apart."""
    gate = workshop.close_gate(f"{moment}-keyed_write")
    worker = await workshop.start_worker()
    await workshop.sessions.start_session("keyed-1", "write")
    await gate.wait_until_reached()
    await worker.kill()
    workshop.open_gate(f"{moment}-keyed_write")
    await workshop.start_worker()

    await workshop.settled("keyed-1")

    effects = workshop.effects("keyed_write")
    assert {e["key"] for e in effects} == {"keyed-1/turn-1/call-1"}
    assert [e["attempt"] for e in effects] == ([2] if moment == "before" else [1, 2])
    assert (await workshop.finals("keyed-1"))["CallTool-1"] == 2
    assert workshop.log.count("model") == 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_killed_once_only_write_is_outcome_unknown(workshop, moment):
    """It never runs again; the model is told that nobody knows."""
    gate = workshop.close_gate(f"{moment}-once_write")
    worker = await workshop.start_worker()
    await workshop.sessions.start_session("once-1", "write")
    await gate.wait_until_reached()
    await worker.kill()
    workshop.open_gate(f"{moment}-once_write")
    await workshop.start_worker()

    snapshot = await workshop.settled("once-1")

    assert len(workshop.effects("once_write")) == (0 if moment == "before" else 1)
    told = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert len(told) == 1
    assert told[0].startswith("It is unknown whether the tool call took effect")
    assert "RecordToolOutcomeUnknown-1" in await workshop.finals("once-1")


async def test_parallel_reads_that_are_recorded_do_not_repeat(workshop):
    """Of five reads four are recorded and one is running: only that one runs twice."""
    gate = workshop.close_gate("after-read-3")
    worker = await workshop.start_worker()
    await workshop.sessions.start_session("reads-1", "look")
    await gate.wait_until_reached()
    await wait_for_agent_snapshot(
        workshop.sessions,
        "reads-1",
        lambda s: sum(call.is_final for call in s.tool_calls) == 4,
        description="four recorded reads",
    )
    await worker.kill()
    workshop.open_gate("after-read-3")
    await workshop.start_worker()

    snapshot = await workshop.settled("reads-1")

    assert [len(workshop.effects(f"read-{n}")) for n in range(5)] == [1, 1, 1, 2, 1]
    told = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert told == [f"read {n}" for n in range(5)]


async def test_an_approval_outlives_every_process(workshop):
    """No worker runs while the approval is answered; afterwards the tool runs once."""
    worker = await workshop.start_worker()
    await workshop.sessions.start_session("approval-1", "write")
    interrupt = await wait_for_agent_snapshot(
        workshop.sessions,
        "approval-1",
        lambda s: next(iter(s.pending_interrupts), None),
        description="a pending approval",
    )
    await worker.kill()
    assert await workshop.sessions.resolve_interrupt(
        "approval-1", interrupt.interrupt_id, approved=True
    )
    assert not workshop.effects("approved_write")
    await workshop.start_worker()

    await workshop.settled("approval-1")

    assert len(workshop.effects("approved_write")) == 1


async def test_a_tool_that_kills_its_worker_each_time_is_given_up(workshop):
    """Three attempts, three dead workers; then the read failed and the session goes on."""
    await workshop.sessions.start_session("poison-1", "try")
    for _attempt in range(3):
        worker = await workshop.start_worker()
        await worker.wait()
    await workshop.start_worker()

    snapshot = await workshop.settled("poison-1")

    assert [e["attempt"] for e in workshop.effects("poison")] == [1, 2, 3]
    told = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert told == ["The tool call failed: The worker that ran this attempt is gone."]
