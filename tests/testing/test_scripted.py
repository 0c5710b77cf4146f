"""The scripted runner and the memory stack that it plays in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex_agents import (
    AgentMessage,
    AgentSessionOptions,
    AgentSnapshot,
    AgentTurnContext,
    AgentUsage,
    DeferredToolCall,
    DeferredToolExecution,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
    TurnCompleted,
    session_table,
)
from dex_agents.executor import SystemClock
from dex_agents.table import FlowTable
from dex_agents.testing import (
    AgentMemoryStack,
    ScriptedRunner,
    ScriptError,
    ToolRequest,
    wait_for_agent_snapshot,
)

READ = ToolPolicy(ToolEffect.READ)


def _flow(runner: ScriptedRunner, **options: Any) -> FlowTable:
    options = {"default_tool_effect": ToolEffect.READ, **options}
    return session_table(runner, flow_type="Scripted", options=AgentSessionOptions(**options))


async def _play(runner: ScriptedRunner, *texts: str) -> AgentSnapshot:
    """Send messages one turn after the other; time passes for retries."""
    flow = _flow(runner)
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s")
        for text in texts:
            await sessions.send_user_message("s", text)
            await stack.advance(timedelta(hours=1))
        return await sessions.get_agent_snapshot("s")


def _items(messages: list[AgentMessage]) -> list[Any]:
    return [message.framework_item for message in messages]


async def test_a_text_completes_the_turn():
    """Each turn of the script answers one user message."""
    snapshot = await _play(ScriptedRunner([["Hello."], ["Bye."]]), "Hi", "Ciao")
    assert _items(snapshot.messages) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Ciao"},
        {"role": "assistant", "content": "Bye."},
    ]
    assert [message.text for message in snapshot.messages] == ["Hi", "Hello.", "Ciao", "Bye."]


async def test_requested_tools_run_and_their_results_are_stored_in_model_order():
    """Items of the turn: the request, one tool item a call, the answer; IDs count on."""

    async def slow(call: DeferredToolExecution) -> dict[str, Any]:
        return {"order": call.tool_call.arguments["order"]}

    def broken(call: DeferredToolExecution) -> None:
        raise ToolExecutionError("no such order")

    script = [
        [
            [ToolRequest("slow", {"order": 7}), ToolRequest("broken")],
            [ToolRequest("slow", {"order": 8}, tool_call_id="mine"), ToolRequest("nowhere")],
            "Done.",
        ]
    ]
    snapshot = await _play(ScriptedRunner(script, {"slow": slow, "broken": broken}), "Go")
    first, second = (_items(snapshot.messages)[i]["tool_calls"] for i in (1, 4))
    assert first == [
        {"id": "call-1", "name": "slow", "arguments": {"order": 7}},
        {"id": "call-2", "name": "broken", "arguments": {}},
    ]
    assert [call["id"] for call in second] == ["mine", "call-4"]
    tools = [item for item in _items(snapshot.messages) if item["role"] == "tool"]
    assert [item["tool_call_id"] for item in tools] == ["call-1", "call-2", "mine", "call-4"]
    assert tools[0]["content"] == '{"order":7}'
    assert "no such order" in tools[1]["content"]
    assert "There is no tool 'nowhere'. Known tools: broken, slow." in tools[3]["content"]
    assert snapshot.messages[-1].text == "Done."
    assert len(snapshot.messages) == 8


class _Forgetful:
    """Asks a new runner each time, as a worker does that was just started."""

    def __init__(self, *args: Any) -> None:
        self._args = args

    def build_user_message(self, text: str) -> Any:
        return ScriptedRunner(*self._args).build_user_message(text)

    async def run_model_step(self, turn: Any) -> Any:
        return await ScriptedRunner(*self._args).run_model_step(turn)

    async def execute_deferred_tool_call(self, call: Any) -> Any:
        return await ScriptedRunner(*self._args).execute_deferred_tool_call(call)


async def test_a_scripted_runner_keeps_nothing_between_calls():
    """A new runner for every call plays the same."""
    script = [[[ToolRequest("look")], [ToolRequest("look")], "Seen."], ["Bye."]]
    snapshot = await _play(_Forgetful(script, {"look": lambda _: "a bird"}), "Look", "Ciao")
    assert [message.text for message in snapshot.messages] == [
        *("Look", None, "a bird", None, "a bird", "Seen."),
        *("Ciao", "Bye."),
    ]


async def test_a_request_can_carry_the_frameworks_effect():
    """The policy comes from the turn's resolver, which hears of the effect."""
    request = ToolRequest("pay", effect=ToolEffect.NON_IDEMPOTENT_WRITE)
    flow = _flow(ScriptedRunner([[[request], "Paid."]], {"pay": lambda _: "ok"}))
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "Pay")
        await stack.settle()
        snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.tool_calls[0].effect is ToolEffect.NON_IDEMPOTENT_WRITE
    assert len(snapshot.pending_interrupts) == 1


async def test_an_exception_in_the_script_fails_the_turn_and_the_next_turn_plays():
    """It is raised at every attempt; turn n of the session is turn n of the script."""
    runner = ScriptedRunner([[RuntimeError("model is down")], ["Back."]])
    snapshot = await _play(runner, "One")
    assert "model is down" in snapshot.state.last_turn_error
    assert [message.text for message in (await _play(runner, "One", "Two")).messages] == [
        "One",
        "Two",
        "Back.",
    ]


