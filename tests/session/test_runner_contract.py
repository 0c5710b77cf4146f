"""The contract with a runner: what it is given, and what happens when it gives nonsense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dex_agents import (
    AgentEventWriter,
    AgentSessionClient,
    AgentSnapshot,
    AgentTurnContext,
    AgentUsage,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolCallsRequested,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.engine import READ, Engine, texts

ANSWER = [FrameworkMessage(MessageRole.ASSISTANT, {"n": 1}, "Fine.")]


def _asks(*ids: Any, run_state: Any = "state", name: Any = "look", **fields: Any) -> Any:
    calls = [DeferredToolCall(each, name, {}, READ) for each in ids]
    calls = [msgspec.structs.replace(call, **fields) for call in calls]
    return ToolCallsRequested(run_state, calls)


# What a runner is given


async def test_the_first_model_call_of_a_turn_has_the_committed_session(engine: Engine):
    """Every field of AgentTurnContext, before any tool."""
    seen: list[AgentTurnContext] = []

    def script(turn: AgentTurnContext) -> str:
        seen.append(turn)
        return "Hello."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s-1", "Hi")
    await engine.settle()
    (turn,) = seen
    assert (turn.flow_id, turn.turn_id, turn.attempt) == ("s-1", "turn-1", 1)
    assert turn.framework_run_state is None
    assert turn.is_resuming is False
    assert turn.tool_calls == {}
    assert turn.recorded_tool_call("call-1") is None
    assert isinstance(turn.events, AgentEventWriter)


async def test_the_messages_are_all_that_is_stored_and_end_with_this_turns_question(
    engine: Engine,
):
    """In sequence order."""
    seen: list[list[tuple[int, str | None]]] = []

    def script(turn: AgentTurnContext) -> str:
        seen.append([(message.sequence, message.text) for message in turn.messages])
        return f"Answer {len(seen)}."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert seen == [[(1, "a")], [(1, "a"), (2, "Answer 1."), (3, "b")]]


async def test_a_resuming_model_call_has_the_run_state_and_final_records(engine: Engine):
    """Exactly the text of the last request, and each result."""
    seen: list[AgentTurnContext] = []

    def script(turn: AgentTurnContext) -> Any:
        seen.append(turn)
        place = len(turn.tool_calls)
        return _asks(f"c{place}", run_state=f"state {place} \x00☃") if place < 2 else "Done."

    runner = ScriptedRunner(script, {"look": lambda call: {"of": call.tool_call.tool_call_id}})
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "Go")
    await engine.settle()
    assert [turn.framework_run_state for turn in seen] == [
        None,
        "state 0 \x00☃",
        "state 1 \x00☃",
    ]
    assert [turn.is_resuming for turn in seen] == [False, True, True]
    assert list(seen[2].tool_calls) == ["c0", "c1"]
    record = seen[2].recorded_tool_call("c1")
    assert (record.status, record.output) == (ToolCallStatus.SUCCEEDED, {"of": "c1"})
    assert all(each.is_final for each in seen[2].tool_calls.values())


async def test_a_next_turn_starts_without_run_state_and_records(engine: Engine):
    """They belong to the turn before."""
    seen: list[AgentTurnContext] = []

    def script(turn: AgentTurnContext) -> Any:
        seen.append(turn)
        return "Done." if turn.tool_calls else _asks("c")

    sessions = await engine.serve(ScriptedRunner(script, {"look": lambda _: ""}))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert [(t.turn_id, t.is_resuming, len(t.tool_calls)) for t in seen] == [
        ("turn-1", False, 0),
        ("turn-1", True, 1),
        ("turn-2", False, 0),
        ("turn-2", True, 1),
    ]


async def test_every_attempt_of_a_model_call_sees_the_same_but_its_number(engine: Engine):
    """Nothing of a failed attempt is left."""
    seen: list[AgentTurnContext] = []

    def script(turn: AgentTurnContext) -> Any:
        seen.append(turn)
        return ValueError("no") if turn.attempt < 3 else "Yes."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.advance(60)
    assert [turn.attempt for turn in seen] == [1, 2, 3]
    assert {(t.turn_id, len(t.messages), t.framework_run_state) for t in seen} == {
        ("turn-1", 1, None)
    }


async def test_a_tool_is_given_its_record_and_its_key(engine: Engine):
    """Every field of DeferredToolExecution; the key is flow, turn and tool call."""
    seen: list[DeferredToolExecution] = []

    def pay(call: DeferredToolExecution) -> str:
        seen.append(call)
        return "ok"

    request = ToolRequest("pay", {"amount": 3}, tool_call_id="id 1")
    runner = ScriptedRunner([["-"], [[request], "Paid."]], {"pay": pay})
    policy = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
    sessions = await engine.serve(runner, tool_policies={"pay": policy})
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    (call,) = seen
    assert (call.flow_id, call.attempt) == ("s", 1)
    assert call.idempotency_key == "s/turn-2/id 1"
    record = call.tool_call
    assert (record.tool_call_id, record.tool_name) == ("id 1", "pay")
    assert record.arguments == {"amount": 3}
    assert (record.effect, record.turn_id) == (ToolEffect.IDEMPOTENT_WRITE, "turn-2")
    assert (record.deferral_order, record.requires_approval) == (1, False)
    assert record.status is ToolCallStatus.PENDING
    assert isinstance(call.events, AgentEventWriter)
    assert await call.heartbeat() is None


async def test_the_same_id_in_two_turns_has_two_keys(engine: Engine):
    """So a provider that counts from one in each turn never meets an old result."""
    keys: list[str] = []

    def pay(call: DeferredToolExecution) -> str:
        keys.append(call.idempotency_key)
        return "ok"

    script = [[[ToolRequest("pay", tool_call_id="c")], "1."]] * 2
    policy = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
    sessions = await engine.serve(
        ScriptedRunner(script, {"pay": pay}), tool_policies={"pay": policy}
    )
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert keys == ["s/turn-1/c", "s/turn-2/c"]


async def test_a_runner_may_record_its_own_signs_of_life(engine: Engine):
    """``await turn.heartbeat()`` works from the runner's task."""

    async def script(turn: AgentTurnContext) -> str:
        await turn.heartbeat()
        return "Alive."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "Alive."]


