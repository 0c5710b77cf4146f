"""Group B: whatever came between, the next request to the model can be made."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any

import apsw
import pytest

from dex_agents import AgentSessionClient, AgentSessionOptions, session_table
from dex_agents import DeferredToolExecution as Call
from dex_agents.testing import ToolRequest, wait_until
from dex_agents_sqlite import SqliteBackend, writer
from tests.cases.agent import (
    POLICIES,
    Agent,
    ended,
    outcome,
    pending,
    recorded,
    replace_worker,
    serve,
)
from tests.cases.conftest import Site
from tests.session.engine import Engine, Gate, step_history

# C13


@contextmanager
def full(backend: SqliteBackend):
    """SQLite may not make its file any larger."""
    limit_pages(backend, 1)
    yield
    limit_pages(backend, 1_000_000)


def limit_pages(backend: SqliteBackend, count: int) -> None:
    """Set the limit as soon as the connection is not at work in its thread."""
    while True:
        with suppress(apsw.ThreadingViolationError):
            backend._store._writes.pragma("max_page_count", count)
            return


@contextmanager
def locked(backend: SqliteBackend):
    """Another program keeps the file locked."""
    with closing(apsw.Connection(str(backend.path))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


Fault = Callable[[SqliteBackend], AbstractContextManager[None]]


@pytest.mark.parametrize("fault", [full, locked])
@pytest.mark.parametrize("tool", ["ask_put", "ask"])
async def test_c13_a_result_that_was_refused_is_stored_later(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, fault: Fault, tool: str
):
    """The disk refuses the result of an approved write and heals: one effect, and one result.

    On SQLite, the only backend that has a disk of its own.
    """
    monkeypatch.setattr(writer, "_LOCK_PATIENCE_SECONDS", 0.05)
    done = asyncio.Event()

    async def write(call: Call) -> str:
        fault_now.__enter__()
        done.set()
        return "x" * 50_000

    agent = Agent([[ToolRequest(tool)], "Done."], **{tool: write})
    flow = session_table(
        agent, flow_type="Agent", options=AgentSessionOptions(tool_policies=POLICIES)
    )
    async with SqliteBackend(tmp_path / "s.db") as backend, backend.worker([flow]):
        fault_now = fault(backend)
        sessions = AgentSessionClient(backend, flow)
        await sessions.start_session("s", "Go")
        (interrupt,) = await pending(sessions, 1)
        assert await sessions.resolve_interrupt("s", interrupt, approved=True)
        await done.wait()
        await wait_until("a refused commit", lambda: backend._resident("s")._refusals)
        assert (await sessions.get_agent_snapshot("s")).tool_calls[0].status == "approved"
        fault_now.__exit__(None, None, None)
        await wait_until("the end", lambda: len(agent.model_calls) == 2)
        await recorded(sessions, 0)

        snapshot = await sessions.get_agent_snapshot("s")
    assert agent.runs() == [tool]
    assert [m.role for m in snapshot.messages] == ["user", "assistant", "tool", "assistant"]
    asked, answered = (m.framework_item for m in snapshot.messages[1:3])
    assert [each["id"] for each in asked["tool_calls"]] == [answered["tool_call_id"]]
    assert answered["content"] == "x" * 50_000


# C15


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_c15_calls_that_end_in_another_order_after_a_restart(engine: Engine):
    """Every order before the worker's end, the rest backwards after it: results in model order."""
    orders = {f"s{n}": order for n, order in enumerate(itertools.permutations(range(3)))}
    gates = {(session, n): Gate() for session in orders for n in range(3)}

    async def look(call: Call) -> int:
        number = call.tool_call.arguments
        await gates[call.flow_id, number].pass_through()
        return number

    agent = Agent([[ToolRequest("look", n) for n in range(3)], "Done."], look=look)
    sessions = await serve(engine, agent)
    left = {}
    for n, (session, order) in enumerate(orders.items()):
        before = n % 2 + 1  # one or two of three have ended by then
        left[session] = order[: before - 1 : -1]
        await sessions.start_session(session, "Go")
        for done, number in enumerate(order[:before], start=1):
            await gates[session, number].reached.wait()
            gates[session, number].open.set()
            await recorded(sessions, done, session)
        for number in left[session]:
            await gates[session, number].reached.wait()
    await replace_worker(engine, agent)
    for session, rest in left.items():
        for number in rest:
            gates[session, number].open.set()
            await engine.settle()
    await ended(engine, sessions, *orders)

    for session, rest in left.items():
        assert await outcome(sessions, session) == ["0", "1", "2"]
        ran = [each.tool_call.arguments for each in agent.calls if each.flow_id == session]
        assert sorted(ran) == sorted([0, 1, 2, *rest])
        assert (await step_history(sessions, session))[-2:] == ["ResumeTurn-1", "RunModel-2"]
        assert (await sessions.get_agent_snapshot(session)).state.last_turn_error is None


# C16
#
# The contract answers a message with true or false; a receipt that names its place is for later.


async def is_whole(sessions: AgentSessionClient, session: str, count: int) -> None:
    """Assert that both senders' messages are there once, in order, each with its answer."""
    messages = (await sessions.list_agent_messages(session, limit=200)).messages
    assert [m.sequence for m in messages] == list(range(1, 4 * count + 1))
    asked, answered = messages[::2], messages[1::2]
    assert [m.role for m in asked] == ["user"] * 2 * count
    assert [m.turn_id for m in asked] == [m.turn_id for m in answered]
    assert len({m.turn_id for m in asked}) == 2 * count
    for sender in ("a", "b"):
        own = [m.text for m in asked if m.text.startswith(sender)]
        assert own == [f"{sender}-{n}" for n in range(count)]


async def test_c16_two_clients_at_the_same_moment(engine: Engine):
    """Fifty times both send at once while turns run: nothing is lost, doubled or interleaved."""
    sessions = await serve(engine, Agent(["Noted."]))
    other = AgentSessionClient(engine.backend, "Agent")
    await sessions.start_session("s")
    for n in range(50):
        sent = await asyncio.gather(
            sessions.send_user_message("s", f"a-{n}"), other.send_user_message("s", f"b-{n}")
        )
        assert sent == [True, True]
    await ended(engine, sessions, turns=100)
    await is_whole(sessions, "s", 50)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("site", ["dex-pull"], indirect=True)
async def test_c16_two_processes_at_the_same_moment(site: Site):
    """The same on Dex from two processes.

    On SQLite: ``test_two_clients_of_fifty_messages_each``.
    """
    await site.start_worker()
    await site.sessions.start_session("chat-1")
    sender = ("-m", "tests.processes.sender", site.url)
    await asyncio.gather(*(site.run(*sender, name, "20") for name in ("a", "b")))
    await site.settled("chat-1", turns=40)
    await is_whole(site.sessions, "chat-1", 20)
