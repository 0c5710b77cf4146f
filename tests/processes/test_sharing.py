"""Several processes on one file: fencing, hand-over, and many clients at once."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from dex_agents.testing import wait_until
from tests.processes.conftest import ROOT

pytestmark = pytest.mark.timeout(90)


async def test_a_frozen_worker_is_fenced_off(workshop):
    """A worker that sleeps past its lease loses the session; what it brings late is refused."""
    gate = workshop.close_gate("after-keyed_write")
    frozen = await workshop.start_worker()
    await workshop.sessions.start_session("keyed-1", "write")
    await gate.wait_until_reached()
    await workshop.freeze(frozen)
    workshop.open_gate("after-keyed_write")
    await workshop.start_worker()
    snapshot = await workshop.settled("keyed-1")

    gate.release()
    frozen.signal(signal.SIGCONT)
    await workshop.sessions.send_user_message("keyed-1", "again")
    await workshop.settled("keyed-1", turns=2)

    after = await workshop.sessions.list_agent_messages("keyed-1")
    assert after.messages[: len(snapshot.messages)] == snapshot.messages
    effects = workshop.effects("keyed_write")
    first = [e for e in effects if e["key"] == "keyed-1/turn-1/call-1"]
    assert [e["attempt"] for e in first] == [1, 2]
    assert (await workshop.finals("keyed-1"))["CallTool-1"] == 2
    assert frozen.process.returncode is None


async def test_a_worker_that_stops_hands_over(workshop):
    """SIGTERM lets the running call finish; another worker goes on with the session."""
    gate = workshop.close_gate("before-once_write")
    first = await workshop.start_worker()
    await workshop.sessions.start_session("once-1", "write")
    await gate.wait_until_reached()
    first.signal(signal.SIGTERM)
    await asyncio.sleep(0.2)  # the signal must arrive while the call runs
    gate.release()
    assert await first.wait() == 0
    assert len(workshop.effects("once_write")) == 1
    workshop.open_gate("before-once_write")
    await workshop.start_worker()

    snapshot = await workshop.settled("once-1")

    told = [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]
    assert told == ["once_write done"]
    assert len(workshop.effects("once_write")) == 1


async def test_two_clients_of_fifty_messages_each(workshop):
    """Each message is stored exactly once, in its sender's order, and turns never interleave."""
    await workshop.start_worker()
    await workshop.start_worker()
    await workshop.sessions.start_session("chat-1")
    url = f"sqlite:///{workshop.path}"
    senders = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.processes.sender", url, name, "50", cwd=ROOT
        )
        for name in ("a", "b")
    ]
    assert [await sender.wait() for sender in senders] == [0, 0]

    await workshop.settled("chat-1", turns=100)

    messages = (await workshop.sessions.list_agent_messages("chat-1", limit=200)).messages
    assert [m.sequence for m in messages] == list(range(1, 201))
    asked, answered = messages[::2], messages[1::2]
    assert {m.role for m in asked} == {"user"}
    assert [m.text for m in answered] == [f"answer to {m.text}" for m in asked]
    for name in ("a", "b"):
        own = [m.text for m in asked if m.text.startswith(name)]
        assert own == [f"{name}-{n}" for n in range(50)]


async def test_a_stop_by_a_client_reaches_the_worker(workshop):
    """A client of another process stops the session: the running call is cancelled."""
    gate = workshop.close_gate("before-once_write")
    await workshop.start_worker()
    await workshop.sessions.start_session("once-1", "write")
    await gate.wait_until_reached()
    await workshop.sessions.stop_session("once-1", "enough")
    await workshop.sessions.start_session("chat-2", "still there?")
    await workshop.settled("chat-2")  # so the worker has looked at the file since
    gate.release()
    await workshop.sessions.send_user_message("chat-2", "and now?")
    await workshop.settled("chat-2", turns=2)

    summary = await workshop.sessions.describe_session("once-1")
    assert (summary.status, summary.failure) == ("stopped", "enough")
    assert not workshop.effects("once_write")


async def test_events_are_followed_from_another_process(workshop):
    """A reader sees the worker's events as they come, up to the end of the turn."""
    await workshop.start_worker()
    await workshop.sessions.start_session("chat-1", "hello")
    seen = []
    async for followed in workshop.sessions.follow_events("chat-1"):
        seen.append(followed.event.type)
        if followed.event.type == "turn_completed":
            break
    assert seen[0] == "turn_started"
    assert "usage_recorded" in seen


async def test_many_sessions_on_two_workers_survive_a_kill(workshop):
    """Forty sessions finish although one of two workers dies among them."""
    doomed = await workshop.start_worker()
    await workshop.start_worker()
    names = [f"keyed-{n}" for n in range(20)] + [f"once-{n}" for n in range(20)]
    for name in names:
        await workshop.sessions.start_session(name, "write")
    await wait_until("ten effects", lambda: workshop.log.count("effect") >= 10)
    await doomed.kill()

    for name in names:
        await workshop.settled(name)

    once = workshop.effects("once_write")
    assert len({e["key"] for e in once}) == len(once)
    keyed = {e["key"] for e in workshop.effects("keyed_write")}
    assert len(keyed) == 20
