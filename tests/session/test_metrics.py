"""The questions of a dashboard, answered from the metrics of real sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex_agents import (
    AgentTurnContext,
    AgentUsage,
    DeferredToolExecution,
    ModelCallDetails,
    ToolExecutionError,
    signals,
)
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.conftest import OpenEngine
from tests.session.engine import ASK, ONCE, READ, Engine, Gate, drop_dead, texts
from tests.session.watching import Watch

POLICIES = {"look": READ, "pay": ASK, "once": ONCE}


@pytest.fixture
async def engine(open_engine: OpenEngine, watch: Watch) -> Engine:
    """An engine that is watched."""
    return await open_engine(telemetry=watch.options())


async def test_tokens_by_model(engine: Engine, watch: Watch):
    """As the adapter describes its calls; the sum is the session's own usage."""

    def script(turn: AgentTurnContext) -> Any:
        model = "small" if turn.turn_id == "turn-1" else "large"
        turn.describe_model_call(ModelCallDetails(provider="acme", request_model=model))
        return "ok"

    runner = ScriptedRunner(script, usage=AgentUsage(input_tokens=100, output_tokens=7))
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "a")
    await engine.settle()
    for text in ("b", "c"):
        await sessions.send_user_message("s", text)
        await engine.settle()
    by_model = watch.total(signals.USED_INPUT_TOKENS, by=signals.REQUEST_MODEL)
    assert by_model == {"small": 100, "large": 200}
    usage = (await sessions.get_agent_snapshot("s")).usage
    assert watch.total(signals.USED_INPUT_TOKENS) == usage.input_tokens == 300
    assert watch.total(signals.USED_OUTPUT_TOKENS) == usage.output_tokens == 21
    assert watch.total(signals.CALL_INPUT_TOKENS, by=signals.PROVIDER_NAME) == {"acme": 3}


async def test_a_runner_that_describes_nothing_is_counted_too(engine: Engine, watch: Watch):
    """Its provider is unknown."""
    sessions = await engine.serve(ScriptedRunner([["ok"]]))
    await sessions.start_session("s", "a")
    await engine.settle()
    by = signals.PROVIDER_NAME
    assert watch.total(signals.INFERENCE_DURATION, by=by) == {"unknown": 1}


async def test_time_and_retries_by_tool(engine: Engine, watch: Watch):
    """Durations of each attempt; attempts of each call, of which more than one is a retry."""

    def look(call: DeferredToolExecution) -> str:
        if call.attempt < 3:
            raise OSError
        return "seen"

    script = [[[ToolRequest("look"), ToolRequest("once")], "ok"]]
    tools = {"look": look, "once": lambda _: ""}
    sessions = await engine.serve(ScriptedRunner(script, tools), tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.advance(60)
    by = signals.TOOL_NAME
    assert watch.total(signals.TOOL_DURATION, by=by) == {"look": 3, "once": 1}
    failed = watch.total(signals.TOOL_DURATION, by=by, **{signals.ERROR_TYPE: "OSError"})
    assert failed == {"look": 2}
    attempts = {
        dict(split)[by]: point.sum - point.count
        for split, point in watch.points(signals.STEP_ATTEMPTS).items()
        if by in dict(split)
    }
    assert attempts == {"look": 2, "once": 0}


async def test_a_duration_is_that_of_its_span(engine: Engine, watch: Watch):
    """With the same error type, and none where there is no error."""

    def look(call: DeferredToolExecution) -> str:
        if call.attempt == 1:
            raise OSError
        return "seen"

    runner = ScriptedRunner([[[ToolRequest("look")], "ok"]], {"look": look})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.advance(60)
    spans = watch.spans("CallTool")
    points = watch.points(signals.TOOL_DURATION)
    assert len(points) == len(spans) == 2
    for span in spans:
        error = span.attributes.get(signals.ERROR_TYPE)
        (point,) = [p for key, p in points.items() if dict(key).get(signals.ERROR_TYPE) == error]
        assert point.sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-6)


async def test_approvals_waiting_and_how_long_they_took(engine: Engine, watch: Watch):
    """By tool and by result: approved, rejected, expired."""
    script = [[[ToolRequest("pay"), ToolRequest("pay"), ToolRequest("pay")], "ok"]]
    sessions = await engine.serve(
        ScriptedRunner(script, {"pay": lambda _: ""}),
        tool_policies=POLICIES,
        interrupt_deadline=timedelta(hours=5),
    )
    await sessions.start_session("s", "a")
    await engine.settle()
    assert watch.total(signals.APPROVALS_PENDING, by=signals.TOOL_NAME) == {"pay": 3}
    await engine.advance(timedelta(hours=1))
    await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    assert watch.total(signals.APPROVALS_PENDING) == 2
    await engine.advance(timedelta(hours=1))
    await sessions.resolve_interrupt("s", "turn-1.call-2", approved=False)
    await engine.advance(timedelta(hours=4))
    assert watch.total(signals.APPROVALS_PENDING) == 0
    waited = {
        dict(split)[signals.APPROVAL_RESULT]: point.sum
        for split, point in watch.points(signals.APPROVAL_WAIT).items()
    }
    hours = {result: round(seconds / 3600) for result, seconds in waited.items()}
    assert hours == {"approved": 1, "rejected": 2, "expired": 5}


