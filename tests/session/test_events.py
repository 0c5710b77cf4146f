"""The AgentEvents Stream: what a watcher of a session reads, and what it may rely on."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from dex_agents import (
    AgentEventWriter,
    AgentTurnContext,
    AgentUsage,
    DeferredToolExecution,
)
from dex_agents.errors import EncodingError
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_until
from tests.session.engine import (
    ASK,
    ONCE,
    READ,
    Engine,
    Gate,
    events_of,
    followed,
    payloads,
)

POLICIES = {"look": READ, "pay": ASK, "put": ONCE}


async def _deltas(sessions: Any) -> list[str]:
    return [each["text"] for each in payloads(await events_of(sessions), "text_delta")]


async def test_a_plain_turn_writes_its_events_in_order(engine: Engine):
    """Started, the text as it comes, usage, completed."""
    usage = AgentUsage(input_tokens=3, output_tokens=2)
    sessions = await engine.serve(ScriptedRunner([["Two words"]], usage=usage, stream=True))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    events = await events_of(sessions)
    counted = {
        "input_tokens": 3,
        "output_tokens": 2,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "model_calls": 1,
    }
    assert [(event.type, event.payload) for event in events] == [
        ("turn_started", {"sequence": 1}),
        ("text_delta", {"text": "Two "}),
        ("text_delta", {"text": "words"}),
        ("usage_recorded", {"recorded": counted, "session": counted}),
        ("turn_completed", {"message_count": 2}),
    ]


async def test_usage_events_carry_the_call_and_the_sum(engine: Engine):
    """``recorded`` is this call's, ``session`` the total with it."""
    sessions = await engine.serve(ScriptedRunner([["1."], ["2."]], usage=AgentUsage(5)))
    await sessions.start_session("s", "a")
    await sessions.send_user_message("s", "b")
    await engine.settle()
    usage = payloads(await events_of(sessions), "usage_recorded")
    assert [(u["recorded"]["input_tokens"], u["session"]["input_tokens"]) for u in usage] == [
        (5, 5),
        (5, 10),
    ]
    assert [u["session"]["model_calls"] for u in usage] == [1, 2]


async def test_tool_calls_are_deferred_started_and_finished(engine: Engine):
    """Each event once a call, with the contract's keys."""
    script = [[[ToolRequest("look")], "Done."]]
    sessions = await engine.serve(
        ScriptedRunner(script, {"look": lambda _: ""}), tool_policies=POLICIES
    )
    await sessions.start_session("s", "Go")
    await engine.settle()
    events = await events_of(sessions)
    named = {"tool_call_id": "call-1", "tool_name": "look"}
    assert payloads(events, "tool_call_deferred") == [
        {**named, "effect": "read", "requires_approval": False}
    ]
    assert payloads(events, "tool_call_started") == [named]
    assert payloads(events, "tool_call_finished") == [{**named, "status": "succeeded"}]
    types = [event.type for event in events]
    order = ("tool_call_deferred", "tool_call_started", "tool_call_finished", "turn_completed")
    assert sorted(order, key=types.index) == list(order)