# Policies


@pytest.mark.parametrize(
    ("name", "framework_effect", "effect"),
    [
        ("explicit", ToolEffect.UNCLASSIFIED, ToolEffect.READ),
        ("explicit", None, ToolEffect.READ),
        ("other", ToolEffect.IDEMPOTENT_WRITE, ToolEffect.IDEMPOTENT_WRITE),
        ("other", None, ToolEffect.NON_IDEMPOTENT_WRITE),
    ],
)
async def test_a_policy_is_explicit_then_the_frameworks_then_the_default(
    engine: Engine, name: str, framework_effect: ToolEffect | None, effect: ToolEffect
):
    """The application knows best."""
    seen: list[ToolPolicy] = []

    def script(turn: AgentTurnContext) -> str:
        seen.append(turn.resolve_tool_policy(name, framework_effect))
        return "Ok."

    sessions = await engine.serve(
        ScriptedRunner(script),
        tool_policies={"explicit": READ},
        default_tool_effect=ToolEffect.NON_IDEMPOTENT_WRITE,
    )
    await sessions.start_session("s", "a")
    await engine.settle()
    assert [policy.effect for policy in seen] == [effect]


async def test_a_tool_of_which_nobody_says_anything_is_unclassified(engine: Engine):
    """Which is run once, and only when approved."""
    runner = ScriptedRunner([[[ToolRequest("mystery")], "-"]], {"mystery": lambda _: ""})
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    (record,) = (await sessions.get_agent_snapshot("s")).tool_calls
    assert record.effect is ToolEffect.UNCLASSIFIED
    assert record.status is ToolCallStatus.PENDING_APPROVAL


@pytest.mark.parametrize(
    ("effect", "is_required"),
    [
        (ToolEffect.READ, False),
        (ToolEffect.IDEMPOTENT_WRITE, False),
        (ToolEffect.NON_IDEMPOTENT_WRITE, True),
        (ToolEffect.UNCLASSIFIED, True),
    ],
)
@pytest.mark.parametrize("override", [None, True, False])
def test_approval_is_the_effects_default_unless_the_policy_says(
    effect: ToolEffect, is_required: bool, override: bool | None
):
    """``requires_approval`` outranks the effect."""
    policy = ToolPolicy(effect, requires_approval=override)
    assert policy.is_approval_required is (is_required if override is None else override)


# Nonsense


