"""Group G: what models and providers get wrong, through the session and through an adapter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dex_agents import (
    AgentFrameworkRunner,
    DeferredToolExecution,
    ToolExecutionError,
    ToolExecutionResult,
)
from dex_agents.testing import RecordedRunner, Recording, ToolRequest, compare_recording
from tests.cases.agent import Agent, ended, outcome, serve
from tests.session.engine import Engine, texts

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "runners.md"

# C37


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asks(*call_ids: str) -> dict[str, Any]:
    calls = [{"id": each, "name": "look", "arguments": '{"at": "sky"}'} for each in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def results(*call_ids: str) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": each, "content": f"bird {n}"}
        for n, each in enumerate(call_ids, start=1)
    ]


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


IDS = {
    "the same": ("x", "x"),
    "empty": ("", ""),
    "the name": ("look", "look"),
    "with a slash": ("a/b", "a/b"),
    "good": ("x", "y"),
}
"""What providers give two equal calls of one response."""


async def test_c37_an_adapter_makes_ids_unique_and_keeps_the_providers(engine: Engine):
    """Two equal calls, again two turns later: each a Step of its own, answered in model order."""
    recordings = [
        Recording(
            name,
            [
                *(user("Look"), asks(*ids), *results(*ids), says("Two birds.")),
                *(user("Thanks"), says("Any time.")),
                *(user("Again"), asks(*ids), *results(*ids), says("The same two.")),
            ],
        )
        for name, ids in IDS.items()
    ]
    keys: dict[str, list[str]] = {name: [] for name in IDS}

    def ran(call: DeferredToolExecution) -> None:
        keys[call.flow_id].append(call.idempotency_key)

    sessions = await serve(engine, RecordedRunner(recordings, on_tool_call=ran))
    for each in recordings:
        await sessions.start_session(each.id, "Look")
        await sessions.send_user_message(each.id, "Thanks")
        await sessions.send_user_message(each.id, "Again")
    await ended(engine, sessions, *IDS, turns=3)

    for each in recordings:
        assert len(set(keys[each.id])) == len(keys[each.id]) == 4
        messages = (await sessions.list_agent_messages(each.id)).messages
        assert compare_recording(each, messages) == []
        assert [m.text for m in messages if m.role == "tool"] == ["bird 1", "bird 2"] * 2


async def test_c37_ids_that_are_not_unique_fail_their_turn(engine: Engine):
    """Handed on as they are, they are the adapter's fault: nothing runs, and the error says so."""

    class Careless(Agent):
        async def answering(self, turn: Any, place: int) -> None:
            ids = IDS.get(turn.messages[-1].text, ("x", "y"))
            self.script = [[ToolRequest("look", tool_call_id=each) for each in ids], "Done."]

    agent = Careless([])
    sessions = await serve(engine, agent)
    for name in IDS:
        await sessions.start_session(name, name)
    await ended(engine, sessions, *IDS)
    for name in IDS:
        error = (await sessions.get_agent_snapshot(name)).state.last_turn_error
        if name == "good":
            assert error is None
            continue
        assert "is used twice in one turn" in error or "is empty or holds a '/'" in error
        assert agent.runs(name) == []
        await sessions.send_user_message(name, "Go on")
        await ended(engine, sessions, name, turns=2)
        assert agent.keys(name) == {f"{name}/turn-2/x", f"{name}/turn-2/y"}


# C38


def guides_runner(complete: Any, tools: dict[str, Any]) -> Any:
    """Return the adapter of the guide, over a model and tools."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    scope: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), scope)
    runner = scope["ChatRunner"](complete, tools)
    assert isinstance(runner, AgentFrameworkRunner)
    return runner


class Model:
    """Gives its responses one after the other, whoever asks."""

    def __init__(self, *responses: dict[str, Any]) -> None:
        self.responses = list(responses)

    async def __call__(self, _: list[Any]) -> dict[str, Any]:
        return self.responses.pop(0)


def call(name: str, arguments: Any = None) -> dict[str, Any]:
    return {"id": "call-1", "name": name, "arguments": arguments}


EMPTY: list[dict[str, Any]] = [
    {},
    {"text": None},
    {"text": ""},
    {"text": " \n"},
    {"thinking": "Hm.", "finish": "stop"},
    {"text": "", "finish": "length"},
]


async def test_c38_an_empty_response_is_no_answer(engine: Engine):
    """Twelve in a row: each turn asks three times, then fails by name; the next answer counts."""
    model = Model(*EMPTY * 2, {"text": "Here I am."})
    sessions = await serve(engine, guides_runner(model, {}))
    await sessions.start_session("s", "1")
    for turn in range(1, 5):
        await ended(engine, sessions, turns=turn)
        snapshot = await sessions.get_agent_snapshot("s")
        assert snapshot.state.last_turn_error == "The model's answer is empty."
        assert len(model.responses) == 13 - 3 * turn
        await sessions.send_user_message("s", str(turn + 1))
    await ended(engine, sessions, turns=5)
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot) == [*"12345", "Here I am."]
    assert snapshot.state.last_turn_error is None


async def test_c38_blank_text_does_not_bring_back_an_earlier_one(engine: Engine):
    """What the model said beside a tool call is not its answer; the failed turn says what ran."""

    async def look(_: Any) -> str:
        return "a bird"

    asked = {"text": "I will look.", "tool_calls": [call("look")], "finish": "stop"}
    model = Model(asked, *[{"text": ""}] * 3)
    sessions = await serve(engine, guides_runner(model, {"look": look}))
    await sessions.start_session("s", "Go")
    await ended(engine, sessions)
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state.last_turn_error == "The model's answer is empty."
    assert [m.role for m in snapshot.messages] == ["user", "user"]
    assert "- look null -> succeeded: a bird" in snapshot.messages[-1].text


async def test_c38_valid_calls_count_whatever_the_finish_reason(engine: Engine):
    """A response that holds tool calls asks for tools, also when it says that it has stopped."""
    ran = []

    async def look(arguments: Any) -> str:
        ran.append(arguments)
        return "a bird"

    asked = {"text": "", "tool_calls": [call("look", {"at": "sky"})], "finish": "stop"}
    sessions = await serve(engine, guides_runner(Model(asked, {"text": "Done."}), {"look": look}))
    await sessions.start_session("s", "Go")
    await ended(engine, sessions)
    assert ran == [{"at": "sky"}]
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Done."


@pytest.mark.parametrize("tool", ["look", "put", "pay"])
async def test_c38_cut_arguments_are_not_run(engine: Engine, tool: str):
    """Handed on as the text they are, they fail the call before its tool: the model reads why."""
    ran = []

    async def act(arguments: Any) -> str:
        ran.append(arguments)
        return "done"

    model = Model(
        {"tool_calls": [call(tool, '{"amount": 10')], "finish": "length"}, {"text": "I see."}
    )
    runner = guides_runner(model, {tool: act})

    class Parsing(type(runner)):
        async def execute_deferred_tool_call(
            self, call: DeferredToolExecution
        ) -> ToolExecutionResult:
            try:
                json.loads(call.tool_call.arguments)
            except ValueError as error:
                raise ToolExecutionError(f"The arguments are no JSON: {error}") from error
            return await super().execute_deferred_tool_call(call)

    sessions = await serve(engine, Parsing(model, {tool: act}))
    await sessions.start_session("s", "Go")
    await ended(engine, sessions)
    (told,) = await outcome(sessions)
    assert told.startswith("The tool call failed: The arguments are no JSON")
    assert ran == []
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot)[-1] == "I see."
    assert snapshot.messages[1].framework_item["tool_calls"][0]["arguments"] == '{"amount": 10'