async def test_tool_calls_by_how_they_ended(engine: Engine, watch: Watch):
    """Unknown outcomes stand out; each call is counted once."""

    def once(_: DeferredToolExecution) -> str:
        raise RuntimeError

    def look(_: DeferredToolExecution) -> str:
        raise ToolExecutionError("no such thing")

    script = [[[ToolRequest("look"), ToolRequest("once"), ToolRequest("pay")], "ok"]]
    sessions = await engine.serve(
        ScriptedRunner(script, {"look": look, "once": once}), tool_policies=POLICIES
    )
    await sessions.start_session("s", "a")
    await engine.settle()
    await sessions.resolve_interrupt("s", "turn-1.call-3", approved=False)
    await engine.settle()
    by_status = watch.total(signals.TOOL_OUTCOMES, by=signals.TOOL_STATUS)
    assert by_status == {"failed": 1, "outcome_unknown": 1, "rejected": 1}
    unknown = {signals.TOOL_STATUS: "outcome_unknown"}
    assert watch.total(signals.TOOL_OUTCOMES, by=signals.TOOL_EFFECT, **unknown) == {
        "non_idempotent_write": 1
    }
    (tool,) = watch.spans("CallTool")
    assert tool.attributes[signals.ERROR_TYPE] == "dex_agents.runner.ToolExecutionError"
    assert tool.attributes[signals.STEP_OUTCOME] == "completed"


async def test_turns_by_wall_time_and_outcome(engine: Engine, watch: Watch):
    """From the user's message to the end, all waiting included."""

    def script(turn: AgentTurnContext) -> Any:
        if turn.turn_id == "turn-2":
            return ValueError("no")
        return "ok" if turn.tool_calls else [ToolRequest("pay")]

    sessions = await engine.serve(
        ScriptedRunner(script, {"pay": lambda _: ""}), tool_policies=POLICIES
    )
    await sessions.start_session("s", "a")
    await engine.advance(timedelta(days=2))
    await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    await sessions.send_user_message("s", "b")
    await engine.advance(60)
    seconds = {
        dict(split)[signals.TURN_OUTCOME]: point.sum
        for split, point in watch.points(signals.TURN_WALL_DURATION).items()
    }
    assert round(seconds["completed"] / 86400) == 2
    assert 3 <= seconds["failed"] < 120
    failure = {signals.ERROR_TYPE: "ValueError"}
    assert watch.total(signals.TURN_WALL_DURATION, **failure) == 1


async def test_sessions_at_work_come_back_to_none(engine: Engine, watch: Watch):
    """A session that waits is not at work; each stretch counts its own calls."""
    script = [[[ToolRequest("look"), ToolRequest("look")], "ok"]]
    runner = ScriptedRunner(script, {"look": lambda _: ""})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    for name in ("s", "t"):
        await sessions.start_session(name, "a")
    await engine.settle()
    await watch.stretches(2)
    assert watch.total(signals.ACTIVE_SESSIONS) == 0
    assert watch.total(signals.INVOKE_AGENT_DURATION) == 2
    (calls,) = watch.points(signals.TOOL_CALLS).values()
    (inferences,) = watch.points(signals.INFERENCE_CALLS).values()
    assert (calls.sum, inferences.sum) == (4, 4)


@pytest.mark.local("the engine of Dex looks after its own workers")
async def test_sessions_taken_over_from_the_dead(engine: Engine, watch: Watch):
    """Once for each; what the dead worker was doing is a failed attempt, then another."""
    gate = Gate()

    async def held(call: DeferredToolExecution) -> str:
        if call.attempt == 1:
            await gate.pass_through()
        return ""

    runner = ScriptedRunner([[[ToolRequest("look")], "ok"]], {"look": held})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.settle()
    await gate.reached.wait()
    await drop_dead(engine.backend, engine.workers[0])
    await engine.serve(runner, tool_policies=POLICIES)
    await engine.advance(60)
    assert texts(await sessions.get_agent_snapshot("s"))[-1] == "ok"
    assert watch.total(signals.LEASE_TAKEOVERS) == 1
    assert len(watch.lines(signals.SESSION_TAKEN_OVER)) == 1
    assert [s.attributes[signals.STEP_ATTEMPT] for s in watch.spans("CallTool")] == [1, 2]


@pytest.mark.local("Dex does not tell when an attempt could have begun")
async def test_the_delay_before_an_attempt(engine: Engine, watch: Watch):
    """A session that waits for a slot waits visibly."""
    runner = ScriptedRunner([[[ToolRequest("look")] * 3, "ok"]], {"look": lambda _: ""})
    sessions = await engine.serve(runner, slots=1, tool_policies=POLICIES)
    for name in ("s", "t", "u"):
        await sessions.start_session(name, "a")
    await engine.settle()
    delays = watch.total(signals.SCHEDULE_DELAY, by=signals.STEP_KIND)
    assert delays["CallTool"] == 9
    assert delays["RunModel"] == 6
    assert watch.total(signals.QUEUE_DEPTH) == 0


@pytest.mark.local("the store of Dex is the server's")
async def test_commits_of_sqlite(engine: Engine, watch: Watch):
    """How long they took, and how much each made durable."""
    sessions = await engine.serve(ScriptedRunner([["ok"]]))
    await sessions.start_session("s", "a")
    await engine.settle()
    commits = watch.total(signals.COMMIT_DURATION)
    assert commits == watch.total(signals.COMMIT_BATCH)
    assert (commits > 0) == (engine.name == "sqlite")


async def test_identifiers_are_on_no_metric(engine: Engine, watch: Watch):
    """They would make a time series of each session."""
    script = [[[ToolRequest("look"), ToolRequest("pay")], "ok"]]
    runner = ScriptedRunner(script, {"look": lambda _: "", "pay": lambda _: ""})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s-unlikely", "a")
    await engine.settle()
    await sessions.resolve_interrupt("s-unlikely", "turn-1.call-2", approved=True)
    await engine.settle()
    for metric in signals.METRICS:
        for split in watch.points(metric):
            assert {key for key, _ in split} <= {*metric.attributes}
            values = {str(value) for _, value in split}
            assert not any("s-unlikely" in v or "call-" in v or "turn-" in v for v in values)
