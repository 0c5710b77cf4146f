"""Starting a session: what begins a turn, what an ID stands for, who can call."""

from __future__ import annotations

import pytest

from dex_agents import (
    AgentSessionClient,
    AgentStatus,
    FlowAlreadyStartedError,
    FlowNotFoundError,
    RunnerContractError,
)
from dex_agents.errors import FlowDefinitionError, FlowIdError
from dex_agents.session import client_table
from dex_agents.testing import ScriptedRunner
from tests.session.engine import Engine, agent_flow, step_history, texts


async def test_a_first_message_begins_the_first_turn(engine: Engine):
    """The message is stored as sequence 1 and answered without another call."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot) == ["Hi", "Hello."]
    assert snapshot.state.turn_number == 1


@pytest.mark.parametrize("message", [None, "", " \n\t ", "\u2003"])
async def test_a_blank_first_message_begins_no_turn(engine: Engine, message: str | None):
    """The session waits for a user message instead."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s", message)
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
    assert (snapshot.state.turn_number, snapshot.state.turn_id, texts(snapshot)) == (0, "", [])


async def test_a_session_that_began_without_a_message_takes_one_later(engine: Engine):
    """Its first turn is turn 1 all the same."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s")
    await engine.settle()
    assert await sessions.send_user_message("s", "Hi")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot) == ["Hi", "Hello."]
    assert snapshot.messages[0].turn_id == "turn-1"


@pytest.mark.local("on Dex a call needs a worker")
async def test_there_is_no_state_until_the_first_step_commits(engine: Engine):
    """Without a worker a started session is empty but readable."""
    sessions = AgentSessionClient(engine.backend, "Agent")
    await sessions.start_session("s", "Hi")
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state is None
    assert (snapshot.messages, snapshot.tool_calls, snapshot.pending_interrupts) == ([], [], [])
    assert snapshot.usage.model_calls == 0


@pytest.mark.local("on Dex a call needs a worker")
async def test_a_worker_that_comes_later_takes_the_session_up(engine: Engine):
    """What was started and sent without a worker is not lost."""
    client = AgentSessionClient(engine.backend, "Agent")
    await client.start_session("s", "One")
    await client.send_user_message("s", "Two")
    sessions = await engine.serve(ScriptedRunner([["1."], ["2."]]))
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["One", "1.", "Two", "2."]


async def test_a_running_sessions_id_is_refused(engine: Engine):
    """The second start changes nothing."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s", "Hi")
    with pytest.raises(FlowAlreadyStartedError, match="'s' was already started"):
        await sessions.start_session("s", "Again")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["Hi", "Hello."]


async def test_a_stopped_sessions_id_is_refused(engine: Engine):
    """An ID names one session for ever."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s")
    await sessions.stop_session("s")
    with pytest.raises(FlowAlreadyStartedError):
        await sessions.start_session("s", "Again")
    assert (await sessions.describe_session("s")).status == "stopped"


async def test_an_id_is_refused_without_a_worker_too(engine: Engine):
    """The store itself keeps IDs apart."""
    sessions = AgentSessionClient(engine.backend, "Agent")
    await sessions.start_session("s")
    with pytest.raises(FlowAlreadyStartedError):
        await sessions.start_session("s")


@pytest.mark.parametrize("session_id", ["a b.c-d_e@f", "ünïcödé-☃", "x" * 300, "'; DROP TABLE"])
async def test_almost_any_text_is_a_session_id(engine: Engine, session_id: str):
    """IDs are data, not names: only what Dex reserves is left out."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session(session_id, "Hi")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot(session_id)) == ["Hi", "Hello."]


async def test_a_client_needs_only_the_flow_type(engine: Engine):
    """It starts, sends, reads and stops by the name of the flow type."""
    await engine.serve(ScriptedRunner([["1."], ["2."]]), flow_type="Triage")
    client = AgentSessionClient(engine.backend, "Triage")
    await client.start_session("s", "One")
    await client.send_user_message("s", "Two")
    await engine.settle()
    assert texts(await client.get_agent_snapshot("s")) == ["One", "1.", "Two", "2."]
    assert (await client.describe_session("s")).flow_type == "Triage"
    await client.stop_session("s")