async def test_a_function_is_asked_for_every_model_call():
    """A function script sees the attempt, so it can fail once and then answer."""
    attempts = []

    def script(turn: AgentTurnContext) -> object:
        attempts.append(turn.attempt)
        return RuntimeError("once") if turn.attempt == 1 else "Yes."

    snapshot = await _play(ScriptedRunner(script), "Well?")
    assert attempts == [1, 2]
    assert snapshot.messages[-1].text == "Yes."


async def test_an_async_function_can_be_the_script():
    """What it returns is awaited."""

    async def script(turn: AgentTurnContext) -> str:
        return f"{len(turn.messages)} so far."

    assert (await _play(ScriptedRunner(script), "Count")).messages[-1].text == "1 so far."


async def test_whatever_else_a_function_returns_reaches_the_session():
    """So a test can break the contract on purpose."""
    snapshot = await _play(ScriptedRunner(lambda _: 42), "Hi")
    assert "not int" in snapshot.state.last_turn_error


async def test_a_ready_outcome_is_returned_as_it_is():
    """A sound one leads on behind it, with its own run state; a wrong one fails the turn."""
    ready = ToolCallsRequested("mine", [DeferredToolCall("x", "look", {}, READ)])
    snapshot = await _play(ScriptedRunner([[ready, "Seen."]], {"look": lambda _: "a bird"}), "Look")
    assert [message.text for message in snapshot.messages] == ["Look", None, "a bird", "Seen."]
    snapshot = await _play(ScriptedRunner([[ToolCallsRequested("", [])]]), "Look")
    assert "non-empty" in snapshot.state.last_turn_error
    assert len((await _play(ScriptedRunner([[TurnCompleted([])]]), "Look")).messages) == 1


async def test_a_call_beyond_the_script_says_so():
    """Both a turn and a model call that the script lacks fail the turn with a clear error."""
    snapshot = await _play(ScriptedRunner([["One."]]), "1", "2")
    assert "The script has 1 turns; this is turn 2." in snapshot.state.last_turn_error
    runner = ScriptedRunner([[[ToolRequest("look")]]], {"look": lambda _: ""})
    snapshot = await _play(runner, "1")
    assert "has 1 responses; this is model call 2" in snapshot.state.last_turn_error


@pytest.mark.parametrize("script", [["Hello"], [[42]], [[ToolRequest("bare")]], [[["text"]]]])
def test_a_script_that_is_none_is_refused_at_once(script: Any):
    """A mistake in a script shows where it is written."""
    with pytest.raises(ScriptError, match="Turn 1"):
        ScriptedRunner(script)


async def test_usage_is_reported_for_each_model_call():
    """Two calls count twice."""
    usage = AgentUsage(input_tokens=10, output_tokens=1)
    runner = ScriptedRunner([[[ToolRequest("look")], "Ok."]], {"look": lambda _: ""}, usage=usage)
    total = (await _play(runner, "Look")).usage
    assert (total.input_tokens, total.output_tokens) == (20, 2)


async def test_a_streamed_answer_comes_word_by_word():
    """The deltas joined are the text, whitespace included."""
    flow = _flow(ScriptedRunner([["  Two words,\nthree "]], stream=True))
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "Hi")
        await stack.settle()
        events = [each.event async for each in sessions.follow_events("s", follow=False)]
    deltas = [event.payload["text"] for event in events if event.type == "text_delta"]
    assert deltas == ["  ", "Two ", "words,\n", "three "]


# The stack


async def test_time_stands_still_until_the_stack_is_advanced():
    """A day passes at once, for the deadline as for the clock."""
    flow = _flow(
        ScriptedRunner([[[ToolRequest("pay")], "Not paid."]], {"pay": lambda _: "ok"}),
        default_tool_effect=ToolEffect.UNCLASSIFIED,
        interrupt_deadline=timedelta(days=1),
    )
    async with AgentMemoryStack([flow]) as stack:
        sessions, start = stack.sessions("Scripted"), stack.clock.now()
        await sessions.start_session("s", "Pay")
        await stack.advance(24 * 3600 - 1)
        assert (await sessions.get_agent_snapshot("s")).pending_interrupts
        await stack.advance(timedelta(seconds=2))
        snapshot = await sessions.get_agent_snapshot("s")
        assert stack.clock.now() == start + 24 * 3600 + 1
    assert snapshot.messages[-1].text == "Not paid."
    assert not snapshot.pending_interrupts


async def test_a_stack_can_go_by_the_systems_clock():
    """Then the session runs by itself, and nothing can be advanced."""
    flow = _flow(ScriptedRunner([["Hello."]]))
    async with AgentMemoryStack([flow], clock=SystemClock(), max_concurrent_steps=1) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session("s", "Hi")
        await wait_for_agent_snapshot(
            sessions, "s", lambda seen: len(seen.messages) == 2, description="the answer"
        )
        with pytest.raises(TypeError, match="SystemClock cannot be advanced"):
            await stack.settle()


async def test_a_finished_stack_stays_readable():
    """The memory is the backend's, not the worker's."""
    flow = _flow(ScriptedRunner([["Hello."]]))
    async with AgentMemoryStack([flow]) as stack:
        await stack.sessions(flow).start_session("s", "Hi")
        await stack.settle()
    assert (await stack.backend.describe_flow("s")).status == "running"
