"""Turns: what is stored when, in which order, and what a failed one leaves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dex_agents import (
    AgentStatus,
    AgentTurnContext,
    AgentUsage,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    TurnCompleted,
)
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.engine import ONCE, READ, Engine, Gate, step_history, texts

LOOK = {"look": READ}


class Blocked:
    """A tool that waits at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, call: DeferredToolExecution) -> str:
        await self.gate.pass_through()
        return "seen"


async def test_the_user_message_is_stored_before_the_model_is_called(engine: Engine):
    """A model call that never answers leaves it readable, and the turn under way."""
    gate = Gate()

    async def script(turn: AgentTurnContext) -> str:
        await gate.pass_through()
        return "Hello."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    assert gate.reached.is_set()
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state.status is AgentStatus.RUNNING_MODEL
    assert [(m.sequence, m.role, m.text) for m in snapshot.messages] == [(1, "user", "Hi")]


async def test_the_runners_form_of_a_user_message_is_what_is_stored(engine: Engine):
    """Item, text and role come from build_user_message."""

    class Shouting(ScriptedRunner):
        def build_user_message(self, text: str) -> FrameworkMessage:
            return FrameworkMessage(MessageRole.USER, ["shouted", text.upper()], f"{text}!")

    sessions = await engine.serve(Shouting([[TurnCompleted([])]]))
    await sessions.start_session("s", "hi")
    await engine.settle()
    (message,) = (await sessions.get_agent_snapshot("s")).messages
    assert (message.framework_item, message.text) == (["shouted", "HI"], "hi!")


async def test_sequences_begin_at_one_and_have_no_gaps(engine: Engine):
    """Over turns with tools, failures and answers alike."""
    script = [["1."], [[ToolRequest("look")], "2."], [ValueError("no")], ["4."]]
    sessions = await engine.serve(
        ScriptedRunner(script, {"look": lambda _: "x"}), tool_policies=LOOK
    )
    await sessions.start_session("s", "a")
    for text in "bcd":
        await sessions.send_user_message("s", text)
    await engine.advance(600)
    messages = (await sessions.get_agent_snapshot("s")).messages
    assert [message.sequence for message in messages] == list(range(1, len(messages) + 1))
    assert [m.text for m in messages if m.role == "user"] == ["a", "b", "c", "d"]
    assert [m.turn_id for m in messages if m.role == "user"] == [f"turn-{n}" for n in (1, 2, 3, 4)]


async def test_a_message_belongs_to_the_turn_that_stored_it(engine: Engine):
    """User message and answer carry the same turn ID."""
    sessions = await engine.serve(ScriptedRunner([["1."], ["2."]]))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    messages = (await sessions.get_agent_snapshot("s")).messages
    assert [message.turn_id for message in messages] == ["turn-1", "turn-1", "turn-2", "turn-2"]


async def test_a_turn_may_call_the_model_as_often_as_it_asks_for_tools(engine: Engine):
    """Three requests, then the answer: four model calls, each a Step of its own."""
    turn = [*[[ToolRequest("look", n)] for n in range(3)], "Done."]
    runner = ScriptedRunner([turn], {"look": lambda call: call.tool_call.arguments})
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "Go")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    results = [m.text for m in snapshot.messages if m.role == "tool"]
    assert results == ["0", "1", "2"]
    assert await step_history(sessions) == [
        "StartAgentSession-1",
        *[
            each
            for n in (1, 2, 3)
            for each in (f"RunModel-{n}", f"CallTool-{n}", f"ResumeTurn-{n}")
        ],
        "RunModel-4",
    ]


async def test_usage_adds_up_over_model_calls_and_turns(engine: Engine):
    """Each field, and the number of calls."""
    usage = AgentUsage(1, 2, 3, 4, 5)
    script = [[[ToolRequest("look")], "1."], ["2."]]
    runner = ScriptedRunner(script, {"look": lambda _: ""}, usage=usage)
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert (await sessions.get_agent_snapshot("s")).usage == AgentUsage(3, 6, 9, 12, 15, 3)


async def test_a_runners_own_count_of_calls_does_not_matter(engine: Engine):
    """One RunModel is one model call."""
    runner = ScriptedRunner([["1."]], usage=AgentUsage(model_calls=7))
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    assert (await sessions.get_agent_snapshot("s")).usage == AgentUsage(model_calls=1)


async def test_a_failed_model_call_is_not_counted(engine: Engine):
    """Usage commits with the outcome, or not at all."""

    def script(turn: AgentTurnContext) -> Any:
        return "Yes." if turn.attempt == 3 else ValueError("not yet")

    sessions = await engine.serve(ScriptedRunner(script, usage=AgentUsage(input_tokens=5)))
    await sessions.start_session("s", "a")
    await engine.advance(60)
    usage = (await sessions.get_agent_snapshot("s")).usage
    assert (usage.input_tokens, usage.model_calls) == (5, 1)


