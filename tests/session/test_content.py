"""Whatever a value holds, one rule says what becomes of it, at every place and on every backend."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dex_agents import (
    AgentUsage,
    DeferredToolCall,
    FrameworkMessage,
    MessageRole,
    ToolCallsRequested,
    ToolExecutionError,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.records import ToolEffect
from tests.session.engine import Engine

TEXTS = st.text(
    st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\0\x1b\ufeff")
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**301) | st.floats() | TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
READ = ToolPolicy(ToolEffect.READ)


def drawn(strategy: Any, count: int) -> list[Any]:
    """Return values that hypothesis draws, the same in every run."""
    found: list[Any] = []

    @settings(
        derandomize=True,
        database=None,
        max_examples=count,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


def kept(value: Any) -> Any:
    """Return what the rule makes of a value, said in another way than the product does."""
    if isinstance(value, str):
        pairs = re.sub(
            "[\ud800-\udbff][\udc00-\udfff]",
            lambda m: chr(0x10000 + ((ord(m[0][0]) & 0x3FF) << 10) + (ord(m[0][1]) & 0x3FF)),
            value,
        )
        return re.sub("[\ud800-\udfff]", "\ufffd", pairs)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [kept(each) for each in value]
    return {kept(k): kept(v) for k, v in value.items()} if isinstance(value, dict) else value


class Echo:
    """Hands values over at every place, and remembers what came back."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.arguments: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.items: list[Any] = []

    def build_user_message(self, text):
        return FrameworkMessage(MessageRole.USER, {"values": self.values, "text": text}, text)

    async def run_model_step(self, turn):
        if turn.is_resuming:
            self.outputs = {name: record.output for name, record in turn.tool_calls.items()}
            self.items = [message.framework_item for message in turn.messages]
            new = [FrameworkMessage(MessageRole.ASSISTANT, each, "said") for each in self.values]
            return TurnCompleted(new, AgentUsage())
        calls = [
            DeferredToolCall(f"c{n}", "echo", value, READ) for n, value in enumerate(self.values)
        ]
        return ToolCallsRequested("state \0\ud800", calls, AgentUsage())

    async def execute_deferred_tool_call(self, call):
        name = call.tool_call.tool_call_id
        self.arguments[name] = call.tool_call.arguments
        return ToolExecutionResult(self.values[int(name[1:])])


async def test_every_value_comes_back_as_the_rule_says(engine: Engine):
    """Framework items, tool arguments and tool results, read by the runner and by a client."""
    values = drawn(VALUES, 40)
    runner = Echo(values)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "go")
    await engine.settle()
    expected = [kept(each) for each in values]
    assert [runner.arguments[f"c{n}"] for n in range(len(values))] == expected
    assert [runner.outputs[f"c{n}"] for n in range(len(values))] == expected
    assert runner.items[0] == {"values": expected, "text": "go"}
    snapshot = await sessions.get_agent_snapshot("s")
    assert [message.framework_item for message in snapshot.messages[1:]] == expected


async def test_every_text_comes_back_as_the_rule_says(engine: Engine):
    """User texts and what a failing tool says; the text that is blank starts no turn."""
    texts = [each for each in drawn(TEXTS, 25) if each.strip()]

    class Failing(Echo):
        async def execute_deferred_tool_call(self, call):
            raise ToolExecutionError(call.tool_call.arguments)

        async def run_model_step(self, turn):
            if turn.is_resuming:
                self.outputs = {name: each.error for name, each in turn.tool_calls.items()}
                return TurnCompleted([], AgentUsage())
            return await super().run_model_step(turn)

    runner = Failing(texts)
    sessions = await engine.serve(runner)
    await sessions.start_session("s")
    assert await sessions.send_user_message("s", " \n") is False
    for text in texts[:5]:
        assert await sessions.send_user_message("s", text)
        await engine.settle()
    assert [runner.outputs[f"c{n}"] for n in range(len(texts))] == [kept(each) for each in texts]
    snapshot = await sessions.get_agent_snapshot("s")
    assert [message.text for message in snapshot.messages] == [kept(each) for each in texts[:5]]


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


REFUSED = {
    "bytes": (b"x", "bytes is not JSON"),
    "a set": ({1}, "set is not JSON"),
    "a key that is no text": ({1: "x"}, "the key 1 is not a string"),
    "keys that become one": (dict.fromkeys(map(chr, (0xD800, 0xDFFF))), "two keys become"),
    "1,000 levels": (nested(1000), "nested over 256 levels"),
    "5,000 digits": (10**5000, "cannot be stored"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused_harms_nothing_else(engine: Engine, name: str):
    """The turn fails with an error that says why; the session stays readable and goes on."""
    value, reason = REFUSED[name]
    runner = Echo([value])
    runner.build_user_message = lambda text: FrameworkMessage(MessageRole.USER, text, text)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "go")
    await engine.advance(120)
    snapshot = await sessions.get_agent_snapshot("s")
    assert reason in snapshot.state.last_turn_error
    runner.values = ["fine"]
    assert await sessions.send_user_message("s", "on")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.state.last_turn_error is None
    assert snapshot.messages[-1].framework_item == "fine"


@pytest.mark.local
async def test_a_result_of_30_megabytes_comes_back(engine: Engine):
    """Size alone is no reason to refuse."""
    runner = Echo(["x" * 30_000_000])
    runner.build_user_message = lambda text: FrameworkMessage(MessageRole.USER, text, text)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "go")
    await engine.settle()
    assert runner.outputs["c0"] == runner.values[0]
