"""Group E: what a reader has seen of an attempt that failed is taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dex_agents import AgentTurnContext, FollowedEvent
from tests.cases.agent import Agent, ended, replace_worker, serve
from tests.session.engine import Engine, events_of, followed, payloads, texts


class Screen:
    """Shows a turn's text by the rules for readers of `AgentEvents`."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.retracted: list[str] = []

    def show(self, each: FollowedEvent) -> None:
        step = each.event.step_execution_id
        if each.supersedes:
            self.retracted.append(self.text.pop(step, ""))
        if each.event.type == "text_delta":
            self.text[step] = self.text.get(step, "") + each.event.payload["text"]


class Dropping(Agent):
    """Its first attempt streams a wrong answer and half a tool call, and ends as a test says."""

    def __init__(self) -> None:
        super().__init__(["The answer is 5"])
        self.streamed = asyncio.Event()
        self.hangs = False

    async def answering(self, turn: AgentTurnContext, place: int) -> None:
        for text in ("The answer ", "is "):
            turn.events.write_text_delta(text)
        if turn.attempt > 1:
            turn.events.write_text_delta("5")
            return
        turn.events.write_text_delta("4")
        turn.events.write_event("tool_call_delta", {"name": "pay", "arguments": '{"amount": 1'})
        self.streamed.set()
        if self.hangs:
            await asyncio.Event().wait()
        raise ConnectionError("the stream broke off")


async def watch(sessions: Any, screen: Screen) -> None:
    async for each in sessions.follow_events("s"):
        screen.show(each)
        if each.event.type == "turn_completed":
            return


@pytest.mark.parametrize("hangs", [False, True], ids=["the connection drops", "the worker ends"])
async def test_c31_a_retry_takes_back_what_was_streamed(engine: Engine, hangs: bool):
    """Whoever reads along, comes back or reads it all later ends with the second attempt only."""
    agent = Dropping()
    agent.hangs = hangs
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    live, back, later = Screen(), Screen(), Screen()
    reading = asyncio.create_task(watch(sessions, live))
    await agent.streamed.wait()
    if hangs:
        await replace_worker(engine, agent)
    else:
        await engine.settle()
    seen = await followed(sessions)
    for each in seen:
        back.show(each)
    await ended(engine, sessions)
    await asyncio.wait_for(reading, 30)
    for each in await followed(sessions, position=seen[-1].position if seen else None):
        back.show(each)
    for each in await followed(sessions):
        later.show(each)

    for screen in (live, back, later):
        assert screen.text == {"RunModel-1": "The answer is 5"}
        assert screen.retracted in (["The answer is 4"], [])
    assert later.retracted == live.retracted
    assert agent.runs() == []
    assert payloads(await events_of(sessions), "tool_call_deferred") == []
    assert texts(await sessions.get_agent_snapshot("s")) == ["Go", "The answer is 5"]