async def test_the_run_state_is_stored_only_while_the_turn_waits_for_tools(engine: Engine):
    """Set by the request, gone with the answer."""
    tool = Blocked()
    runner = ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": tool})
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "Go")
    await engine.settle()
    assert "look" in engine.stored("s", "FrameworkRunState")
    tool.gate.open.set()
    await engine.settle()
    assert engine.stored("s", "FrameworkRunState") is None


async def test_tool_records_live_as_long_as_their_turn(engine: Engine):
    """Stored with the request, deleted with the answer."""
    tool = Blocked()
    runner = ScriptedRunner([[[ToolRequest("look")] * 2, "Done."]], {"look": tool})
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "Go")
    await engine.settle()
    names = ["AgentToolCalls/call-1", "AgentToolCalls/call-2"]
    assert engine.stored_names("s", "AgentToolCalls/") == names
    tool.gate.open.set()
    await engine.settle()
    assert engine.stored_names("s", "AgentToolCalls/") == []
    assert (await sessions.get_agent_snapshot("s")).tool_calls == []


async def test_a_failed_turn_clears_its_records_and_run_state(engine: Engine):
    """Nothing of it reaches the next turn but the note."""
    script = [[[ToolRequest("look")], ValueError("broken")], ["Fine."]]
    runner = ScriptedRunner(script, {"look": lambda _: "x"})
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "Go")
    await engine.advance(600)
    assert engine.stored("s", "FrameworkRunState") is None
    assert engine.stored_names("s", "AgentToolCalls/") == []
    await sessions.send_user_message("s", "Again")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Fine."


async def test_nothing_that_a_turn_produced_is_stored_before_it_completes(engine: Engine):
    """While tools run, the user message is all there is."""
    tool = Blocked()
    runner = ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": tool})
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("s", "Go")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state.status is AgentStatus.RUNNING_TOOLS
    assert (texts(snapshot), snapshot.state.message_count) == (["Go"], 1)
    tool.gate.open.set()
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert [message.role for message in snapshot.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_failed_turn_without_tool_calls_stores_nothing_but_its_question(engine: Engine):
    """And says why."""
    sessions = await engine.serve(ScriptedRunner([[ValueError("model is down")]]))
    await sessions.start_session("s", "Hi")
    await engine.advance(60)
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot) == ["Hi"]
    assert snapshot.state.last_turn_error == "model is down"
    assert snapshot.state.status is AgentStatus.WAITING_FOR_USER_MESSAGE


async def test_the_last_error_stays_until_a_turn_completes(engine: Engine):
    """A failing turn replaces it, a completed one clears it."""
    gate = Gate()

    async def script(turn: AgentTurnContext) -> Any:
        if turn.turn_id == "turn-3":
            await gate.pass_through()
            return "Well."
        return ValueError(f"{turn.turn_id} failed")

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.advance(60)
    assert (await sessions.get_agent_snapshot("s")).state.last_turn_error == "turn-1 failed"
    await sessions.send_user_message("s", "b")
    await engine.advance(60)
    assert (await sessions.get_agent_snapshot("s")).state.last_turn_error == "turn-2 failed"
    await sessions.send_user_message("s", "c")
    await engine.settle()
    assert (await sessions.get_agent_snapshot("s")).state.last_turn_error == "turn-2 failed"
    gate.open.set()
    await engine.settle()
    assert (await sessions.get_agent_snapshot("s")).state.last_turn_error is None


async def test_messages_queue_while_a_turn_runs(engine: Engine):
    """They wait in order, and each begins a turn of its own."""
    tool = Blocked()
    script = [[[ToolRequest("look")], "1."], ["2."], ["3."]]
    sessions = await engine.serve(ScriptedRunner(script, {"look": tool}), tool_policies=LOOK)
    await sessions.start_session("s", "a")
    await engine.settle()
    await sessions.send_user_message("s", "b")
    await sessions.send_user_message("s", "c")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert (snapshot.queued_message_count, snapshot.state.turn_id) == (2, "turn-1")
    tool.gate.open.set()
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.queued_message_count == 0
    assert [t for t in texts(snapshot) if t in {"a", "1.", "b", "2.", "c", "3."}] == [
        "a",
        "1.",
        "b",
        "2.",
        "c",
        "3.",
    ]


async def test_turns_never_interleave(engine: Engine):
    """Twenty messages at once: no model call begins before the last one has ended."""
    running, most, seen = 0, 0, []

    async def script(turn: AgentTurnContext) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(turn.turn_id)
        for _ in range(3):
            await turn.heartbeat()
        running -= 1
        return f"{turn.messages[-1].text}!"

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s")
    for number in range(20):
        await sessions.send_user_message("s", str(number))
    await engine.advance(1)
    snapshot = await sessions.get_agent_snapshot("s")
    assert most == 1
    assert seen == [f"turn-{n}" for n in range(1, 21)]
    assert texts(snapshot) == [text for n in range(20) for text in (str(n), f"{n}!")]