NONSENSE: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "not NoneType"),
    "a dict": (lambda: {"new_messages": []}, "not dict"),
    "no messages": (lambda: TurnCompleted(None), "new_messages"),
    "messages of another type": (lambda: TurnCompleted(["text"]), "not str"),
    "messages that can be read only once": (
        lambda: TurnCompleted(each for each in ANSWER),
        "new_messages",
    ),
    "an unknown role": (
        lambda: TurnCompleted([FrameworkMessage("boss", {}, "x")]),
        "unknown role 'boss'",
    ),
    "a text that is none": (
        lambda: TurnCompleted([FrameworkMessage(MessageRole.ASSISTANT, {}, 7)]),
        "int",
    ),
    "a framework item that is no JSON": (
        lambda: TurnCompleted([FrameworkMessage(MessageRole.ASSISTANT, {"a": [b"x"]}, "x")]),
        r"framework_item.a[0]",
    ),
    "a framework item nested too deeply": (
        lambda: TurnCompleted([FrameworkMessage(MessageRole.ASSISTANT, _deep(), "x")]),
        "256 levels",
    ),
    "usage of another type": (lambda: TurnCompleted(ANSWER, {"input_tokens": 3}), "AgentUsage"),
    "usage of nothing": (lambda: TurnCompleted(ANSWER, None), "AgentUsage"),
    "a fraction of a token": (lambda: TurnCompleted(ANSWER, AgentUsage(1.5)), "input_tokens"),
    "a number of tokens that is text": (
        lambda: TurnCompleted(ANSWER, AgentUsage(output_tokens="7")),
        "output_tokens",
    ),
    "an unknown number of tokens": (
        lambda: TurnCompleted(ANSWER, AgentUsage(reasoning_tokens=None)),
        "reasoning_tokens",
    ),
    "a truth for a number of tokens": (lambda: TurnCompleted(ANSWER, AgentUsage(True)), "True"),
    "a negative number of tokens": (lambda: TurnCompleted(ANSWER, AgentUsage(-1)), "input_tokens"),
    "a number of tokens beyond 64 bits": (
        lambda: TurnCompleted(ANSWER, AgentUsage(2**70)),
        "input_tokens",
    ),
    "an empty run state": (lambda: _asks("c", run_state=""), "non-empty"),
    "no run state": (lambda: _asks("c", run_state=None), "non-empty"),
    "a run state that is no text": (lambda: _asks("c", run_state={"a": 1}), "text"),
    "no tool calls": (_asks, "no tool calls"),
    "tool calls that are none": (
        lambda: ToolCallsRequested("s", [{"id": "c"}]),
        "DeferredToolCall",
    ),
    "tool calls that can be read only once": (
        lambda: ToolCallsRequested("s", iter(_asks("c").tool_calls)),
        "tool_calls",
    ),
    "an empty tool call ID": (lambda: _asks(""), "is empty"),
    "a tool call ID with a slash": (lambda: _asks("a/b"), "'/'"),
    "a tool call ID that is no text": (lambda: _asks(7), "7"),
    "a tool call ID with a lone surrogate": (lambda: _asks("a\ud800"), "surrogate"),
    "one ID twice in a response": (lambda: _asks("c", "d", "c"), "'c' is used twice"),
    "no tool name": (lambda: _asks("c", name=""), "names no tool"),
    "a tool name that is no text": (lambda: _asks("c", name=None), "names no tool"),
    "arguments that are no JSON": (
        lambda: _asks("c", arguments={"x": {1, 2}}),
        "arguments of tool call 'c'",
    ),
    "no policy": (lambda: _asks("c", policy=None), "resolve_tool_policy"),
    "an effect as a policy": (lambda: _asks("c", policy=ToolEffect.READ), "ToolPolicy"),
    "an effect that is plain text": (
        lambda: _asks("c", policy=ToolPolicy("read", False)),
        "must be a ToolEffect",
    ),
    "an unknown effect": (lambda: _asks("c", policy=ToolPolicy("magic", False)), "magic"),
    "an approval that is neither yes nor no": (
        lambda: _asks("c", policy=ToolPolicy(ToolEffect.READ, "maybe")),
        "requires_approval",
    ),
}


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(300):
        value = [value]
    return value


async def _play_nonsense(
    engine: Engine, make: Callable[[], Any]
) -> tuple[int, AgentSessionClient, AgentSnapshot]:
    attempts = 0

    def script(turn: AgentTurnContext) -> Any:
        nonlocal attempts
        if turn.turn_id != "turn-1":
            return "Fine."
        attempts += 1
        return make()

    sessions = await engine.serve(ScriptedRunner(script, {"look": lambda _: "seen"}))
    await sessions.start_session("s", "a")
    await engine.advance(600)
    return attempts, sessions, await sessions.get_agent_snapshot("s")


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_nonsense_from_a_model_call_fails_the_turn_and_not_the_session(
    engine: Engine, nonsense: str
):
    """Three attempts, an error that says what is wrong, and the next message is answered."""
    make, expected = NONSENSE[nonsense]
    attempts, sessions, snapshot = await _play_nonsense(engine, make)
    assert attempts == 3
    assert expected in snapshot.state.last_turn_error
    assert texts(snapshot) == ["a"]
    assert snapshot.tool_calls == []
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["a", "b", "Fine."]


