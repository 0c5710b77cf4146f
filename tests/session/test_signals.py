"""What is emitted is what the reference says, on every backend."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex_agents import AgentTurnContext, DeferredToolExecution, ModelCallDetails, signals
from dex_agents.records import AgentUsage
from dex_agents.session.observing import SessionFacts
from dex_agents.telemetry import ContentCapture
from dex_agents.telemetry.reference import reference
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.conftest import OpenEngine
from tests.session.engine import ASK, ONCE, READ, Engine, Gate, texts
from tests.session.watching import Watch

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHAPES = {span.name.partition(" {")[0]: span for span in signals.SPANS}


def shape_of(name: str) -> signals.SpanName:
    """Return the kind of span that a name belongs to; a Step's name is its own."""
    return SHAPES.get(name.partition(" ")[0], SHAPES["{Step}"])


def test_the_page_is_made_from_the_names():
    """``python -m dex_agents.telemetry.reference > docs/signals.md``."""
    assert (DOCS / "signals.md").read_text() == reference()


def test_every_name_has_a_meaning():
    """No constant is without its row, and no row names what there is not."""
    used = {key for span in signals.SPANS for key in span.attributes}
    used |= {key for metric in signals.METRICS for key in metric.attributes}
    used |= {key for event in signals.RECORD_EVENTS for key in event.keys}
    assert used == {*signals.ATTRIBUTES}
    constants = {
        value
        for name, value in vars(signals).items()
        if name.isupper() and isinstance(value, str) and re.match(r"[a-z_]+\.", value)
    }
    assert constants == {*signals.ATTRIBUTES}


def _answer(turn: AgentTurnContext) -> Any:
    turn.describe_model_call(
        ModelCallDetails(
            provider="acme",
            request_model="m-1",
            response_model="m-1.5",
            response_id="r-1",
            finish_reasons=["stop"],
        )
    )
    if turn.turn_id == "turn-2":
        return ValueError("no")
    return "Done." if turn.tool_calls else [ToolRequest(t) for t in ("look", "once", "pay")]


def _look(call: DeferredToolExecution) -> str:
    if call.attempt == 1:
        raise OSError("not yet")
    return "seen"


def _broken(_: DeferredToolExecution) -> str:
    raise RuntimeError


async def _play(engine: Engine, watch: Watch) -> None:
    usage = AgentUsage(10, 10, 1, 1, 1)
    runner = ScriptedRunner(
        _answer, {"look": _look, "once": _broken, "pay": lambda _: "paid"}, usage=usage
    )
    policies = {"look": READ, "pay": ASK, "once": ONCE}
    sessions = await engine.serve(
        runner, tool_policies=policies, interrupt_deadline=timedelta(days=1)
    )
    await sessions.start_session("s", "Go")
    await engine.advance(10)
    if engine.name == "dex":  # whose workers are told nothing, so a stretch ends later
        await watch.stretches(1)
    await sessions.resolve_interrupt("s", "turn-1.call-3", approved=True)
    await engine.settle()
    await sessions.send_user_message("s", "Again")
    await engine.advance(60)


async def test_everything_that_is_emitted_is_in_the_reference(
    open_engine: OpenEngine, watch: Watch
):
    """Names of spans, attributes, metrics, lines and keys; and nothing of the reference is idle."""
    options = watch.options(capture_content=ContentCapture.SPAN_AND_EVENT)
    engine = await open_engine(telemetry=options)
    await _play(engine, watch)
    await engine.retire()
    seen: dict[str, set[str]] = {}
    for span in watch.all_spans():
        shape = shape_of(span.name)
        assert span.kind.name == shape.kind
        seen.setdefault(shape.name, set()).update(span.attributes)
    untold = {signals.WORKER_ID} if engine.name == "dex" else set()
    for shape in signals.SPANS:
        assert seen[shape.name] <= {*shape.attributes}
        if shape.name != "{Step}":  # no other Step fails here
            assert {*shape.attributes} - untold == seen[shape.name]

    sqlite = {signals.COMMIT_DURATION.name, signals.COMMIT_BATCH.name}
    rare = {signals.LEASE_TAKEOVERS.name, signals.QUEUE_DEPTH.name}  # see test_metrics
    expected = {metric.name for metric in signals.METRICS} - rare
    expected -= set() if engine.name == "sqlite" else sqlite
    expected -= {signals.SCHEDULE_DELAY.name} if engine.name == "dex" else set()
    assert watch.metric_names() - rare == expected

    by_name = {event.name: event for event in signals.LOG_EVENTS}
    for line in watch.lines():
        event = by_name[line["event"]]
        assert line["level"] == event.level
        assert {*line} - {"event", "level"} <= {*event.keys}
    records = {event.name: event for event in signals.RECORD_EVENTS}
    for record in watch.records():
        event = records[record.log_record.event_name]
        assert record.log_record.severity_number.name == event.level.upper()
        assert {*record.log_record.attributes} <= {*event.keys, *signals.ATTRIBUTES}
    told = {record.log_record.event_name for record in watch.records()}
    assert told == {*records} - {signals.STEP_EXCEPTION.name}


async def test_facts_that_fail_harm_nothing(open_engine: OpenEngine, watch: Watch, monkeypatch):
    """To be watched must not make a session fail; a warning names the Step and the error."""

    def fail(*_: Any) -> Any:
        raise LookupError("no facts")

    monkeypatch.setattr(SessionFacts, "__call__", fail)
    engine = await open_engine(telemetry=watch.options())
    sessions = await engine.serve(ScriptedRunner([["Done."]]))
    await sessions.start_session("s", "Go")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Done."
    line = watch.lines(signals.FACTS_FAILED)[0]
    assert (line["step_id"], line["error_type"]) == ("StartAgentSession-1", "LookupError")
    assert watch.spans("RunModel")


async def test_a_cancelled_attempt_is_told(open_engine: OpenEngine, watch: Watch):
    """Its line says so, and its span is no error."""
    engine = await open_engine(telemetry=watch.options())
    gate = Gate()

    async def held(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    runner = ScriptedRunner([[[ToolRequest("look")]]], {"look": held})
    sessions = await engine.serve(runner, tool_policies={"look": READ})
    await sessions.start_session("s", "Go")
    await engine.settle()
    await gate.reached.wait()
    await sessions.stop_session("s")
    await engine.settle()
    (line,) = watch.lines(signals.STEP_CANCELED)
    assert line["level"] == "info"
    (span,) = watch.spans("CallTool")
    assert span.status.is_unset
