"""Many sessions on two workers, one of which is killed among them."""

from __future__ import annotations

import asyncio

import pytest

from dex_agents.testing import wait_until
from dex_agents_dex import WorkerCallError
from tests.dex.conftest import told

SESSIONS = 200
AT_ONCE = 20


@pytest.mark.timeout(240)
async def test_many_sessions_on_two_pull_workers_survive_a_kill(open_gated):
    """All finish, no once-only effect is doubled, and no message is lost."""
    gated = await open_gated("pull", "--log-level", "info")
    doomed = await gated.stack.start_worker()
    survivor = await gated.stack.start_worker()
    names = [f"{kind}-{n}" for n in range(SESSIONS // 2) for kind in ("once", "keyed")]
    turn = asyncio.Semaphore(AT_ONCE)

    async def is_sent(name: str) -> bool:
        try:
            return await gated.sessions.send_user_message(name, "second")
        except WorkerCallError as error:
            # The worker that was to queue it died first, so nothing is queued.
            assert error.error_type == "WORKER_DISCONNECTED"
            return False

    async def talk(name: str) -> None:
        async with turn:
            await gated.sessions.start_session(name, "first")
            while not await is_sent(name):
                pass

    talking = asyncio.gather(*(talk(name) for name in names))
    await wait_until(
        "half of the effects", lambda: gated.log.count("effect") >= SESSIONS, timeout=120
    )
    doomed.kill()
    await talking
    snapshots = {name: await gated.settled(name, turns=2, seconds=120) for name in names}

    for name, snapshot in snapshots.items():
        asked = [m.text for m in snapshot.messages if m.role == "user"]
        assert asked == ["first", "second"], name
        assert len(told(snapshot)) == 2, name
        assert snapshot.messages[-1].text == "answer to second", name
    once = [effect["key"] for effect in gated.effects("once_write")]
    assert len(set(once)) == len(once)
    assert len({e["key"] for e in gated.effects("keyed_write")}) == SESSIONS
    served = {entry["pid"] for entry in gated.log.entries("served")}
    assert served == {doomed.pid, survivor.pid}
    assert "reassigned" in gated.stack.engine_log.read_text()
