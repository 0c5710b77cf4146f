"""Group F: sessions that grow, and what they may hold."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from contextlib import closing
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest

from dex_agents import (
    AgentTurnContext,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolExecutionError,
    TurnCompleted,
)
from dex_agents.testing import ToolRequest
from tests.cases.agent import Agent, ended, outcome, pending, recorded, replace_worker, serve
from tests.session.engine import Engine, events_of, payloads, texts

# C33


def stored_bytes(engine: Engine) -> int:
    """Return how much the engine holds of everything."""
    if engine.name == "sqlite":
        with closing(apsw.Connection(str(engine.backend.path))) as connection:
            return connection.pragma("page_count") * connection.pragma("page_size")
    flow = engine.backend._store._flows["s"]
    rows = [flow.header, flow.executions, flow.history, flow.attributes, flow.streams]
    return sum(len(msgspec.json.encode(each)) for each in rows)


@pytest.mark.local("what Dex stores is its server's, of which the emulator says nothing")
@pytest.mark.parametrize("is_one_turn", [True, False], ids=["in one turn", "in many turns"])
async def test_c33_a_session_grows_with_what_is_said(engine: Engine, is_one_turn: bool):
    """Each model call brings one result of 5 KB: a hundred cost about twice what fifty cost."""
    result = "x" * 5000

    async def look(call: DeferredToolExecution) -> str:
        return result

    sizes = {}
    script = [[ToolRequest("look")]] * (100 if is_one_turn else 1)

    class Measured(Agent):
        async def answering(self, turn: AgentTurnContext, place: int) -> None:
            sizes[len(self.calls)] = stored_bytes(engine)

    agent = Measured([*script, "Done."], look=look)
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    if not is_one_turn:
        for turn in range(1, 101):
            await ended(engine, sessions, turns=turn)
            await sessions.send_user_message("s", "Go on")
    await ended(engine, sessions, turns=1 if is_one_turn else 101)

    assert sizes[100] - sizes[50] <= 1.2 * (sizes[50] - sizes[0])
    assert sizes[100] <= 2.2 * sizes[50] <= 2.2 * 2.2 * sizes[25]


# C35

DIRTY = "NUL \x00, halves \ud83d and \ude00, whole \U0001f600, \U0010ffff, \u2028, \x85"
CLEAN = "NUL \x00, halves \ufffd and \ufffd, whole \U0001f600, \U0010ffff, \u2028, \x85"


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


DIRTY_JSON = {DIRTY: [DIRTY, math.nan, math.inf, 2**70, (1, 2)], "deep": nested(200)}
CLEAN_JSON = {CLEAN: [CLEAN, None, None, 2**70, [1, 2]], "deep": nested(200)}


class Dirty(Agent):
    """Puts such text and values wherever a runner may put any."""

    def __init__(self) -> None:
        asked = [ToolRequest(each, DIRTY_JSON) for each in ("look", "put", "pay", "ask")]
        super().__init__([asked, "Done."], look=self._output, put=self._error, pay=self._fault)

    async def _output(self, call: DeferredToolExecution) -> Any:
        call.events.write_event(DIRTY, DIRTY_JSON)
        return DIRTY_JSON

    async def _error(self, call: DeferredToolExecution) -> Any:
        raise ToolExecutionError(DIRTY)

    async def _fault(self, call: DeferredToolExecution) -> Any:
        raise ValueError(DIRTY)

    async def answering(self, turn: AgentTurnContext, place: int) -> None:
        self.seen = list(turn.tool_calls.values())
        for half in ("\ud83d", "\ude00"):  # an emoji over two chunks
            turn.events.write_text_delta(half)
        turn.events.write_reasoning_delta(DIRTY)
        if turn.messages[-1].text == "fail":
            raise ValueError(DIRTY)

    async def run_model_step(self, turn: AgentTurnContext) -> Any:
        outcome = await super().run_model_step(turn)
        if not isinstance(outcome, TurnCompleted):
            return outcome
        said = FrameworkMessage(MessageRole.ASSISTANT, DIRTY_JSON, DIRTY)
        return TurnCompleted([*outcome.new_messages, said], outcome.usage)


async def test_c35_unusual_text_and_values_follow_one_rule(engine: Engine):
    """Wherever they come from they come back by the documented rules, and nothing gets stuck."""
    agent = Dirty()
    sessions = await serve(engine, agent)
    await sessions.start_session("s", DIRTY)
    (interrupt,) = await pending(sessions, 1)
    assert await sessions.resolve_interrupt("s", interrupt, approved=False, rejection_message=DIRTY)
    await ended(engine, sessions)

    assert [each.arguments for each in agent.seen] == [CLEAN_JSON] * 4
    output, error, fault, refusal = agent.seen
    assert (output.output, error.error, refusal.rejection_message) == (CLEAN_JSON, CLEAN, CLEAN)
    assert fault.status == "outcome_unknown"
    assert CLEAN in fault.error
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.messages[0].text == CLEAN
    assert (snapshot.messages[-1].text, snapshot.messages[-1].framework_item) == (CLEAN, CLEAN_JSON)
    events = await events_of(sessions)
    assert [each["text"] for each in payloads(events, "text_delta")] == ["\ufffd"] * 4
    assert payloads(events, "reasoning_delta")[0]["text"] == CLEAN
    assert payloads(events, CLEAN) == [CLEAN_JSON]

    await sessions.send_user_message("s", "fail")
    await ended(engine, sessions, turns=2)
    failed = await sessions.get_agent_snapshot("s")
    assert CLEAN in failed.state.last_turn_error
    await sessions.send_user_message("s", DIRTY)
    (interrupt,) = await pending(sessions, 1)
    await sessions.stop_session("s", DIRTY)
    summary = await sessions.describe_session("s")
    assert summary.failure == (None if engine.name == "dex" else CLEAN)  # Dex does not tell it
    assert (await sessions.get_agent_snapshot("s")).state.turn_number == 3
    assert await sessions.read_history("s")


REFUSED = {"bytes": b"\x00\xff", "too deep": nested(300), "no text as a key": {1: "a"}}


async def test_c35_what_has_no_rule_is_refused_where_it_comes_from(engine: Engine):
    """A tool's result fails its Step, an argument its model call; the session can be read on."""

    class Odd(Agent):
        async def answering(self, turn: AgentTurnContext, place: int) -> None:
            value = REFUSED.get(turn.messages[-1].text, "fine")
            self.script = [[ToolRequest("look", value)], "Done."]

    async def look(call: DeferredToolExecution) -> Any:
        return REFUSED[call.flow_id]

    agent = Odd([], look=look)
    sessions = await serve(engine, agent)
    for name in REFUSED:
        await sessions.start_session(name, name)
    await ended(engine, sessions, *REFUSED)
    for name in REFUSED:
        state = (await sessions.get_agent_snapshot(name)).state
        assert "cannot be stored: " in state.last_turn_error
        await sessions.send_user_message(name, "Go on")
    await ended(engine, sessions, *REFUSED, turns=2)
    for name in REFUSED:
        assert agent.runs(name) == ["look"] * 3
        (told,) = await outcome(sessions, name)
        assert told.startswith("The tool call failed: ")
        assert "tool output" in told
        assert texts(await sessions.get_agent_snapshot(name))[-1] == "Done."


