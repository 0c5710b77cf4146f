"""Spans and log context of a session, seen through the OpenTelemetry SDK and structlog."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from structlog.contextvars import bind_contextvars, get_contextvars
from structlog.testing import CapturingLogger

from dex_agents import AgentTurnContext, DeferredToolExecution, signals
from dex_agents.telemetry import TelemetryOptions
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.conftest import OpenEngine
from tests.session.engine import ASK, IDEMPOTENT, ONCE, READ, Engine, Gate, texts
from tests.session.watching import Watch

POLICIES = {"look": READ, "put": IDEMPOTENT, "pay": ASK, "once": ONCE}


def _outcomes(spans: list[ReadableSpan]) -> list[Any]:
    return [span.attributes[signals.STEP_OUTCOME] for span in spans]


@pytest.fixture
def traces() -> Watch:
    """Where a traced engine's spans go."""
    return Watch()


@pytest.fixture
async def traced(open_engine: OpenEngine, traces: Watch) -> Engine:
    """An engine whose backend was given a tracer provider."""
    return await open_engine(telemetry=TelemetryOptions(tracer_provider=traces.provider))


@pytest.fixture
async def logged(open_engine: OpenEngine) -> Engine:
    """An engine whose backend was given a logger."""
    return await open_engine(telemetry=TelemetryOptions(logger=CapturingLogger()))


# Spans


async def test_every_attempt_is_one_span(traced: Engine, traces: Watch):
    """Waits and executes alike, each with its Step, its phase and its number."""
    runner = ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": lambda _: ""})
    sessions = await traced.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await traced.settle()
    found = [
        (
            span.attributes[signals.STEP_ID],
            span.attributes[signals.STEP_PHASE],
            span.attributes[signals.STEP_ATTEMPT],
            span.attributes[signals.STEP_OUTCOME],
        )
        for span in traces.spans()
    ]
    assert sorted(found) == [
        ("AwaitUserMessage-1", "wait_for", 1, "suspended"),
        ("CallTool-1", "execute", 1, "completed"),
        ("ResumeTurn-1", "execute", 1, "completed"),
        ("ResumeTurn-1", "wait_for", 1, "suspended"),
        ("RunModel-1", "execute", 1, "completed"),
        ("RunModel-2", "execute", 1, "completed"),
        ("StartAgentSession-1", "execute", 1, "completed"),
    ]
    assert {span.attributes[signals.SESSION_ID] for span in traces.spans()} == {"s"}
    assert {span.attributes[signals.BACKEND_NAME] for span in traces.spans()} == {traced.name}


async def test_model_and_tool_spans_follow_the_genai_conventions(traced: Engine, traces: Watch):
    """Name, kind and attributes; the other Steps are named as they are."""
    runner = ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": lambda _: ""})
    sessions = await traced.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await traced.settle()
    model, tool = traces.spans("RunModel")[0], traces.spans("CallTool")[0]
    assert (model.name, model.kind) == ("chat", SpanKind.CLIENT)
    assert model.attributes["gen_ai.operation.name"] == "chat"
    assert model.attributes["gen_ai.conversation.id"] == "s"
    assert (tool.name, tool.kind) == ("execute_tool look", SpanKind.INTERNAL)
    assert tool.attributes["gen_ai.tool.name"] == "look"
    assert tool.attributes["gen_ai.tool.call.id"] == "call-1"
    assert tool.attributes[signals.TOOL_CALL_ID] == "call-1"
    assert tool.attributes[signals.TURN_ID] == model.attributes[signals.TURN_ID] == "turn-1"
    assert traces.spans("StartAgentSession")[0].name == "StartAgentSession"


async def test_no_content_is_in_a_span(traced: Engine, traces: Watch):
    """Neither messages nor arguments nor results nor error messages."""

    def look(_: DeferredToolExecution) -> str:
        raise OSError("secret reason")

    script = [[[ToolRequest("look", {"q": "secret question"})], "secret answer"]]
    sessions = await traced.serve(ScriptedRunner(script, {"look": look}), tool_policies=POLICIES)
    await sessions.start_session("s", "secret message")
    await traced.advance(60)
    for span in traces.spans():
        assert "secret" not in span.to_json()


async def test_a_turn_is_one_trace(traced: Engine, traces: Watch):
    """Over model calls, parallel tools, approvals and days of waiting."""
    runner = ScriptedRunner(
        [[[ToolRequest("look"), ToolRequest("pay")], "Done."]],
        {"look": lambda _: "", "pay": lambda _: ""},
    )
    sessions = await traced.serve(
        runner, tool_policies=POLICIES, interrupt_deadline=timedelta(days=9)
    )
    await sessions.start_session("s", "Go")
    await traced.advance(timedelta(days=3))
    await sessions.resolve_interrupt("s", "turn-1.call-2", approved=True)
    await traced.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "Done."
    assert len(traces.spans()) == 10
    assert len({span.context.trace_id for span in traces.spans()}) == 1


