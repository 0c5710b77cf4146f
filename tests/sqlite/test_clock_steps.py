"""When the clock is set by an hour while sessions run: nobody loses a session, nothing hangs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from dex_agents import (
    AgentSessionClient,
    AgentSessionOptions,
    ToolEffect,
    ToolPolicy,
    session_table,
)
from dex_agents.executor import LONGEST_LEASE_SECONDS, SystemClock
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_for_agent_snapshot, wait_until
from dex_agents_sqlite import SqliteBackend

HOUR = 3600.0
STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])


class WallClock(SystemClock):
    """The system's clock, which somebody sets."""

    def __init__(self) -> None:
        self.offset = 0.0
        super().__init__(lambda: time.time() + self.offset)


def flow(tool, *, asks=False, deadline=None):
    policy = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=asks)
    options = AgentSessionOptions(tool_policies={"write": policy}, interrupt_deadline=deadline)
    runner = ScriptedRunner([[[ToolRequest("write")], "done"]], {"write": tool})
    return session_table(runner, flow_type="Clock", options=options)


async def told(sessions, session_id):
    """Wait for the end of the turn, and return what the model was told of its tool call."""
    snapshot = await wait_for_agent_snapshot(
        sessions,
        session_id,
        lambda s: s if any(m.text == "done" for m in s.messages) else None,
        description="the end of the turn",
        timeout=60,
    )
    return next(m.framework_item["content"] for m in snapshot.messages if m.role == "tool")


def leases(backend):
    return dict(backend._store._reads.execute("SELECT worker, lease_until FROM worker"))


@STEPS
async def test_a_worker_that_lives_keeps_its_sessions(tmp_path, step):
    """Its lease seems to have ended; nobody takes its session, and its write is not given up."""
    path, clock, go_on = tmp_path / "s.db", WallClock(), asyncio.Event()
    began = []

    async def write(call):
        began.append(call.attempt)
        await go_on.wait()
        return "written"

    table = flow(write)
    async with (
        SqliteBackend(path, clock) as one,
        SqliteBackend(path, clock) as other,
        one.worker([table]) as owner,
        other.worker([table]) as rival,
    ):
        sessions = AgentSessionClient(one, table)
        await sessions.start_session("a", "write")
        await wait_until("the write", lambda: began)
        clock.offset += step
        rival.look()  # it asks before anybody has noticed
        owner._watchdog._ring()  # and so does whoever looks for attempts that take too long
        assert await AgentSessionClient(other, table).send_user_message("a", "more")
        await wait_until(
            "leases by the new time",
            lambda: all(0 < until - clock.now() <= 15 for until in leases(one).values()),
            timeout=30,
        )
        rival.look()
        assert await AgentSessionClient(other, table).send_user_message("a", "and more")
        assert owner.running() and not rival.running()
        go_on.set()
        assert await told(sessions, "a") == "written"
        assert began[0] == 1
        finals = [
            (each.step_execution_id, each.final_attempt)
            for each in await sessions.read_history("a")
        ]
        assert ("CallSingleAttemptTool-1", 1) in finals


async def test_the_lease_of_a_dead_worker_does_not_last_for_an_hour(tmp_path):
    """It was written before the clock was set back; whoever comes takes the session at once."""
    path, clock = tmp_path / "s.db", WallClock()
    table = flow(lambda call: "written")
    async with SqliteBackend(path, clock) as backend:
        sessions = AgentSessionClient(backend, table)
        await sessions.start_session("a", "write")
        claimed = []
        backend._store.renew("dead", LONGEST_LEASE_SECONDS)
        backend._store.claim("dead", LONGEST_LEASE_SECONDS, ["Clock"], 1, claimed.extend)
        await wait_until("the claim", lambda: claimed == ["a"])
        assert not (await backend.describe_flow("a")).waits_for_worker
        clock.offset -= HOUR
        assert (await backend.describe_flow("a")).waits_for_worker
        async with backend.worker([table]):
            assert await told(sessions, "a") == "written"


async def test_a_deadline_goes_by_the_wall(tmp_path):
    """Set back, it is as far away as the clock says; set forward past it, it is over at once."""
    path, clock = tmp_path / "s.db", WallClock()
    table = flow(lambda call: "written", asks=True, deadline=timedelta(minutes=30))
    async with SqliteBackend(path, clock) as backend, backend.worker([table]):
        sessions = AgentSessionClient(backend, table)
        await sessions.start_session("a", "write")
        await wait_for_agent_snapshot(
            sessions, "a", lambda s: s.pending_interrupts, description="the question"
        )
        clock.offset -= HOUR
        await wait_until(
            "a lease by the new time", lambda: max(leases(backend).values()) < clock.now() + 16
        )
        assert (await sessions.get_agent_snapshot("a")).pending_interrupts
        clock.offset += 2 * HOUR
        assert "deadline" in await told(sessions, "a")


async def test_a_lease_that_nobody_would_believe_is_refused(tmp_path):
    """A worker cannot take a longer lease than others take for one."""
    async with SqliteBackend(tmp_path / "s.db") as backend:
        with pytest.raises(ValueError, match="at most 300"):
            async with backend.worker([flow(None)], lease_seconds=301):
                pass
