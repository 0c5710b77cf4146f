"""Tool calls: in parallel, retried as their effect allows, each with exactly one result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dex_agents import (
    AgentSessionClient,
    AgentToolCall,
    AgentTurnContext,
    DeferredToolExecution,
    ToolCallStatus,
    ToolExecutionError,
    ToolPolicy,
)
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_until
from tests.session.engine import (
    IDEMPOTENT,
    ONCE,
    READ,
    Engine,
    Gate,
    call_of,
    step_history,
    texts,
)

POLICIES = {"read": READ, "put": IDEMPOTENT, "pay": ONCE}


class Agent(ScriptedRunner):
    """Asks for some tools, keeps the records that come back, and answers."""

    def __init__(self, requests: list[ToolRequest], **tools: Callable[..., Any]) -> None:
        self.requests = requests
        self.records: dict[str, AgentToolCall] = {}
        super().__init__(self._respond, tools)

    def _respond(self, turn: AgentTurnContext) -> Any:
        if turn.turn_id != "turn-1":
            return "Next."
        if not turn.tool_calls:
            return self.requests
        self.records = dict(turn.tool_calls)
        return "Done."


class Flaky:
    """A tool that fails so many times, and remembers every call."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[DeferredToolExecution] = []

    def __call__(self, call: DeferredToolExecution) -> str:
        self.calls.append(call)
        if len(self.calls) <= self.failures:
            raise ConnectionError(f"failure {len(self.calls)}")
        return "ok"


async def _run(engine: Engine, agent: Agent, seconds: float = 600, **options: Any) -> Any:
    sessions = await engine.serve(agent, tool_policies=POLICIES, **options)
    await sessions.start_session("s", "Go")
    await engine.advance(seconds)
    return sessions


async def _is_settled(engine: Engine, sessions: AgentSessionClient) -> bool:
    """Whether the turn is over and no result of a tool call is left behind."""
    snapshot = await sessions.get_agent_snapshot("s")
    return texts(snapshot)[-1] == "Done." and engine.queued("s", "ToolCallResults") == []


# Parallel


async def test_tool_calls_of_one_response_run_at_once(engine: Engine):
    """Each waits for the other to begin, so one after the other would never end."""
    first, second = asyncio.Event(), asyncio.Event()

    async def left(_: DeferredToolExecution) -> str:
        first.set()
        await second.wait()
        return "left"

    async def right(_: DeferredToolExecution) -> str:
        second.set()
        await first.wait()
        return "right"

    agent = Agent([ToolRequest("left"), ToolRequest("right")], left=left, right=right)
    sessions = await engine.serve(agent, tool_policies={"left": READ, "right": ONCE})
    await sessions.start_session("s", "Go")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[2:] == ["left", "right", "Done."]