@pytest.mark.pulling("two workers that listen need two addresses")
async def test_each_flow_type_has_its_own_runner(engine: Engine):
    """Two agents share a store and a process without meeting."""
    first = await engine.serve(ScriptedRunner([["From A."]]), flow_type="A")
    second = await engine.serve(ScriptedRunner([["From B."]]), flow_type="B")
    await first.start_session("a", "Hi")
    await second.start_session("b", "Hi")
    await engine.settle()
    assert texts(await first.get_agent_snapshot("a")) == ["Hi", "From A."]
    assert texts(await second.get_agent_snapshot("b")) == ["Hi", "From B."]


@pytest.mark.local("on Dex a call needs a worker")
async def test_a_flow_type_that_nobody_serves_waits(engine: Engine):
    """A worker leaves other flow types alone."""
    await engine.serve(ScriptedRunner([["Hello."]]), flow_type="A")
    client = AgentSessionClient(engine.backend, "B")
    await client.start_session("s", "Hi")
    await engine.advance(3600)
    assert (await client.get_agent_snapshot("s")).state is None


async def test_an_unknown_session_is_not_found(engine: Engine):
    """Every call names the ID that it did not find."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    calls = (
        sessions.get_agent_snapshot("nobody"),
        sessions.list_agent_messages("nobody"),
        sessions.send_user_message("nobody", "Hi"),
        sessions.resolve_interrupt("nobody", "i", approved=True),
        sessions.stop_session("nobody"),
        sessions.describe_session("nobody"),
        sessions.read_history("nobody"),
    )
    for call in calls:
        with pytest.raises(FlowNotFoundError, match="nobody"):
            await call
    with pytest.raises(FlowNotFoundError, match="nobody"):
        [event async for event in sessions.follow_events("nobody")]
    assert await engine.backend.list_flows() == []


async def test_a_session_starts_with_one_step(engine: Engine):
    """StartAgentSession goes to RunModel with a message, and to AwaitUserMessage without."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s", "Hi")
    await sessions.start_session("t")
    await engine.settle()
    assert await step_history(sessions, "s") == ["StartAgentSession-1", "RunModel-1"]
    assert await step_history(sessions, "t") == ["StartAgentSession-1"]


async def test_lone_surrogates_in_a_message_become_the_replacement_character(engine: Engine):
    """Nothing that a user types makes a session unreadable."""
    sessions = await engine.serve(ScriptedRunner([["1."], ["2."]]))
    await sessions.start_session("s", "a\ud800b")
    await sessions.send_user_message("s", "\udfff\x00ok")
    await engine.settle()
    found = texts(await sessions.get_agent_snapshot("s"))
    assert found == ["a\ufffdb", "1.", "\ufffd\x00ok", "2."]


def test_a_runner_without_the_three_methods_is_refused():
    """The error names the methods."""
    with pytest.raises(RunnerContractError, match="execute_deferred_tool_call"):
        agent_flow(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("flow_type", ["", "two words", "a/b", "ä"])
def test_a_flow_type_must_be_a_name(flow_type: str):
    """Workers, clients and Dex find each other by it."""
    with pytest.raises(FlowDefinitionError, match="flow type"):
        client_table(flow_type)


@pytest.mark.local("Dex's history has no failed attempts")
async def test_a_clients_table_serves_nobody(engine: Engine):
    """A worker over it fails the session's first Step with an error that says what to serve."""
    worker = engine.backend.worker([client_table("Agent")], grace_seconds=0.0)
    sessions = AgentSessionClient(engine.backend, "Agent")
    async with worker:
        await sessions.start_session("s", "Hi")
        await engine.settle()
        history = await sessions.read_history("s")
    assert "Serve the one that session_table" in history[1].error


@pytest.mark.parametrize("session_id", ["", " ", "a/b", "a$b", "a:b", "a\nb", "a\0b", "a\ud800"])
async def test_an_id_that_not_every_backend_can_take_is_refused(engine: Engine, session_id: str):
    """What passes in memory must pass on Dex: reserved characters are refused everywhere."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    with pytest.raises(FlowIdError, match="cannot be a session ID"):
        await sessions.start_session(session_id)
    assert not await engine.backend.list_flows()
