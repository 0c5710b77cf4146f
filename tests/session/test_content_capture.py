"""Content is shown only where it may be, and only once it was redacted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dex_agents import AgentTurnContext, ContentCapture, DeferredToolExecution, signals
from dex_agents.telemetry.options import CAPTURE_VARIABLE
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.conftest import OpenEngine
from tests.session.engine import READ, Engine
from tests.session.watching import Watch

SECRET = "secret"


def _answer(turn: AgentTurnContext) -> Any:
    if turn.turn_id == "turn-2":
        return ValueError("secret reason")
    return "secret answer" if turn.tool_calls else [ToolRequest("look", {"q": "secret question"})]


def _look(call: DeferredToolExecution) -> dict[str, str]:
    if call.attempt == 1:
        raise OSError("secret trouble")
    return {"found": "secret result"}


async def _play(engine: Engine, text: str = "secret message") -> None:
    runner = ScriptedRunner(_answer, {"look": _look})
    sessions = await engine.serve(runner, tool_policies={"look": READ})
    await sessions.start_session("s", text)
    await engine.advance(10)
    await sessions.send_user_message("s", "secret second message")
    await engine.advance(60)
    await engine.retire()


def _spans(watch: Watch) -> str:
    return "".join(span.to_json() for span in watch.all_spans())


def _records(watch: Watch) -> str:
    return "".join(record.to_json() for record in watch.records())


async def test_by_default_no_content_goes_anywhere(open_engine: OpenEngine, watch: Watch):
    """Neither messages nor arguments nor results nor the messages of errors."""
    await _play(await open_engine(telemetry=watch.options()))
    assert len(watch.spans()) > 8
    assert watch.records()
    assert watch.lines(signals.STEP_FAILED)
    assert SECRET not in _spans(watch) + _records(watch) + str(watch.lines())


async def test_content_on_spans(open_engine: OpenEngine, watch: Watch):
    """As JSON, in the form of the conventions; nothing of it on log records or lines."""
    await _play(
        await open_engine(telemetry=watch.options(capture_content=ContentCapture.SPAN_ONLY))
    )
    first, second = watch.spans("RunModel")[:2]
    given = json.loads(first.attributes[signals.INPUT_MESSAGES])
    assert given == [{"role": "user", "parts": [{"type": "text", "content": "secret message"}]}]
    (asked,) = json.loads(first.attributes[signals.OUTPUT_MESSAGES])
    (part,) = asked["parts"]
    assert (part["type"], part["name"], part["arguments"]) == (
        "tool_call",
        "look",
        {"q": "secret question"},
    )
    *_, results = json.loads(second.attributes[signals.INPUT_MESSAGES])
    assert results["parts"] == [
        {"type": "tool_call_response", "id": "call-1", "result": {"found": "secret result"}}
    ]
    (answer,) = json.loads(second.attributes[signals.OUTPUT_MESSAGES])
    assert answer["parts"] == [{"type": "text", "content": "secret answer"}]
    failed, returned = watch.spans("CallTool")
    for span in (failed, returned):
        assert json.loads(span.attributes[signals.TOOL_ARGUMENTS]) == {"q": "secret question"}
    assert failed.status.description == "secret trouble"
    assert json.loads(returned.attributes[signals.TOOL_RESULT]) == {"found": "secret result"}
    assert SECRET not in _records(watch) + str(watch.lines())


async def test_content_on_events(open_engine: OpenEngine, watch: Watch):
    """Structured, on the records of model calls and of exceptions; nothing of it on spans."""
    capture = ContentCapture.EVENT_ONLY
    await _play(await open_engine(telemetry=watch.options(capture_content=capture)))
    assert SECRET not in _spans(watch)
    records = [each.log_record for each in watch.records()]
    details = [r for r in records if r.event_name == signals.INFERENCE_DETAILS.name]
    (message,) = details[0].attributes[signals.INPUT_MESSAGES]
    assert message["parts"][0]["content"] == "secret message"
    assert details[0].span_id == watch.spans("RunModel")[0].context.span_id
    (trouble,) = [r for r in records if r.event_name == signals.TOOL_EXCEPTION.name]
    assert trouble.attributes[signals.EXCEPTION_MESSAGE] == "secret trouble"
    assert {line["error"] for line in watch.lines(signals.STEP_FAILED)} == {"secret reason"}


@pytest.mark.parametrize(
    ("value", "capture"),
    [
        ("", ContentCapture.NO_CONTENT),
        ("span_only", ContentCapture.SPAN_ONLY),
        ("EVENT_ONLY", ContentCapture.EVENT_ONLY),
        ("SPAN_AND_EVENT", ContentCapture.SPAN_AND_EVENT),
        ("NO_CONTENT", ContentCapture.NO_CONTENT),
    ],
)
def test_the_environment_says_what_may_be_shown(monkeypatch, value, capture):
    """By the switch that all GenAI instrumentations share."""
    monkeypatch.setenv(CAPTURE_VARIABLE, value)
    assert ContentCapture.from_environment() is capture


def test_what_the_environment_cannot_say_shows_nothing(monkeypatch):
    """And is a warning that names the values."""
    monkeypatch.setenv(CAPTURE_VARIABLE, "true")
    with pytest.warns(UserWarning, match="'TRUE', not one of NO_CONTENT, SPAN_ONLY"):
        assert ContentCapture.from_environment() is ContentCapture.NO_CONTENT


async def test_an_argument_wins_over_the_environment(
    open_engine: OpenEngine, watch: Watch, monkeypatch
):
    """What the application says counts."""
    monkeypatch.setenv(CAPTURE_VARIABLE, "SPAN_AND_EVENT")
    capture = ContentCapture.NO_CONTENT
    await _play(await open_engine(telemetry=watch.options(capture_content=capture)))
    assert SECRET not in _spans(watch) + _records(watch) + str(watch.lines())


async def test_the_environment_alone_is_enough(open_engine: OpenEngine, watch: Watch, monkeypatch):
    """Where the application says nothing."""
    monkeypatch.setenv(CAPTURE_VARIABLE, "SPAN_ONLY")
    await _play(await open_engine(telemetry=watch.options()))
    assert "secret answer" in _spans(watch)


async def test_content_is_redacted_before_it_goes_anywhere(open_engine: OpenEngine, watch: Watch):
    """On spans, records and lines alike; what the hook drops is not there."""

    def redact(key: str, value: Any) -> Any:
        if key == signals.TOOL_RESULT:
            return None
        return json.loads(json.dumps(value).replace(SECRET, "###"))

    options = watch.options(capture_content=ContentCapture.SPAN_AND_EVENT, redact=redact)
    await _play(await open_engine(telemetry=options))
    told = _spans(watch) + _records(watch) + str(watch.lines())
    assert SECRET not in told
    assert "### answer" in told
    assert signals.TOOL_RESULT not in told


async def test_what_cannot_be_redacted_is_dropped(open_engine: OpenEngine, watch: Watch):
    """The session goes on, and a warning says that the hook raised."""

    def redact(key: str, value: Any) -> Any:
        raise LookupError(f"cannot redact {value}")

    options = watch.options(capture_content=ContentCapture.SPAN_AND_EVENT, redact=redact)
    await _play(await open_engine(telemetry=options))
    assert SECRET not in _spans(watch) + _records(watch) + str(watch.lines())
    line = watch.lines(signals.REDACTION_FAILED)[0]
    assert line["error_type"] == "LookupError"


@pytest.mark.local("how long content may be does not depend on the engine")
async def test_long_content_stays_valid_json(open_engine: OpenEngine, watch: Watch):
    """In its place stands how long it was; the store has it, under the Step's ID."""
    engine = await open_engine(telemetry=watch.options(capture_content=ContentCapture.SPAN_ONLY))
    await _play(engine, "x" * 300_000)
    content = json.loads(watch.spans("RunModel")[0].attributes[signals.INPUT_MESSAGES])
    assert content["truncated"] is True
    assert content["bytes"] > 300_000