async def test_results_reach_the_model_in_its_own_order(engine: Engine):
    """However the calls finish, and whatever their IDs sort like."""
    gates = {name: Gate() for name in "zam"}

    async def look(call: DeferredToolExecution) -> str:
        await gates[call.tool_call.tool_call_id].pass_through()
        return call.tool_call.tool_call_id

    agent = Agent([ToolRequest("read", tool_call_id=each) for each in "zam"], read=look)
    sessions = await engine.serve(agent, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.settle()
    for each in "maz":
        gates[each].open.set()
        await engine.settle()
    assert list(agent.records) == ["z", "a", "m"]
    assert [record.deferral_order for record in agent.records.values()] == [1, 2, 3]
    assert [record.output for record in agent.records.values()] == ["z", "a", "m"]


async def test_the_snapshot_shows_the_calls_in_model_order_with_their_status(engine: Engine):
    """While one has its result and the other has not."""
    gate = Gate()

    async def slow(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    agent = Agent(
        [ToolRequest("slow", tool_call_id="z"), ToolRequest("read", tool_call_id="a")],
        slow=slow,
        read=lambda _: {"n": 1},
    )
    sessions = await engine.serve(agent, tool_policies={**POLICIES, "slow": READ})
    await sessions.start_session("s", "Go")
    await engine.settle()
    calls = (await sessions.get_agent_snapshot("s")).tool_calls
    assert [(c.tool_call_id, c.status, c.output) for c in calls] == [
        ("z", ToolCallStatus.PENDING, None),
        ("a", ToolCallStatus.SUCCEEDED, {"n": 1}),
    ]
    assert [c.effect for c in calls] == ["read", "read"]


async def test_order_counts_on_over_the_responses_of_a_turn(engine: Engine):
    """The second response's first call comes behind all of the first's."""
    orders: list[int] = []

    def look(call: DeferredToolExecution) -> str:
        orders.append(call.tool_call.deferral_order)
        return ""

    script = [[[ToolRequest("read")] * 2, [ToolRequest("read")], "Done."]]
    sessions = await engine.serve(ScriptedRunner(script, {"read": look}), tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.settle()
    assert sorted(orders) == [1, 2, 3]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_hundred_calls_finish_with_few_slots(engine: Engine, slots: int):
    """What finds no slot waits its turn; nothing is lost or run twice."""
    flaky = Flaky(0)
    agent = Agent([ToolRequest("read", n) for n in range(100)], read=flaky)
    sessions = await _run(engine, agent, slots=slots)
    assert sorted(call.tool_call.arguments for call in flaky.calls) == list(range(100))
    assert await _is_settled(engine, sessions)


async def test_the_effect_decides_the_step(engine: Engine):
    """Retried effects are CallTool, the others CallSingleAttemptTool."""
    agent = Agent(
        [ToolRequest("read"), ToolRequest("put"), ToolRequest("pay")],
        read=Flaky(0),
        put=Flaky(0),
        pay=Flaky(0),
    )
    sessions = await _run(engine, agent)
    steps = await step_history(sessions)
    assert steps[:2] == ["StartAgentSession-1", "RunModel-1"]
    assert set(steps[2:5]) == {"CallTool-1", "CallTool-2", "CallSingleAttemptTool-1"}
    assert steps[5:] == ["ResumeTurn-1", "RunModel-2"]


# Failures


@pytest.mark.parametrize("name", POLICIES)
async def test_a_failure_that_the_model_should_see_is_not_retried(engine: Engine, name: str):
    """ToolExecutionError: one attempt, ``failed``, with its message."""
    calls = 0

    def tool(_: DeferredToolExecution) -> None:
        nonlocal calls
        calls += 1
        raise ToolExecutionError("no such order \ud800")

    agent = Agent([ToolRequest(name)], **{name: tool})
    sessions = await _run(engine, agent)
    record = agent.records["call-1"]
    assert (record.status, record.error) == (ToolCallStatus.FAILED, "no such order \ufffd")
    assert calls == 1
    assert await _is_settled(engine, sessions)


@pytest.mark.parametrize(
    ("name", "attempts", "status"),
    [
        ("read", 3, ToolCallStatus.FAILED),
        ("put", 3, ToolCallStatus.OUTCOME_UNKNOWN),
        ("pay", 1, ToolCallStatus.OUTCOME_UNKNOWN),
    ],
)
async def test_another_exception_uses_up_the_attempts_of_the_effect(
    engine: Engine, name: str, attempts: int, status: ToolCallStatus
):
    """A read has failed then; a write may have taken effect."""
    flaky = Flaky(99)
    agent = Agent([ToolRequest(name)], **{name: flaky})
    sessions = await _run(engine, agent)
    record = agent.records["call-1"]
    assert [call.attempt for call in flaky.calls] == list(range(1, attempts + 1))
    assert (record.status, record.error) == (status, f"failure {attempts}")
    assert await _is_settled(engine, sessions)


@pytest.mark.parametrize("name", ["read", "put"])
async def test_every_attempt_of_a_call_has_one_key(engine: Engine, name: str):
    """So an idempotent tool can tell a repetition from a new call."""
    flaky = Flaky(2)
    agent = Agent([ToolRequest(name)], **{name: flaky})
    await _run(engine, agent)
    assert {call.idempotency_key for call in flaky.calls} == {"s/turn-1/call-1"}
    assert agent.records["call-1"].status is ToolCallStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("read", "RecordToolFailure-1"),
        ("put", "RecordToolFailure-1"),
        ("pay", "RecordToolOutcomeUnknown-1"),
    ],
)
async def test_a_used_up_call_takes_its_failure_route(engine: Engine, name: str, step: str):
    """The route records the result; ResumeTurn waits for it."""
    agent = Agent([ToolRequest(name)], **{name: Flaky(99)})
    sessions = await _run(engine, agent)
    assert (await step_history(sessions))[2:] == [step, "ResumeTurn-1", "RunModel-2"]


async def test_attempts_are_one_and_two_seconds_apart(engine: Engine):
    """The second begins a second after the first failed, the third two seconds later."""
    at: list[float] = []

    def tool(_: DeferredToolExecution) -> None:
        at.append(engine.clock.now())
        raise OSError("no")

    agent = Agent([ToolRequest("read")], read=tool)
    await _run(engine, agent)
    assert [at[1] - at[0], at[2] - at[1]] == [1.0, 2.0]


async def test_a_retry_waits_for_its_time(engine: Engine):
    """Just before a second has passed there is one attempt."""
    flaky = Flaky(1)
    sessions = await _run(engine, Agent([ToolRequest("read")], read=flaky), seconds=0.999)
    assert len(flaky.calls) == 1
    assert call_of(await sessions.get_agent_snapshot("s"), "call-1").status == "pending"
    await engine.advance(0.001)
    assert len(flaky.calls) == 2


async def test_one_failing_call_leaves_the_others_their_results(engine: Engine):
    """Each call has its own fate, and all reach the model together."""
    agent = Agent(
        [ToolRequest("read"), ToolRequest("put"), ToolRequest("pay"), ToolRequest("read")],
        read=lambda call: call.tool_call.tool_call_id,
        put=Flaky(99),
        pay=Flaky(99),
    )
    sessions = await _run(engine, agent)
    assert [record.status for record in agent.records.values()] == [
        "succeeded",
        "outcome_unknown",
        "outcome_unknown",
        "succeeded",
    ]
    assert await _is_settled(engine, sessions)


async def test_a_failed_call_keeps_its_result_when_the_turn_goes_on(engine: Engine):
    """The model reads of it as of any other result, and no turn error is set."""
    agent = Agent([ToolRequest("read")], read=Flaky(99))
    sessions = await _run(engine, agent)
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot)[2] == "The tool call failed: failure 3"
    assert snapshot.state.last_turn_error is None


