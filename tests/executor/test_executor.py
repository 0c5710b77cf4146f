"""A worker's slots: whatever frees one lets the next flow have it."""

from __future__ import annotations

import asyncio

from dex_agents import AgentSessionClient, session_table
from dex_agents.executor import CommitConflict, SystemClock
from dex_agents.executor.local import LocalBackend
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot
from dex_agents_memory.store import MemoryStore


class StolenStore(MemoryStore):
    """Refuses the commits of one flow, which another worker owns from then on."""

    stolen = ""

    def commit(self, commit):
        if commit.flow_id == self.stolen:
            self._flows[self.stolen].owner = "somebody else"
            commit.finish(CommitConflict())
        else:
            super().commit(commit)


async def test_the_slot_of_a_lost_flow_is_free():
    """A flow is lost while its next attempt has the only slot; the flow that waits goes on."""
    store = StolenStore(SystemClock())
    is_open = asyncio.Event()

    async def script(turn):
        await is_open.wait()
        return "done"

    table = session_table(ScriptedRunner(script), flow_type="T")
    backend = LocalBackend(store, ())
    async with backend, backend.worker([table], max_concurrent_steps=1, grace_seconds=0.0):
        sessions = AgentSessionClient(backend, table)
        await sessions.start_session("lost", "hi")
        await sessions.start_session("waits", "hi")
        store.renew("somebody else", 3600.0)
        store.stolen = "lost"
        is_open.set()
        await wait_for_agent_snapshot(
            sessions,
            "waits",
            lambda seen: seen.messages and seen.messages[-1].text == "done",
            description="the answer of the session that waited",
        )
