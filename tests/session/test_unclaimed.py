"""Whether anybody works on a session, as its summary tells it on every embedded store."""

from __future__ import annotations

import pytest

from dex_agents import AgentSessionClient, ToolEffect, open_backend, session_table
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_until

FLOW = session_table(
    ScriptedRunner([["hello"], [[ToolRequest("shred", effect=ToolEffect.NON_IDEMPOTENT_WRITE)]]]),
    flow_type="Agent",
)


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """A store of each embedded backend."""
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'store.db'}"


async def waits(backend):
    """Return what both ways of reading the only summary agree on."""
    (listed,) = await backend.list_flows()
    assert await backend.describe_flow(listed.flow_id) == listed
    return listed.waits_for_worker


async def rest(backend):
    """Wait until nothing is left to do before somebody speaks."""
    await wait_until("rest", lambda: backend._store.header("s-1").wake_at is None)


async def test_a_session_waits_for_a_worker_only_while_it_needs_one(url):
    """The summary says that no worker has taken up what is to be done, and nothing else."""
    async with open_backend(url) as backend:
        client = AgentSessionClient(backend, FLOW)
        await client.start_session("s-1", "good morning")
        assert await waits(backend)
        async with backend.worker([FLOW]):
            await rest(backend)
            assert not await waits(backend)
        assert not await waits(backend)  # for the user it waits, and not for a worker
        await client.send_user_message("s-1", "shred it")
        assert await waits(backend)
        async with backend.worker([FLOW]):
            await rest(backend)
        assert not await waits(backend)  # for a person it waits, and not for a worker
        (interrupt,) = (await client.get_agent_snapshot("s-1")).pending_interrupts
        await client.resolve_interrupt("s-1", interrupt.interrupt_id, approved=True)
        assert await waits(backend)
        await client.stop_session("s-1")
        assert not await waits(backend)


async def test_a_worker_of_another_flow_type_does_not_count(url):
    """A session waits although a worker lives, when that one serves something else."""
    other = session_table(ScriptedRunner([]), flow_type="Other")
    async with open_backend(url) as backend, backend.worker([other]):
        await AgentSessionClient(backend, FLOW).start_session("s-1", "good morning")
        assert await waits(backend)


async def test_a_dead_workers_session_waits_again(tmp_path):
    """Once the lease of its owner has ended, a session that is due waits for a worker."""
    path = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_backend(path) as backend:
        client = AgentSessionClient(backend, FLOW)
        await client.start_session("s-1", "good morning")
        store = backend._store
        claimed = []
        store.claim("dead", 0.0, ["Agent"], 1, claimed.extend)
        await store._writer._idle.wait()
        assert claimed == ["s-1"]
        assert await waits(backend)
        store.renew("dead", 60.0)
        await store._writer._idle.wait()
        assert not await waits(backend)
