"""Group D: a person's answer reaches its call, and no other."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest
from click.testing import CliRunner

from dex_agents import AgentSessionClient
from dex_agents.cli.app import app
from dex_agents.cli.steps import describe_steps
from dex_agents.testing import ToolRequest
from tests.cases.agent import Agent, ended, outcome, pending, recorded, replace_worker, serve
from tests.cases.conftest import Site
from tests.session.engine import Engine, events_of, open_local, payloads

real_workers = pytest.mark.timeout(120)
no_worker_waits = pytest.mark.pulling("a listening worker that is not there costs an attempt")
AN_HOUR = timedelta(hours=1)

# C23


@no_worker_waits
async def test_c23_equal_calls_are_answered_in_any_order(engine: Engine):
    """Three equal calls, each order of three answers, one of them no, a restart between."""
    agent = Agent([[ToolRequest("ask", {"amount": 10})] * 3, "Done."])
    sessions = await serve(engine, agent)
    other = AgentSessionClient(engine.backend, "Agent")
    orders = {f"s{n}": order for n, order in enumerate(itertools.permutations((1, 2, 3)))}
    refused = {session: n % 3 + 1 for n, session in enumerate(orders)}

    async def answer(client: AgentSessionClient, session: str, number: int) -> None:
        is_approved = number != refused[session]
        assert await client.resolve_interrupt(
            session, f"turn-1.call-{number}", approved=is_approved, rejection_message="Not this."
        )

    for session, order in orders.items():
        await sessions.start_session(session, "Go")
        assert await pending(sessions, 3, session) == [f"turn-1.call-{n}" for n in (1, 2, 3)]
        await answer(sessions, session, order[0])
        await recorded(sessions, 1, session)
    await replace_worker(engine, agent)
    for session, order in orders.items():
        await answer(other, session, order[1])
        await answer(sessions, session, order[2])
    await ended(engine, sessions, *orders)

    for session in orders:
        expected = [f"call-{n}" for n in (1, 2, 3)]
        keys = {f"{session}/turn-1/{each}" for each in expected}
        no = refused[session]
        assert agent.keys(session) == keys - {f"{session}/turn-1/call-{no}"}
        assert len(agent.runs(session)) == 2
        expected[no - 1] = "Not this."
        assert await outcome(sessions, session) == expected


@real_workers
@pytest.mark.parametrize("site", ["sqlite", "dex-pull"], indirect=True)
async def test_c23_each_answer_comes_from_another_process(site: Site):
    """The third is approved, the worker is killed, the first is rejected, the second approved."""
    worker = await site.start_worker()
    await site.sessions.start_session("approvals-1", "write")
    await pending(site.sessions, 3, "approvals-1")
    await site.command("approve", "approvals-1", "turn-1.call-3")
    await recorded(site.sessions, 1, "approvals-1")
    await site.kill(worker)
    await site.start_worker()
    await site.command("reject", "approvals-1", "turn-1.call-1", "--message", "Not this one.")
    await site.command("approve", "approvals-1", "turn-1.call-2")
    await site.settled("approvals-1")

    keys = [each["key"] for each in site.log.entries("effect")]
    assert keys == ["approvals-1/turn-1/call-3", "approvals-1/turn-1/call-2"]
    told = await outcome(site.sessions, "approvals-1")
    assert told == ["Not this one.", "approved_write done", "approved_write done"]


# C25


async def test_c25_a_rejected_call_does_not_run_and_the_others_do(engine: Engine):
    """Beside a read and an approved call, whatever the effect and the place of the rejected one."""
    kinds = ("ask", "ask_look", "ask_put", "ask_act")
    places = {f"{kind}{n}": (kind, n) for kind in kinds for n in range(3)}

    class Shop(Agent):
        async def answering(self, turn, place: int) -> None:
            kind, number = places[turn.flow_id]
            requests = [ToolRequest("look"), ToolRequest(kind)]
            requests.insert(number, ToolRequest(kind))
            self.script = [requests, "Done."]

    agent = Shop([[ToolRequest("look")] * 3, "Done."])
    sessions = await serve(engine, agent)
    for session, (_, number) in places.items():
        await sessions.start_session(session, "Go")
        for interrupt in await pending(sessions, 2, session):
            assert await sessions.resolve_interrupt(
                session,
                interrupt,
                approved=interrupt != f"turn-1.call-{number + 1}",
                rejection_message="Wrong account.",
            )
    await ended(engine, sessions, *places)

    for session, (kind, number) in places.items():
        assert sorted(agent.runs(session)) == sorted(["look", kind])
        expected = ["call-1", "call-2", "call-3"]
        expected[number] = "Wrong account."
        assert await outcome(sessions, session) == expected


# C28


@real_workers
@pytest.mark.parametrize("site", ["sqlite", "dex-pull"], indirect=True)
async def test_c28_a_new_process_needs_only_the_answer(site: Site):
    """Everything that knew of the session is gone; two IDs and a word let its call run, once."""
    worker = await site.start_worker()
    await site.sessions.start_session("approval-1", "first")
    await pending(site.sessions, 1, "approval-1")
    await site.command("approve", "approval-1", "turn-1.call-1")
    await site.settled("approval-1")
    await site.sessions.send_user_message("approval-1", "second")
    await pending(site.sessions, 1, "approval-1")
    await site.kill(worker)
    async with site.forgotten():
        await site.command("approve", "approval-1", "turn-2.call-1")
    snapshot = await site.settled("approval-1", turns=2)

    keys = [each["key"] for each in site.log.entries("effect")]
    assert keys == ["approval-1/turn-1/call-1", "approval-1/turn-2/call-1"]
    said = [m.text for m in snapshot.messages if m.role == "user" or m.sequence % 4 == 0]
    assert said == ["first", "answer to first", "second", "answer to second"]


# C29


async def test_c29_an_approval_that_expired_was_not_rejected(engine: Engine):
    """Nobody answers for an hour, and somebody a second later: time ran out, says everybody."""
    agent = Agent([[ToolRequest("ask"), ToolRequest("ask_look")], "Done."])
    sessions = await serve(engine, agent, interrupt_deadline=AN_HOUR)
    await sessions.start_session("s", "Go")
    first, second = await pending(sessions, 2)
    assert await sessions.resolve_interrupt("s", second, approved=False)
    await recorded(sessions, 1)
    await engine.advance(3601)
    assert not await sessions.resolve_interrupt("s", first, approved=True)
    await ended(engine, sessions)
    await is_expired(sessions, first)
    assert (await outcome(sessions))[1] == "The tool call was rejected. The tool was not run."
    assert agent.runs() == []


@no_worker_waits
async def test_c29_it_expires_once_a_worker_is_back(engine: Engine):
    """No worker runs at the deadline, and an answer comes too late before one is back."""
    agent = Agent([[ToolRequest("ask")], "Done."])
    sessions = await serve(engine, agent, interrupt_deadline=AN_HOUR)
    await sessions.start_session("s", "Go")
    (interrupt,) = await pending(sessions, 1)
    await engine.retire()
    engine.clock.patience = 0.05  # nothing runs that could move
    await engine.advance(3601)
    await serve(engine, agent, interrupt_deadline=AN_HOUR)
    assert not await sessions.resolve_interrupt("s", interrupt, approved=True)
    await ended(engine, sessions)
    await is_expired(sessions, interrupt)
    assert agent.runs() == []


async def test_c29_the_command_line_tells_expired_from_rejected(tmp_path):
    """So says ``approve`` to whoever comes too late, and the table of Steps."""
    backend, clock = open_local("sqlite", tmp_path)
    async with backend:
        engine = Engine(backend, clock)
        agent = Agent([[ToolRequest("ask")], "Done."])
        sessions = await serve(engine, agent, interrupt_deadline=AN_HOUR)
        await sessions.start_session("s", "Go")
        await pending(sessions, 1)
        await engine.advance(3600)
        await ended(engine, sessions)
        events, history = await events_of(sessions), await sessions.read_history("s")
        await engine.retire()
    approve = ["--store", f"sqlite:///{backend.path}", "approve", "s", "turn-1.call-1"]
    answer = await asyncio.to_thread(CliRunner().invoke, app, approve)
    assert answer.exit_code == 1
    assert "'turn-1.call-1' is answered: ask is already expired" in answer.stderr
    rows = {each.step_execution_id: each for each in describe_steps(history, events)}
    asked = rows["AwaitToolApproval-1"]
    assert (asked.what, asked.outcome) == ("approval of ask", "expired")


async def is_expired(sessions: AgentSessionClient, interrupt: str) -> None:
    """Assert that model and readers are told of a first call that nobody answered it in time."""
    assert (await outcome(sessions))[0].startswith("Nobody answered before the approval deadline")
    resolved = payloads(await events_of(sessions), "interrupt_resolved")
    (told,) = (each for each in resolved if each["interrupt_id"] == interrupt)
    assert not told["approved"]
    assert told["rejection_message"].startswith("Nobody answered")
