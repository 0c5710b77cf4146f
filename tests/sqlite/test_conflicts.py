"""Changes of two processes to one flow: what is built on a refused change is refused as well."""

from __future__ import annotations

import asyncio

from msgspec import Raw
from msgspec.structs import replace

from dex_agents import AgentSessionClient, session_table
from dex_agents.executor import Commit, CommitConflict, Lineage, SystemClock
from dex_agents.machine import Changes, FlowHeader
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot, wait_until
from dex_agents_sqlite import SqliteBackend
from dex_agents_sqlite.store import SqliteStore

HEADER = FlowHeader(flow_id="f", flow_type="T", version=1, wake_at=0.0, started_at=1.0)


def changes(version, number):
    """Return a transition that only puts a message into a Channel."""
    header = replace(HEADER, version=version)
    return Changes(header=header, messages={("Inbox", number): Raw(str(version).encode())})


def told(outcomes, name):
    """Return a callback that notes how a commit went."""
    return lambda error: outcomes.__setitem__(name, error)


async def test_what_follows_a_refused_commit_is_refused(tmp_path):
    """Somebody else's change takes the version of the first; the second must not follow that."""
    outcomes = {}
    mine, other = (SqliteStore(tmp_path / "s.db", SystemClock()) for _ in range(2))
    await mine.open()
    await other.open()
    mine.renew("me", 60)
    lineage = Lineage()
    mine.commit(Commit("f", "me", [changes(1, 1)], lineage, told(outcomes, "start")))
    await wait_until("the start", lambda: "start" in outcomes)
    other.transact("f", lambda state, reader: changes(2, 2), told(outcomes, "theirs"))
    await wait_until("theirs", lambda: "theirs" in outcomes)

    mine.commit(Commit("f", "me", [changes(2, 2)], lineage, told(outcomes, "first")))
    mine.commit(Commit("f", "me", [changes(3, 3)], lineage, told(outcomes, "second")))
    await wait_until("second", lambda: "second" in outcomes)
    mine.commit(Commit("f", "me", [changes(3, 3)], lineage, told(outcomes, "third")))
    await wait_until("third", lambda: "third" in outcomes)
    stored = mine.load("f")
    mine.commit(Commit("f", "me", [changes(3, 3)], Lineage(), told(outcomes, "fresh")))
    await wait_until("fresh", lambda: "fresh" in outcomes)

    assert (outcomes["start"], outcomes["theirs"], outcomes["fresh"]) == (None, None, None)
    for name in ("first", "second", "third"):
        assert isinstance(outcomes[name], CommitConflict), name
    assert list(stored.queues["Inbox"]) == [1, 2]
    assert list(mine.load("f").queues["Inbox"]) == [1, 2, 3]
    await mine.close()
    await other.close()


async def test_a_claim_renews_the_lease(tmp_path):
    """When every lease seems to have ended, whoever claims a flow first keeps it."""
    mine, other = (SqliteStore(tmp_path / "s.db", SystemClock()) for _ in range(2))
    outcomes, claimed = {}, {}
    await mine.open()
    await other.open()
    mine.commit(Commit("f", "me", [changes(1, 1)], Lineage(), told(outcomes, "start")))
    await wait_until("the start", lambda: "start" in outcomes)
    for name, store in (("first", mine), ("second", other)):
        store.claim(name, 60.0, ["T"], 1, lambda flows, name=name: claimed.update({name: flows}))
        await wait_until(f"the {name} claim", lambda name=name: name in claimed)
    assert claimed == {"first": ["f"], "second": []}
    await mine.close()
    await other.close()


async def test_a_caller_that_fails_takes_nobody_along(tmp_path):
    """Of a group of commits everybody is told, though the first one's callback raises."""
    outcomes, faults = {}, []
    store = SqliteStore(tmp_path / "s.db", SystemClock())
    await store.open()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def broken(error):
        raise RuntimeError("in a callback")

    store.transact("f", lambda state, reader: None, broken)
    store.transact("g", lambda state, reader: None, told(outcomes, "other"))
    await wait_until("the other", lambda: "other" in outcomes)
    await store.close()
    assert outcomes == {"other": None}
    assert [str(each["exception"]) for each in faults] == ["in a callback"]


async def test_a_cancelled_caller_still_wakes_the_worker(tmp_path):
    """Its message is stored, so the worker takes it up at once, not when it looks next."""
    table = session_table(ScriptedRunner([["hello"], ["again"]]), flow_type="T")
    async with (
        SqliteBackend(tmp_path / "s.db") as backend,
        backend.worker([table], lease_seconds=300, max_resident_flows=1) as worker,
    ):
        sessions = AgentSessionClient(backend, table)
        for name in ("s", "resident in its place"):
            await sessions.start_session(name, "hi")
            await _answered(sessions, name, 1)
            await wait_until("its rest", lambda name=name: worker.resident(name).is_idle)
        await wait_until("room made", lambda: worker.resident("s") is None)
        sending = asyncio.create_task(sessions.send_user_message("s", "once more"))
        await asyncio.sleep(0)  # it is queued, and not yet committed
        sending.cancel()
        await _answered(sessions, "s", 2)


async def _answered(sessions, name, turns):
    await wait_for_agent_snapshot(
        sessions,
        name,
        lambda seen: len(seen.messages) == 2 * turns,
        description=f"answer {turns}",
        timeout=5,
    )