async def test_sessions_run_side_by_side(engine: Engine):
    """A session that waits for a tool holds up no other."""
    tool = Blocked()
    runner = ScriptedRunner(
        lambda turn: (
            [ToolRequest("look")] if turn.flow_id == "slow" and not turn.tool_calls else "Done."
        ),
        {"look": tool},
    )
    sessions = await engine.serve(runner, tool_policies=LOOK)
    await sessions.start_session("slow", "a")
    await sessions.start_session("fast", "b")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("fast")) == ["b", "Done."]
    assert texts(await sessions.get_agent_snapshot("slow")) == ["a"]


async def test_a_turn_says_when_it_began(engine: Engine):
    """In UTC, by the worker's clock."""
    sessions = await engine.serve(ScriptedRunner([["1."], ["2."]]))
    await sessions.start_session("s", "a")
    await engine.advance(86400)
    began = engine.clock.now()
    await sessions.send_user_message("s", "b")
    await engine.advance(5)
    state = (await sessions.get_agent_snapshot("s")).state
    assert state.turn_started_at == datetime.fromtimestamp(began, UTC)


async def test_a_framework_item_comes_back_equal(engine: Engine):
    """Any JSON value, in the next turn and in the snapshot."""
    items = [
        None,
        True,
        "text with \x00 and ☃",
        {"a": [1, 2.5, {"b": None}], "": "empty key"},
        10**300,
        -0.0,
        [[[[]]]],
        "x" * 100_000,
    ]
    seen: list[Any] = []

    def script(turn: AgentTurnContext) -> Any:
        if turn.turn_id == "turn-1":
            messages = [FrameworkMessage(MessageRole.ASSISTANT, item) for item in items]
            return TurnCompleted(messages)
        seen.extend(message.framework_item for message in turn.messages[1:-1])
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert seen == items
    messages = (await sessions.get_agent_snapshot("s")).messages
    assert [m.framework_item for m in messages[1:9]] == items


async def test_a_turn_may_complete_without_any_message(engine: Engine):
    """Then only its question is stored."""
    sessions = await engine.serve(ScriptedRunner([[TurnCompleted([])], ["2."]]))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "b", "2."]


async def test_messages_of_every_role_can_be_stored(engine: Engine):
    """A framework may keep system and tool items of a turn."""
    messages = [FrameworkMessage(role, {"r": role}, None) for role in MessageRole]
    sessions = await engine.serve(ScriptedRunner([[TurnCompleted(messages)]]))
    await sessions.start_session("s", "a")
    await engine.settle()
    stored = (await sessions.get_agent_snapshot("s")).messages[1:]
    assert [message.role for message in stored] == list(MessageRole)


@pytest.mark.local("on Dex a call needs a worker")
async def test_an_answered_turn_survives_its_worker(engine: Engine):
    """What was stored by one worker is the next one's history."""
    runner = ScriptedRunner([["1."], ["2."]])
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    await engine.retire()
    await sessions.send_user_message("s", "b")
    assert (await sessions.get_agent_snapshot("s")).queued_message_count <= 1
    await engine.serve(runner)
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "1.", "b", "2."]


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_a_model_call_that_is_cut_off_by_its_workers_end_runs_again(engine: Engine):
    """The next worker makes it as the second attempt."""
    gate, attempts = Gate(), []

    async def script(turn: AgentTurnContext) -> str:
        attempts.append(turn.attempt)
        if turn.attempt == 1:
            await gate.pass_through()
        return "Done."

    runner = ScriptedRunner(script)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    await engine.retire()
    await engine.advance(60)
    await engine.serve(runner)
    await engine.settle()
    assert attempts == [1, 2]
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "Done."]


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_a_once_only_tool_that_is_cut_off_never_runs_again(engine: Engine):
    """Its outcome is unknown, and the model is told so."""
    tool = Blocked()
    runner = ScriptedRunner([[[ToolRequest("pay")], "Hm."]], {"pay": tool})
    sessions = await engine.serve(runner, tool_policies={"pay": ONCE})
    await sessions.start_session("s", "a")
    await engine.settle()
    await engine.retire()
    await engine.settle()
    await engine.serve(runner, tool_policies={"pay": ONCE})
    await engine.advance(600)
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot)[-1] == "Hm."
    assert "unknown whether" in texts(snapshot)[2]


async def test_a_retry_that_is_due_later_wakes_the_next_worker_in_virtual_time(engine: Engine):
    """Advancing the clock is enough, whichever worker armed the retry."""
    gate = Gate()

    async def script(turn: AgentTurnContext) -> str:
        if turn.attempt == 1:
            await gate.pass_through()
        return "Done."

    runner = ScriptedRunner(script)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    await engine.retire()
    await engine.settle()
    await engine.serve(runner)
    await engine.settle()
    await engine.advance(60)
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "Done."]


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_a_worker_that_follows_at_once_takes_over_what_is_due(engine: Engine):
    """The first one's end frees its sessions before a second one looks for work."""
    tool = Blocked()
    runner = ScriptedRunner([[[ToolRequest("pay")], "Hm."]], {"pay": tool})
    sessions = await engine.serve(runner, tool_policies={"pay": ONCE})
    await sessions.start_session("s", "a")
    await engine.settle()
    await engine.retire()
    await engine.serve(runner, tool_policies={"pay": ONCE})
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Hm."