async def test_an_id_of_an_earlier_response_of_the_turn_is_refused(engine: Engine):
    """IDs are unique within a turn, not only within a response."""

    def script(turn: AgentTurnContext) -> Any:
        return _asks("c") if turn.turn_id == "turn-1" else "Fine."

    sessions = await engine.serve(ScriptedRunner(script, {"look": lambda _: "seen"}))
    await sessions.start_session("s", "a")
    await engine.advance(600)
    snapshot = await sessions.get_agent_snapshot("s")
    assert "'c' is used twice in one turn" in snapshot.state.last_turn_error
    await sessions.send_user_message("s", "b")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Fine."


@pytest.mark.parametrize(
    "tool_call_id", [".", "..", "a b", "ä☃", "%2F", "a\x00b", "c" * 500, "a.b", "'", "null"]
)
async def test_any_other_text_is_a_tool_call_id(engine: Engine, tool_call_id: str):
    """It names the record, the interrupt and the key."""
    keys: list[str] = []

    def pay(call: DeferredToolExecution) -> str:
        keys.append(call.idempotency_key)
        return "ok"

    request = ToolRequest("pay", tool_call_id=tool_call_id)
    sessions = await engine.serve(ScriptedRunner([[[request], "Paid."]], {"pay": pay}))
    await sessions.start_session("s", "a")
    await engine.settle()
    (interrupt,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
    assert interrupt.tool_call_id == tool_call_id
    assert await sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Paid."
    assert keys == [f"s/turn-1/{tool_call_id}"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda text: text, "FrameworkMessage"),
        (lambda text: None, "NoneType"),
        (lambda text: FrameworkMessage(MessageRole.ASSISTANT, {}, text), "role 'user'"),
        (lambda text: FrameworkMessage("boss", {}, text), "boss"),
        (lambda text: FrameworkMessage(MessageRole.USER, object(), text), "framework_item"),
    ],
)
@pytest.mark.local("Dex's history has no failed attempts")
async def test_a_wrong_user_message_fails_the_step_until_the_runner_is_mended(
    engine: Engine, make: Callable[[str], Any], expected: str
):
    """The message stays queued behind a Step that is tried again; history says why."""
    is_mended = False

    class Runner(ScriptedRunner):
        def build_user_message(self, text: str) -> FrameworkMessage:
            return super().build_user_message(text) if is_mended else make(text)

    sessions = await engine.serve(Runner([["Hello."]]))
    await sessions.start_session("s", "Hi")
    await engine.advance(5)
    failed = [each for each in await sessions.read_history("s") if each.error]
    assert failed
    assert expected in failed[0].error
    assert failed[0].step_type == "StartAgentSession"
    is_mended = True
    await engine.advance(3600)
    assert texts(await sessions.get_agent_snapshot("s")) == ["Hi", "Hello."]


# Nonsense from a tool


class BadTool(ScriptedRunner):
    """Returns whatever it is told to in place of a tool's result."""

    def __init__(self, result: Any) -> None:
        super().__init__([[[ToolRequest("look")], "Done."], ["Fine."]])
        self.result = result
        self.attempts = 0

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self.attempts += 1
        return self.result


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("text", "execute_deferred_tool_call must return ToolExecutionResult, not str."),
        (None, "not NoneType"),
        (ToolExecutionResult(object()), "object is not JSON"),
        (ToolExecutionResult({"a": b"bytes"}), "tool output.a"),
        (ToolExecutionResult({1: "a"}), "the key 1"),
    ],
)
async def test_nonsense_from_a_tool_is_a_failure_of_its_step(
    engine: Engine, result: Any, expected: str
):
    """A read has three attempts and fails; the model is told, and the turn goes on."""
    runner = BadTool(result)
    sessions = await engine.serve(runner, tool_policies={"look": READ})
    await sessions.start_session("s", "a")
    await engine.advance(600)
    snapshot = await sessions.get_agent_snapshot("s")
    assert runner.attempts == 3
    assert expected in texts(snapshot)[2]
    assert texts(snapshot)[-1] == "Done."
    assert snapshot.state.last_turn_error is None


@pytest.mark.parametrize("output", [None, False, 0, "", [], {}, "text", [1, {"a": "☃"}], 1.5])
async def test_any_json_value_is_a_tools_output(engine: Engine, output: Any):
    """It comes back equal in the record that the model call reads."""
    seen: list[Any] = []

    def script(turn: AgentTurnContext) -> Any:
        if not turn.tool_calls:
            return [ToolRequest("look", output)]
        seen.append(turn.tool_calls["call-1"])
        return "Done."

    runner = ScriptedRunner(script, {"look": lambda call: call.tool_call.arguments})
    sessions = await engine.serve(runner, tool_policies={"look": READ})
    await sessions.start_session("s", "a")
    await engine.settle()
    assert [(r.output, r.arguments, r.status) for r in seen] == [(output, output, "succeeded")]