async def test_an_unknown_tool_is_a_result_like_another(engine: Engine):
    """A model that invents a name is told so, once."""
    sessions = await _run(engine, Agent([ToolRequest("invented")]), default_tool_effect="read")
    assert "no tool 'invented'" in texts(await sessions.get_agent_snapshot("s"))[2]


async def test_an_error_without_a_message_is_told_by_its_name(engine: Engine):
    """The record never lacks a reason."""

    def tool(_: DeferredToolExecution) -> None:
        raise KeyError

    agent = Agent([ToolRequest("pay")], pay=tool)
    await _run(engine, agent)
    assert agent.records["call-1"].error == "KeyError"


async def test_a_tool_that_cancels_itself_has_failed(engine: Engine):
    """A CancelledError from within is an error like another, and hangs nothing."""

    async def tool(_: DeferredToolExecution) -> None:
        raise asyncio.CancelledError("by itself")

    agent = Agent([ToolRequest("pay")], pay=tool)
    await _run(engine, agent)
    assert agent.records["call-1"].status is ToolCallStatus.OUTCOME_UNKNOWN


# Exactly one result


async def test_every_call_publishes_one_result_when_it_is_final(engine: Engine):
    """While one call is missing, the Channel holds one message for each of the others."""
    gate = Gate()

    async def slow(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    def refused(_: DeferredToolExecution) -> None:
        raise ToolExecutionError("no")

    agent = Agent(
        [ToolRequest("slow"), ToolRequest("read"), ToolRequest("pay"), ToolRequest("refused")],
        slow=slow,
        read=Flaky(99),
        pay=Flaky(99),
        refused=refused,
    )
    sessions = await engine.serve(agent, tool_policies={**POLICIES, "slow": READ, "refused": READ})
    await sessions.start_session("s", "Go")
    await engine.advance(10)
    results = sorted(engine.queued("s", "ToolCallResults"), key=lambda each: each["tool_call_id"])
    assert results == [
        {"tool_call_id": "call-2", "status": "failed"},
        {"tool_call_id": "call-3", "status": "outcome_unknown"},
        {"tool_call_id": "call-4", "status": "failed"},
    ]
    gate.open.set()
    await engine.settle()
    assert await _is_settled(engine, sessions)
    assert (await step_history(sessions)).count("ResumeTurn-1") == 1


@pytest.mark.local("signs of life come in real time on Dex")
async def test_the_model_waits_for_every_result(engine: Engine):
    """Two of three are not enough."""
    gate, models = Gate(), []

    async def slow(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    def script(turn: AgentTurnContext) -> Any:
        models.append(len(turn.tool_calls))
        names = ("read", "slow", "read")
        return "Done." if turn.tool_calls else [ToolRequest(name) for name in names]

    runner = ScriptedRunner(script, {"slow": slow, "read": lambda _: ""})
    sessions = await engine.serve(runner, tool_policies={"slow": READ, "read": READ})
    await sessions.start_session("s", "Go")
    await engine.advance(3600)
    assert models == [0]
    gate.open.set()
    await engine.settle()
    assert models == [0, 3]


@pytest.mark.local("signs of life come in real time on Dex")
async def test_a_retry_comes_in_time_while_another_call_runs(engine: Engine):
    """The back-off of one call does not depend on how long its neighbour takes."""
    gate, flaky = Gate(), Flaky(1)

    async def slow(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    agent = Agent([ToolRequest("slow"), ToolRequest("read")], slow=slow, read=flaky)
    sessions = await engine.serve(agent, tool_policies={**POLICIES, "slow": READ})
    await sessions.start_session("s", "Go")
    await engine.advance(5)
    assert len(flaky.calls) == 2
    assert call_of(await sessions.get_agent_snapshot("s"), "call-2").status == "succeeded"
    gate.open.set()
    await engine.settle()
    assert await _is_settled(engine, sessions)


# Time


@pytest.mark.local("signs of life come in real time on Dex")
async def test_a_model_call_of_ten_minutes_lives(engine: Engine):
    """The session itself gives signs of life while a runner works."""
    gate, attempts = Gate(), []

    async def script(turn: AgentTurnContext) -> str:
        attempts.append(turn.attempt)
        await gate.pass_through()
        return "At last."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Think")
    await engine.advance(600)
    gate.open.set()
    await engine.settle()
    assert attempts == [1]
    assert texts(await sessions.get_agent_snapshot("s")) == ["Think", "At last."]


@pytest.mark.local("signs of life come in real time on Dex")
async def test_a_model_call_has_fifteen_minutes(engine: Engine):
    """Then the attempt is cancelled and the next begins, until half an hour is used up."""
    began: list[float] = []
    cancelled = 0

    async def script(turn: AgentTurnContext) -> str:
        nonlocal cancelled
        if turn.turn_id != "turn-1":
            return "Next."
        began.append(engine.clock.now())
        try:
            await asyncio.Event().wait()
        finally:
            cancelled += 1
        return "Never."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Think")
    await engine.advance(899)
    assert (len(began), cancelled) == (1, 0)
    await engine.advance(1 + 1)
    assert (len(began), cancelled) == (2, 1)
    assert began[1] - began[0] == 901
    await engine.advance(3600)
    snapshot = await sessions.get_agent_snapshot("s")
    assert (len(began), cancelled) == (2, 2)  # a third would begin past the half hour
    assert "longer than its timeout of 900 s" in snapshot.state.last_turn_error
    await sessions.send_user_message("s", "Well?")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["Think", "Well?", "Next."]


@pytest.mark.local("signs of life come in real time on Dex")
async def test_a_tool_has_two_hours(engine: Engine):
    """The row's own timeout ends a single attempt: its outcome is unknown."""
    cancelled = asyncio.Event()

    async def endless(_: DeferredToolExecution) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    agent = Agent([ToolRequest("pay")], pay=endless)
    await _run(engine, agent, seconds=2 * 3600 - 1)
    assert not cancelled.is_set()
    await engine.advance(1)
    assert cancelled.is_set()
    assert agent.records["call-1"].status is ToolCallStatus.OUTCOME_UNKNOWN
    assert "timeout of 7200 s" in agent.records["call-1"].error


async def test_a_late_result_of_a_timed_out_attempt_is_dropped(engine: Engine):
    """A tool that swallows its cancellation cannot answer for the next attempt."""

    async def stubborn(call: DeferredToolExecution) -> str:
        if call.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "late"
        return f"attempt {call.attempt}"

    agent = Agent([ToolRequest("read")], read=stubborn)
    sessions = await _run(engine, agent, seconds=2 * 3600 + 5)

    async def look() -> bool:
        await engine.advance(1)
        return await _is_settled(engine, sessions)

    await wait_until("the end of the turn", look, timeout=30)
    assert agent.records["call-1"].output == "attempt 2"


@pytest.mark.local("it looks into the store")
async def test_a_tool_sees_only_its_own_record(engine: Engine):
    """Its Step loads one instance, so parallel calls share nothing."""
    seen: list[Any] = []
    gate = Gate()

    async def look(call: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    agent = Agent([ToolRequest("read", tool_call_id="a"), ToolRequest("pay")], read=look, pay=look)
    sessions = await engine.serve(agent, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.settle()
    state = engine.backend._store.load("s")
    for execution in state.executions.values():
        if execution.step != "ResumeTurn":
            seen.append((execution.step, execution.options.loads))
            seen.append(execution.options.failure_options.loads)
    assert seen == [
        ("CallTool", ("AgentToolCalls/a",)),
        ("AgentToolCalls/a",),
        ("CallSingleAttemptTool", ("AgentToolCalls/call-2",)),
        ("AgentToolCalls/call-2",),
    ]


async def test_approval_and_effect_are_apart(engine: Engine):
    """A read may need approval, and a write none."""
    runner = ScriptedRunner([[[ToolRequest("read"), ToolRequest("pay")], "-"]], {"pay": Flaky(0)})
    policies = {"read": ToolPolicy(READ.effect, requires_approval=True), "pay": ONCE}
    sessions = await engine.serve(runner, tool_policies=policies)
    await sessions.start_session("s", "Go")
    await engine.settle()
    calls = (await sessions.get_agent_snapshot("s")).tool_calls
    assert [(c.status, c.requires_approval) for c in calls] == [
        ("pending_approval", True),
        ("succeeded", False),
    ]