async def test_an_approval_is_raised_and_resolved(engine: Engine):
    """With its deadline, its answer, and a started tool only behind the answer."""
    sessions = await engine.serve(
        ScriptedRunner([[[ToolRequest("pay")], "Done."]], {"pay": lambda _: ""}),
        tool_policies=POLICIES,
        interrupt_deadline=timedelta(hours=1),
    )
    await sessions.start_session("s", "Go")
    await engine.settle()
    (interrupt,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
    (raised,) = payloads(await events_of(sessions), "interrupt_raised")
    assert raised == {
        "interrupt_id": interrupt.interrupt_id,
        "tool_call_id": "call-1",
        "tool_name": "pay",
        "deadline": interrupt.deadline.isoformat().replace("+00:00", "Z"),
    }
    assert payloads(await events_of(sessions), "tool_call_started") == []
    await sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
    await engine.settle()
    assert payloads(await events_of(sessions), "interrupt_resolved") == [
        {
            "interrupt_id": interrupt.interrupt_id,
            "approved": True,
            "rejection_message": None,
        }
    ]
    assert len(payloads(await events_of(sessions), "tool_call_started")) == 1


async def test_an_interrupt_without_a_deadline_says_so(engine: Engine):
    """``deadline`` is null."""
    sessions = await engine.serve(ScriptedRunner([[[ToolRequest("pay")]]]), tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.settle()
    (raised,) = payloads(await events_of(sessions), "interrupt_raised")
    assert raised["deadline"] is None


@pytest.mark.parametrize("message", ["No.", None])
async def test_a_rejected_call_is_finished_without_having_started(
    engine: Engine, message: str | None
):
    """Once, with the status of a rejection."""
    sessions = await engine.serve(
        ScriptedRunner([[[ToolRequest("pay")], "Done."]]), tool_policies=POLICIES
    )
    await sessions.start_session("s", "Go")
    await engine.settle()
    await sessions.resolve_interrupt(
        "s", "turn-1.call-1", approved=False, rejection_message=message
    )
    await engine.settle()
    events = await events_of(sessions)
    (resolved,) = payloads(events, "interrupt_resolved")
    assert (resolved["approved"], resolved["rejection_message"]) == (False, message)
    assert payloads(events, "tool_call_started") == []
    (finished,) = payloads(events, "tool_call_finished")
    assert finished["status"] == "rejected"


async def test_an_expired_approval_is_resolved_as_not_approved(engine: Engine):
    """Its message says that nobody answered."""
    sessions = await engine.serve(
        ScriptedRunner([[[ToolRequest("pay")], "Done."]]),
        tool_policies=POLICIES,
        interrupt_deadline=timedelta(hours=1),
    )
    await sessions.start_session("s", "Go")
    await engine.advance(3600)
    (resolved,) = payloads(await events_of(sessions), "interrupt_resolved")
    assert resolved["approved"] is False
    assert "Nobody answered" in resolved["rejection_message"]


async def test_a_used_up_tool_is_finished_once(engine: Engine):
    """By its failure route, with the status that was recorded."""

    def fail(_: DeferredToolExecution) -> None:
        raise OSError("no")

    runner = ScriptedRunner(
        [[[ToolRequest("look"), ToolRequest("put")], "-"]], {"look": fail, "put": fail}
    )
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.advance(60)
    finished = payloads(await events_of(sessions), "tool_call_finished")
    assert {f["tool_name"]: f["status"] for f in finished} == {
        "look": "failed",
        "put": "outcome_unknown",
    }
    assert len(finished) == 2


async def test_a_failed_turn_says_why(engine: Engine):
    """``turn_failed`` with the error, and no ``turn_completed``."""
    sessions = await engine.serve(ScriptedRunner([[ValueError("model is down")]]))
    await sessions.start_session("s", "Hi")
    await engine.advance(60)
    events = await events_of(sessions)
    assert payloads(events, "turn_failed") == [{"error": "model is down"}]
    assert payloads(events, "turn_completed") == []


async def test_every_event_names_turn_step_and_attempt(engine: Engine):
    """The Step execution is the same for all attempts; the parallel tools' differ."""

    def script(turn: AgentTurnContext) -> Any:
        turn.events.write_text_delta("x")
        if turn.turn_id == "turn-2" and turn.attempt == 1 and not turn.tool_calls:
            return ValueError("no")
        return "Done." if turn.tool_calls else [ToolRequest("look")] * 2

    runner = ScriptedRunner(script, {"look": lambda _: ""})
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.settle()
    await sessions.send_user_message("s", "b")
    await engine.advance(60)
    events = await events_of(sessions)
    deltas = [(e.turn_id, e.step_execution_id, e.attempt) for e in events if e.type == "text_delta"]
    assert deltas == [
        ("turn-1", "RunModel-1", 1),
        ("turn-1", "RunModel-2", 1),
        ("turn-2", "RunModel-3", 1),
        ("turn-2", "RunModel-3", 2),
        ("turn-2", "RunModel-4", 1),
    ]
    started = [e.step_execution_id for e in events if e.type == "tool_call_started"]
    assert sorted(started) == ["CallTool-1", "CallTool-2", "CallTool-3", "CallTool-4"]
    assert {event.turn_id for event in events} == {"turn-1", "turn-2"}


async def test_reasoning_and_an_adapters_own_events_pass_through(engine: Engine):
    """A payload may hold any JSON."""

    def script(turn: AgentTurnContext) -> str:
        turn.events.write_reasoning_delta("hm \ud800")
        turn.events.write_event("my.event", {"a": [1, None], "b": float("nan")})
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.settle()
    events = await events_of(sessions)
    assert payloads(events, "reasoning_delta") == [{"text": "hm \ufffd"}]
    assert payloads(events, "my.event") == [{"a": [1, None], "b": None}]


async def test_a_tool_can_stream_too(engine: Engine):
    """Under its own Step execution."""

    def look(call: DeferredToolExecution) -> str:
        call.events.write_text_delta("halfway")
        return "seen"

    sessions = await engine.serve(
        ScriptedRunner([[[ToolRequest("look")], "Done."]], {"look": look}), tool_policies=POLICIES
    )
    await sessions.start_session("s", "a")
    await engine.settle()
    (delta,) = [event for event in await events_of(sessions) if event.type == "text_delta"]
    assert (delta.step_execution_id, delta.payload) == ("CallTool-1", {"text": "halfway"})


async def test_a_payload_that_is_no_json_is_the_writers_error(engine: Engine):
    """It is raised where it was written."""
    caught: list[Exception] = []

    def script(turn: AgentTurnContext) -> str:
        try:
            turn.events.write_event("mine", {"x": object()})
        except EncodingError as error:
            caught.append(error)
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.settle()
    assert "event payload.x" in str(caught[0])


# Threads and ends


async def test_another_thread_may_write(engine: Engine):
    """In its own order."""

    async def script(turn: AgentTurnContext) -> str:
        def write() -> None:
            for number in range(20):
                turn.events.write_text_delta(str(number))

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.settle()
    assert await _deltas(sessions) == [str(number) for number in range(20)]


async def test_a_write_after_the_call_is_dropped_and_not_raised(engine: Engine):
    """From the loop and from a thread, of a model call and of a tool."""
    kept: list[AgentEventWriter] = []

    def look(call: DeferredToolExecution) -> str:
        kept.append(call.events)
        return ""

    def script(turn: AgentTurnContext) -> Any:
        kept.append(turn.events)
        turn.events.write_text_delta("in time")
        return "Done." if turn.tool_calls else [ToolRequest("look")]

    sessions = await engine.serve(ScriptedRunner(script, {"look": look}), tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.settle()
    for writer in kept:
        writer.write_text_delta("late")
        await asyncio.to_thread(writer.write_text_delta, "later")
    await engine.settle()
    assert await _deltas(sessions) == ["in time", "in time"]


async def test_a_failed_call_ends_its_writer_too(engine: Engine):
    """An attempt that raised cannot write into the next one's time."""
    kept: list[AgentEventWriter] = []

    def script(turn: AgentTurnContext) -> Any:
        kept.append(turn.events)
        return ValueError("no") if turn.attempt == 1 else "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "a")
    await engine.settle()
    kept[0].write_text_delta("late")
    await engine.advance(60)
    assert await _deltas(sessions) == []


# Reading


async def test_a_higher_attempt_supersedes_what_a_lower_one_streamed(engine: Engine):
    """The first event of the second attempt says so, the following ones do not."""

    def script(turn: AgentTurnContext) -> Any:
        for word in ("a", "b"):
            turn.events.write_text_delta(f"{word}{turn.attempt}")
        return ValueError("no") if turn.attempt == 1 else "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Hi")
    await engine.advance(60)
    seen = [each for each in await followed(sessions) if each.event.type == "text_delta"]
    assert [(e.event.payload["text"], e.supersedes) for e in seen] == [
        ("a1", False),
        ("b1", False),
        ("a2", True),
        ("b2", False),
    ]


async def test_different_steps_never_supersede_each_other(engine: Engine):
    """Model calls and tool calls of a turn each keep their text."""
    script = [[[ToolRequest("look")] * 3, "Done."]]
    sessions = await engine.serve(
        ScriptedRunner(script, {"look": lambda _: ""}, stream=True), tool_policies=POLICIES
    )
    await sessions.start_session("s", "Hi")
    await engine.settle()
    assert not any(each.supersedes for each in await followed(sessions))


async def test_reading_goes_on_behind_any_position(engine: Engine):
    """Every event once, none twice."""
    sessions = await engine.serve(ScriptedRunner([["a b c d e"]], stream=True))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    everything = await followed(sessions)
    assert len(everything) == 8
    for index, each in enumerate(everything):
        assert await followed(sessions, position=each.position) == everything[index + 1 :]


async def test_a_reader_that_comes_back_hears_that_a_later_attempt_supersedes(engine: Engine):
    """What it was shown of the first attempt lies before its position."""

    def script(turn: AgentTurnContext) -> Any:
        turn.events.write_text_delta(f"attempt {turn.attempt}")
        turn.events.write_text_delta("more")
        return ValueError("no") if turn.attempt == 1 else "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    shown = await followed(sessions)
    await engine.advance(60)
    seen = await followed(sessions, position=shown[-1].position)
    assert [e.supersedes for e in seen if e.event.type == "text_delta"] == [True, False]


async def test_a_reader_that_comes_back_keeps_what_the_current_attempt_streamed(engine: Engine):
    """Nothing is superseded when it has already seen a part of the second attempt."""

    def script(turn: AgentTurnContext) -> Any:
        turn.events.write_text_delta(f"attempt {turn.attempt}")
        turn.events.write_text_delta("more")
        return ValueError("no") if turn.attempt == 1 else "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Hi")
    await engine.advance(60)
    everything = await followed(sessions)
    (place,) = [n for n, each in enumerate(everything) if each.supersedes]
    seen = await followed(sessions, position=everything[place].position)
    assert not any(each.supersedes for each in seen)


async def test_reading_without_following_ends_with_what_is_there(engine: Engine):
    """Also while a turn runs."""
    gate = Gate()

    async def script(turn: AgentTurnContext) -> str:
        turn.events.write_text_delta("so far")
        await gate.pass_through()
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Hi")
    await engine.settle()
    assert [event.type for event in await events_of(sessions)] == ["turn_started", "text_delta"]


async def test_a_follower_sees_events_as_they_come_until_the_session_is_stopped(engine: Engine):
    """It ends by itself then."""
    sessions = await engine.serve(ScriptedRunner([["One."], ["Two."]], stream=True))
    await sessions.start_session("s")
    seen: list[str] = []

    async def follow() -> None:
        async for each in sessions.follow_events("s"):
            seen.append(each.event.type)  # noqa: PERF401 - one by one, as they come

    follower = asyncio.create_task(follow())
    await sessions.send_user_message("s", "a")
    await wait_until("the first turn", lambda: seen.count("turn_completed") == 1)
    await sessions.send_user_message("s", "b")
    await wait_until("the second turn", lambda: seen.count("turn_completed") == 2)
    assert not follower.done()
    await sessions.stop_session("s")
    await asyncio.wait_for(follower, 5)
    assert seen.count("text_delta") == 2


async def test_a_stopped_sessions_events_can_still_be_read(engine: Engine):
    """Following them ends at once."""
    sessions = await engine.serve(ScriptedRunner([["One."]]))
    await sessions.start_session("s", "a")
    await engine.settle()
    await sessions.stop_session("s")
    types = [each.event.type async for each in sessions.follow_events("s")]
    assert types == ["turn_started", "usage_recorded", "turn_completed"]


async def test_sessions_streams_are_apart(engine: Engine):
    """A reader sees its own session only."""
    sessions = await engine.serve(ScriptedRunner(lambda turn: turn.flow_id, stream=True))
    for name in ("a", "b"):
        await sessions.start_session(name, "Hi")
    await engine.settle()
    for name in ("a", "b"):
        assert payloads(await events_of(sessions, name), "text_delta") == [{"text": name}]


async def test_a_full_stream_loses_its_oldest_events(engine: Engine):
    """What is kept fits the capacity, ends with the newest, and has no gap."""

    def script(turn: AgentTurnContext) -> str:
        for number in range(200):
            turn.events.write_text_delta(f"{number:0100d}")
        return "Done."

    sessions = await engine.serve(ScriptedRunner(script), event_stream_capacity_bytes=8_000)
    await sessions.start_session("s", "a")
    await engine.settle()
    numbers = [int(text) for text in await _deltas(sessions)]
    assert 10 < len(numbers) < 80
    assert numbers == list(range(200 - len(numbers), 200))
    assert (await events_of(sessions))[-1].type == "turn_completed"


async def test_a_reader_whose_position_was_trimmed_goes_on_with_what_is_kept(engine: Engine):
    """It misses events but gets no error, and none twice."""
    sessions = await engine.serve(
        ScriptedRunner(lambda turn: f"{turn.turn_id} " + "x" * 300, stream=True),
        event_stream_capacity_bytes=2_000,
    )
    await sessions.start_session("s", "a")
    await engine.settle()
    position = (await followed(sessions))[0].position
    for _ in range(10):
        await sessions.send_user_message("s", "b")
    await engine.settle()
    seen = await followed(sessions, position=position)
    assert seen[-1].event.turn_id == "turn-11"
    assert len({each.position for each in seen}) == len(seen)


async def test_an_event_above_the_capacity_is_kept_while_it_is_the_newest(engine: Engine):
    """So a reader that follows still sees it, on every store alike."""

    def script(turn: AgentTurnContext) -> str:
        turn.events.write_text_delta("x" * 5_000)
        return "Done."

    gate = Gate()

    async def held(turn: AgentTurnContext) -> str:
        answer = script(turn)
        await gate.pass_through()
        return answer

    sessions = await engine.serve(ScriptedRunner(held), event_stream_capacity_bytes=1_000)
    await sessions.start_session("s", "a")
    await engine.settle()
    assert [len(text) for text in await _deltas(sessions)] == [5_000]