# C36
#
# A result is JSON by contract: what declares types are an adapter's tools, which convert them.


@dataclasses.dataclass
class Point:
    x: int = 1


class Colour(enum.Enum):
    RED = "red"


class Record(msgspec.Struct):
    x: int = 1


class Other(msgspec.Struct):
    x: int = 1


class Plain:
    """A class that nothing can encode."""


class Pair(NamedTuple):
    a: int
    b: int


NO_JSON = {
    "dataclass": Point(),
    "enum": Colour.RED,
    "struct": Record(),
    "struct of the same fields": Other(),
    "decimal": decimal.Decimal("1.10"),
    "datetime": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 2),
    "timedelta": dt.timedelta(seconds=1),
    "uuid": uuid.UUID(int=1),
    "set": {1},
    "bytearray": bytearray(b"a"),
    "object": Plain(),
    "class": Plain,
    "coroutine function": ended,
    "complex": 1j,
}
JSON = [None, True, 0, -0.0, 1.0, 1, 2**64, 1e300, "", "1", [], {}, {"a": [1, {"b": None}]}]


async def test_c36_what_is_no_json_fails_its_own_step(engine: Engine):
    """Alone or inside, the error names type and place; nothing becomes null or a plain dict."""
    values = list(NO_JSON.values())

    async def look(call: DeferredToolExecution) -> Any:
        number = call.tool_call.arguments
        return {"ok": 1, "items": [0, values[number]]} if number % 2 else values[number]

    requests = [ToolRequest("look", n) for n in range(len(values))]
    agent = Agent([requests, "Done."], look=look)
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await ended(engine, sessions)
    for number, told in enumerate(await outcome(sessions)):
        assert told.startswith("The tool call failed: ")
        assert ("tool output.items[1]" if number % 2 else "tool output") in told
        assert f"{type(values[number]).__name__} is not JSON" in told
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Done."


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_c36_json_comes_back_as_it_was_from_another_worker(engine: Engine):
    """Of the same type as well; a tuple, named or not, is a list by the documented rule."""
    values = [*JSON, (1, 2), Pair(1, 2)]

    async def look(call: DeferredToolExecution) -> Any:
        return values[call.tool_call.arguments]

    class Remembering(Agent):
        async def answering(self, turn: AgentTurnContext, place: int) -> None:
            self.seen = [
                each.output for each in turn.tool_calls.values() if each.tool_name != "ask"
            ]

    requests = [ToolRequest("look", n) for n in range(len(values))]
    agent = Remembering([[*requests, ToolRequest("ask")], "Done."], look=look)
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await recorded(sessions, len(values))
    (interrupt,) = await pending(sessions, 1)
    await replace_worker(engine, agent)
    assert await sessions.resolve_interrupt("s", interrupt, approved=True)
    await ended(engine, sessions)
    expected = [*JSON, [1, 2], [1, 2]]
    assert [(type(each), each) for each in agent.seen] == [(type(e), e) for e in expected]
    assert math.copysign(1, agent.seen[3]) == -1