async def test_each_turn_is_a_trace_of_its_own(traced: Engine, traces: Watch):
    """Where its message's sender traces nothing."""
    sessions = await traced.serve(ScriptedRunner([["1."], ["2."]]))
    await sessions.start_session("s", "a")
    await traced.settle()
    await sessions.send_user_message("s", "b")
    await traced.settle()
    first, second = (span.context.trace_id for span in traces.spans("RunModel"))
    assert first != second


async def test_the_senders_span_is_the_parent_of_the_turn(traced: Engine, traces: Watch):
    """Of the first turn, and of a later one."""
    sessions = await traced.serve(ScriptedRunner([["1."], ["2."]]))
    with traces.tracer.start_as_current_span("start") as start:
        await sessions.start_session("s", "a")
    await traced.settle()
    with traces.tracer.start_as_current_span("send") as send:
        await sessions.send_user_message("s", "b")
    await traced.settle()
    for stretch, sender in zip(await traces.stretches(2), (start, send), strict=True):
        assert stretch.context.trace_id == sender.get_span_context().trace_id
        assert stretch.parent.span_id == sender.get_span_context().span_id


async def test_the_turns_carrier_is_stored_with_its_state(traced: Engine, traces: Watch):
    """So another worker, days later, goes on with the same trace."""
    sessions = await traced.serve(ScriptedRunner([["1."]]))
    with traces.tracer.start_as_current_span("start") as start:
        await sessions.start_session("s", "a")
    await traced.settle()
    state = (await sessions.get_agent_snapshot("s")).state
    context = start.get_span_context()
    (version, trace_id, span_id, _) = state.trace_context["traceparent"].split("-")
    assert (version, int(trace_id, 16), int(span_id, 16)) == (
        "00",
        context.trace_id,
        context.span_id,
    )


async def test_a_turn_without_a_sender_stores_the_carrier_of_its_first_stretch(
    traced: Engine, traces: Watch
):
    """Which is the root of its trace."""
    sessions = await traced.serve(ScriptedRunner([["1."]]))
    await sessions.start_session("s", "a")
    await traced.settle()
    (stretch,) = await traces.stretches(1)
    assert stretch.parent is None
    assert {span.parent.span_id for span in traces.spans()} == {stretch.context.span_id}
    state = (await sessions.get_agent_snapshot("s")).state
    assert f"{stretch.context.span_id:016x}" in state.trace_context["traceparent"]


async def test_an_attempt_links_to_the_one_before(traced: Engine, traces: Watch):
    """Siblings in one trace: the first failed and is retried, the last completed."""

    def script(turn: AgentTurnContext) -> Any:
        return ValueError("no") if turn.attempt < 3 else "Done."

    sessions = await traced.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await traced.advance(60)
    one, two, three = traces.spans("RunModel")
    assert one.links == ()
    assert [link.context.span_id for link in two.links] == [one.context.span_id]
    assert [link.context.span_id for link in three.links] == [two.context.span_id]
    assert len({span.context.trace_id for span in (one, two, three)}) == 1
    assert _outcomes([one, two, three]) == ["retrying", "retrying", "completed"]
    assert (one.status.status_code, three.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.UNSET,
    )
    assert one.attributes[signals.ERROR_TYPE] == "ValueError"


