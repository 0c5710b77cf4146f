"""One scripted session leaves the same tree of spans on every backend."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dex_agents import AgentTurnContext, DeferredToolExecution, ModelCallDetails, signals
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.conftest import OpenEngine
from tests.session.engine import ASK, IDEMPOTENT, ONCE, READ, texts
from tests.session.watching import Watch

POLICIES = {"look": READ, "put": IDEMPOTENT, "pay": ASK, "once": ONCE}
TREE = Path(__file__).with_name("span_tree.txt")


def _answer(turn: AgentTurnContext) -> Any:
    turn.describe_model_call(ModelCallDetails(provider="acme", request_model="m-1"))
    if turn.turn_id == "turn-2":
        return ValueError("the model is gone")
    if turn.tool_calls:
        turn.describe_model_call(ModelCallDetails(response_model="m-1.5", finish_reasons=["stop"]))
        return "Done."
    return [ToolRequest("look"), ToolRequest("once"), ToolRequest("pay")]


def _look(call: DeferredToolExecution) -> str:
    if call.attempt == 1:
        raise OSError("not yet")
    return "seen"


def _broken(_: DeferredToolExecution) -> str:
    raise RuntimeError("who knows")


async def _play(open_engine: OpenEngine, watch: Watch) -> str:
    """A turn with a retry, a lost write and an approval; then one that fails."""
    engine = await open_engine(telemetry=watch.options())
    tools = {"look": _look, "once": _broken, "pay": lambda _: "paid"}
    sessions = await engine.serve(
        ScriptedRunner(_answer, tools),
        tool_policies=POLICIES,
        interrupt_deadline=timedelta(days=9),
    )
    with watch.tracer.start_as_current_span("POST /messages"):
        await sessions.start_session("s", "Go")
    await engine.settle()
    await watch.stretches(1)
    await engine.advance(10)  # the retry
    await watch.stretches(2)
    await engine.advance(timedelta(days=1))
    with watch.tracer.start_as_current_span("POST /approvals"):
        await sessions.resolve_interrupt("s", "turn-1.call-3", approved=True)
    await engine.settle()
    await watch.stretches(3)
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Done."
    with watch.tracer.start_as_current_span("POST /messages"):
        await sessions.send_user_message("s", "Again")
    await engine.settle()
    for count in (4, 5, 6):  # each retry is a stretch of its own
        await watch.stretches(count)
        await engine.advance(2)
    return engine.name


async def test_the_tree_is_the_same(open_engine: OpenEngine, watch: Watch):
    """But for the backend's name, and the worker's, which Dex does not tell.

    ``span_tree.txt`` was read before it was stored: a change of it is a change
    of what operators see.
    """
    name = await _play(open_engine, watch)
    assert watch.tree() == TREE.read_text()
    assert {span.attributes[signals.BACKEND_NAME] for span in watch.spans()} == {name}


@pytest.mark.local("the tree above is the same on Dex")
async def test_a_turn_is_told_in_stretches(open_engine: OpenEngine, watch: Watch):
    """What each stretch began with, how it ended, and what it links to."""
    await _play(open_engine, watch)
    first, retried, approved, failing, _, failed = await watch.stretches(6)
    turn_1 = {span.context.trace_id for span in (first, retried, approved)}
    assert len(turn_1) == 1
    assert {s.context.trace_id for s in (failing, failed)}.isdisjoint(turn_1)
    outcomes = [s.attributes[signals.TURN_OUTCOME] for s in await watch.stretches(6)]
    assert outcomes == [
        "suspended",
        "suspended",
        "completed",
        "suspended",
        "suspended",
        "failed",
    ]
    assert signals.RESUMED_FROM not in first.attributes
    assert retried.attributes[signals.RESUMED_FROM] == "RunModel-1"
    assert failed.attributes[signals.ERROR_TYPE] == "ValueError"
    statuses = [s.status.status_code.name for s in await watch.stretches(6)]
    assert statuses == ["UNSET"] * 5 + ["ERROR"]

    senders = {s.context.span_id: s for s in watch.all_spans() if s.name.startswith("POST")}
    assert {s.parent.span_id for s in (first, retried, approved)} == {
        span_id for span_id, s in senders.items() if s.context.trace_id in turn_1
    }
    assert [link.context.span_id for link in retried.links] == [first.context.span_id]
    linked = {link.context.span_id for link in approved.links}
    assert first.context.span_id in linked
    assert {senders[each].name for each in linked & {*senders}} == {"POST /approvals"}
    assert approved.context.span_id in {link.context.span_id for link in failing.links}


@pytest.mark.local("the tree above is the same on Dex")
async def test_every_attempt_lies_within_its_stretch(open_engine: OpenEngine, watch: Watch):
    """In time, and as its child; nothing stays open while nobody computes."""
    await _play(open_engine, watch)
    stretches = {s.context.span_id: s for s in await watch.stretches(6)}
    for span in watch.spans():
        parent = stretches[span.parent.span_id]
        assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time
    for span_id, stretch in stretches.items():
        children = [s for s in watch.spans() if s.parent.span_id == span_id]
        assert stretch.start_time == min(s.start_time for s in children)
        assert stretch.end_time == max(s.end_time for s in children)