async def test_the_last_attempt_that_fails_is_not_called_a_retry(traced: Engine, traces: Watch):
    """Its outcome is ``failed``; a cancelled one's is ``canceled``."""
    gate = Gate()

    async def held(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    def broken(_: DeferredToolExecution) -> None:
        raise OSError

    runner = ScriptedRunner(
        [[[ToolRequest("once"), ToolRequest("look")], "-"]], {"once": broken, "look": held}
    )
    sessions = await traced.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await traced.settle()
    await sessions.stop_session("s")
    await traced.settle()
    assert _outcomes(traces.spans("CallSingleAttemptTool")) == ["failed"]
    assert _outcomes(traces.spans("CallTool")) == ["canceled"]


async def test_a_runners_own_spans_are_children_of_its_attempt(traced: Engine, traces: Watch):
    """The attempt's span is current while a runner works."""

    def look(_: DeferredToolExecution) -> str:
        with traces.tracer.start_as_current_span("inside"):
            return ""

    runner = ScriptedRunner([[[ToolRequest("look")], "-"]], {"look": look})
    sessions = await traced.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await traced.settle()
    (inside,) = [s for s in traces.exporter.get_finished_spans() if s.name == "inside"]
    assert inside.parent.span_id == traces.spans("CallTool")[0].context.span_id


async def test_the_callers_span_stays_the_callers(traced: Engine, traces: Watch):
    """No attempt's span becomes current where a session was started."""
    sessions = await traced.serve(ScriptedRunner([["1."]]))
    with traces.tracer.start_as_current_span("mine") as mine:
        await sessions.start_session("s", "a")
        await traced.settle()
        assert trace.get_current_span() is mine
    assert not trace.get_current_span().get_span_context().is_valid


async def test_without_an_sdk_everything_works_and_no_carrier_is_stored(engine: Engine):
    """The API alone is enough."""
    runner = ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": lambda _: ""})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot)[-1] == "Done."
    assert snapshot.state.trace_context == {}


# Log context


async def test_a_tool_logs_with_the_identifiers_of_its_attempt(logged: Engine):
    """Session, Step execution, attempt, turn and tool call."""
    seen: list[dict[str, Any]] = []

    def look(call: DeferredToolExecution) -> str:
        bound = get_contextvars()
        assert ("worker" in bound) == (logged.name != "dex")
        seen.append({name: bound[name] for name in bound if name != "worker"})
        if call.attempt == 1:
            raise OSError
        return ""

    runner = ScriptedRunner([[[ToolRequest("look")], "-"]], {"look": look})
    sessions = await logged.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await logged.advance(60)
    common = {
        "session_id": "s",
        "step_id": "CallTool-1",
        "turn_id": "turn-1",
        "tool_call_id": "call-1",
    }
    assert seen == [{**common, "attempt": 1}, {**common, "attempt": 2}]


async def test_what_a_runner_binds_stays_in_its_attempt(logged: Engine):
    """Neither the next attempt, nor a parallel tool, nor the next model call sees it."""
    seen: list[set[str]] = []

    def look(call: DeferredToolExecution) -> str:
        seen.append({name for name in get_contextvars() if name.startswith("mine")})
        bind_contextvars(**{f"mine_{call.tool_call.tool_call_id.replace('-', '_')}": 1})
        if call.attempt == 1:
            raise OSError
        return ""

    def script(turn: AgentTurnContext) -> Any:
        seen.append({name for name in get_contextvars() if name.startswith("mine")})
        bind_contextvars(mine_model=1)
        return "Done." if turn.tool_calls else [ToolRequest("look")] * 2

    sessions = await logged.serve(ScriptedRunner(script, {"look": look}), tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await logged.advance(60)
    assert seen == [set()] * 6


async def test_the_callers_context_is_neither_read_nor_changed(logged: Engine):
    """What an application has bound is its own."""
    seen: list[dict[str, Any]] = []

    def script(_: AgentTurnContext) -> str:
        seen.append(get_contextvars())
        return "Done."

    with structlog.contextvars.bound_contextvars(request="r-1"):
        sessions = await logged.serve(ScriptedRunner(script))
        await sessions.start_session("s", "a")
        await logged.settle()
        assert get_contextvars() == {"request": "r-1"}
    assert "request" not in seen[0]
    assert seen[0]["step_id"] == "RunModel-1"


async def test_a_logger_of_the_applications_hears_of_every_attempt(open_engine: OpenEngine):
    """Completed at INFO, retries and failures as warnings, with names of one module."""
    captured = CapturingLogger()
    engine = await open_engine(telemetry=TelemetryOptions(logger=captured))

    def script(turn: AgentTurnContext) -> Any:
        return ValueError("no")

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.advance(60)
    calls = [(call.method_name, call.args[0]) for call in captured.calls]
    assert calls.count(("warning", signals.STEP_RETRYING.name)) == 2
    assert calls.count(("warning", signals.STEP_FAILED.name)) == 1
    assert ("info", signals.STEP_COMPLETED.name) in calls
    failed = next(call for call in captured.calls if call.args[0] == signals.STEP_FAILED.name)
    assert failed.kwargs["error_type"] == "ValueError"
    assert failed.kwargs["stacktrace"].endswith("ValueError")
    assert "error" not in failed.kwargs
    turn = [call.args[0] for call in captured.calls if "turn" in call.args[0]]
    assert turn.count(signals.TURN_FAILED.name) == 1


async def test_without_a_logger_nothing_is_printed(
    engine: Engine, capsys: pytest.CaptureFixture[str]
):
    """A library is silent until the application asks."""
    sessions = await engine.serve(ScriptedRunner([[ValueError("no")]]))
    await sessions.start_session("s", "a")
    await engine.advance(60)
    assert capsys.readouterr() == ("", "")
