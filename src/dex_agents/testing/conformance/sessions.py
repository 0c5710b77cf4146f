"""The behaviour of an agent session, and the rule for its content, on any backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from dex_agents.backend import Backend
from dex_agents.client import AgentSessionClient
from dex_agents.records import (
    AgentEventType,
    AgentInterrupt,
    AgentSnapshot,
    AgentStatus,
    AgentUsage,
    ToolEffect,
)
from dex_agents.runner import (
    AgentTurnContext,
    ToolCallsRequested,
    ToolExecutionError,
    ToolPolicy,
    TurnCompleted,
)
from dex_agents.session import AgentSessionOptions, session_table
from dex_agents.testing.conformance.rules import rule
from dex_agents.testing.scripted import ScriptedRunner, ToolRequest
from dex_agents.testing.waiting import wait_for_agent_snapshot

__all__ = ("SessionRules",)

READ, KEYED, ONCE = (
    ToolEffect.READ,
    ToolEffect.IDEMPOTENT_WRITE,
    ToolEffect.NON_IDEMPOTENT_WRITE,
)
AT_ONCE = AgentSessionOptions(
    tool_policies={"once": ToolPolicy(ONCE, requires_approval=False), "ask": ToolPolicy(ONCE)}
)
CONTENT = [
    ("NUL \0 and control \x1b", "NUL \0 and control \x1b"),
    ("emoji \U0001f6f0 and 4 bytes \U00020000", "emoji \U0001f6f0 and 4 bytes \U00020000"),
    ("half \ud83d a pair", "half \ufffd a pair"),
    ([float("nan"), float("inf")], [None, None]),
    (("a", "tuple"), ["a", "tuple"]),
    (10**100, 10**100),
    ({"": None, "empty": [{}, [], ""]}, {"": None, "empty": [{}, [], ""]}),
]


class SessionRules:
    """What a session does, whatever runs it."""

    @rule("session")
    async def test_a_turn_with_parallel_tools(self, backend: Backend) -> None:
        """Messages are contiguous from 1, results in the order of the calls, usage adds up."""
        requests = [ToolRequest("look", {"n": n}, effect=READ) for n in range(3)]
        runner = ScriptedRunner(
            [[requests, "done"], ["again"]], tools={"look": lambda call: call.tool_call.arguments}
        )
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "go")
            await _turn(sessions, 1)
            assert await sessions.send_user_message("s", "and now?")
            snapshot = await _turn(sessions, 2)
        roles = [message.role.value for message in snapshot.messages]
        assert roles == [
            "user",
            "assistant",
            "tool",
            "tool",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert [message.sequence for message in snapshot.messages] == list(range(1, 9))
        assert [message.text for message in snapshot.messages[2:5]] == [
            '{"n":0}',
            '{"n":1}',
            '{"n":2}',
        ]
        assert snapshot.usage.model_calls == 3
        assert (snapshot.tool_calls, snapshot.queued_message_count) == ([], 0)

    @rule("session")
    @pytest.mark.parametrize("approved", [True, False])
    async def test_an_approval_is_waited_for(self, backend: Backend, *, approved: bool) -> None:
        """The tool runs only when it was approved; a second answer is refused."""
        ran: list[str] = []
        runner = ScriptedRunner([[[ToolRequest("ask")], "done"]], tools={"ask": _noting(ran)})
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "go")
            interrupt = await _interrupt(sessions)
            assert ran == []
            answers = [
                await sessions.resolve_interrupt(
                    "s",
                    interrupt.interrupt_id,
                    approved=approved,
                    rejection_message="wrong account",
                )
                for _ in range(2)
            ]
            snapshot = await _turn(sessions, 1)
        assert answers == [True, False]
        assert ran == (["s/turn-1/call-1"] if approved else [])
        told = snapshot.messages[2].text or ""
        assert ("wrong account" in told) is not approved

    @rule("session")
    async def test_an_approval_expires(self, backend: Backend) -> None:
        """Nobody answers: the tool does not run, and the model is told that time ran out."""
        ran: list[str] = []
        runner = ScriptedRunner([[[ToolRequest("ask")], "done"]], tools={"ask": _noting(ran)})
        options = AgentSessionOptions(interrupt_deadline=timedelta(seconds=1))
        async with _serving(backend, runner, options) as sessions:
            await sessions.start_session("s", "go")
            interrupt = await _interrupt(sessions)
            snapshot = await _turn(sessions, 1)
            late = await sessions.resolve_interrupt("s", interrupt.interrupt_id, approved=True)
        assert (ran, late) == ([], False)
        assert "deadline passed" in (snapshot.messages[2].text or "")

    @rule("session")
    async def test_each_effect_fails_in_its_own_way(self, backend: Backend) -> None:
        """A read fails, a keyed write is tried under one key, a once-only write is not repeated."""
        ran: list[str] = []
        requests = [ToolRequest("look", effect=READ), ToolRequest("keyed", effect=KEYED)]
        requests += [ToolRequest("once"), ToolRequest("refused", effect=READ)]

        def refuse(_: Any) -> str:
            raise ToolExecutionError("no such order")

        tools: dict[str, Callable[..., Any]] = {
            "look": _noting(ran, RuntimeError("gone")),
            "keyed": _noting(ran, RuntimeError("gone")),
            "once": _noting(ran, RuntimeError("gone")),
            "refused": refuse,
        }
        async with _serving(backend, ScriptedRunner([[requests, "done"]], tools)) as sessions:
            await sessions.start_session("s", "go")
            snapshot = await _turn(sessions, 1)
        keys = [f"s/turn-1/call-{number}" for number in (1, 2, 3)]
        assert [ran.count(key) for key in keys] == [3, 3, 1]
        look, keyed, once, refused = (message.text or "" for message in snapshot.messages[2:6])
        assert "failed" in look
        assert "unknown" in keyed
        assert "unknown" in once
        assert "no such order" in refused

    @rule("session")
    async def test_a_turn_that_fails_leaves_a_note_and_the_next_one_runs(
        self, backend: Backend
    ) -> None:
        """The note names the tools that ran, and nothing else of the turn is stored."""
        calls = iter(range(100))

        def respond(turn: AgentTurnContext) -> Any:
            text = turn.messages[-1].text
            if text == "next":
                return "fine"
            if turn.is_resuming:
                raise RuntimeError(f"no answer {next(calls)}")
            return [ToolRequest("look", effect=READ)]

        runner = ScriptedRunner(respond, tools={"look": lambda _: "seen"})
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "go")
            await wait_for_agent_snapshot(
                sessions,
                "s",
                lambda seen: seen if seen.state and seen.state.last_turn_error else None,
                description="the failure",
                timeout=20,
            )
            await sessions.send_user_message("s", "next")
            snapshot = await _turn(sessions, 2)
        assert next(calls) == 3
        assert [message.role.value for message in snapshot.messages] == ["user"] * 3 + ["assistant"]
        assert "look" in (snapshot.messages[1].text or "")
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None

    @rule("session")
    async def test_what_a_runner_may_not_do(self, backend: Backend) -> None:
        """Call IDs that are used twice fail the turn with a clear error, and nothing is stored."""

        def respond(_: AgentTurnContext) -> Any:
            return [
                ToolRequest("look", tool_call_id="same"),
                ToolRequest("look", tool_call_id="same"),
            ]

        async with _serving(backend, ScriptedRunner(respond, tools={})) as sessions:
            await sessions.start_session("s", "go")
            snapshot = await _turn(sessions, 1)
        assert snapshot.state is not None
        assert "same" in (snapshot.state.last_turn_error or "")
        assert [message.text for message in snapshot.messages] == ["go"]

    @rule("session")
    async def test_messages_wait_for_their_turn(self, backend: Backend) -> None:
        """What is sent while a turn runs is answered afterwards, in order; blank text is not."""
        gate = asyncio.Event()

        class Waiting(ScriptedRunner):
            async def run_model_step(
                self, turn: AgentTurnContext
            ) -> TurnCompleted | ToolCallsRequested:
                await gate.wait()
                return await super().run_model_step(turn)

        runner = Waiting(lambda turn: f"answer to {turn.messages[-1].text}")
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "m0")
            for number in range(1, 4):
                assert await sessions.send_user_message("s", f"m{number}")
            assert not await sessions.send_user_message("s", " \n")
            gate.set()
            snapshot = await _turn(sessions, 4)
        texts = [message.text for message in snapshot.messages]
        assert texts == [each for n in range(4) for each in (f"m{n}", f"answer to m{n}")]

    @rule("session")
    async def test_events_tell_the_turn(self, backend: Backend) -> None:
        """They can be followed while it happens, and read again from any position."""
        runner = ScriptedRunner(
            [[[ToolRequest("look", effect=READ)], "done"]], tools={"look": lambda _: "seen"}
        )
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "go")
            seen = []
            async for followed in sessions.follow_events("s"):
                seen.append(followed)
                if followed.event.type == AgentEventType.TURN_COMPLETED:
                    break
            again = [
                each
                async for each in sessions.follow_events(
                    "s", position=seen[1].position, follow=False
                )
            ]
        types = [str(each.event.type) for each in seen]
        assert types == [
            "turn_started",
            "usage_recorded",
            "tool_call_deferred",
            "tool_call_started",
            "tool_call_finished",
            "usage_recorded",
            "turn_completed",
        ]
        assert [each.event for each in again] == [each.event for each in seen[2:]]

    @rule("session")
    async def test_a_session_begins_when_it_is_spoken_to(self, backend: Backend) -> None:
        """Without a first message it waits; usage is there from the start."""
        async with _serving(backend, ScriptedRunner([["hello"]])) as sessions:
            await sessions.start_session("s", "  ")
            waiting = await wait_for_agent_snapshot(
                sessions, "s", lambda seen: seen if seen.state else None, description="the start"
            )
            assert waiting.state is not None
            assert (waiting.state.turn_number, waiting.messages) == (0, [])
            assert waiting.usage == AgentUsage()
            await sessions.send_user_message("s", "hi")
            await _turn(sessions, 1)

    @rule("content")
    @pytest.mark.parametrize(("given", "stored"), CONTENT, ids=range(len(CONTENT)))
    async def test_content_comes_back_by_one_rule(
        self, backend: Backend, given: Any, stored: Any
    ) -> None:
        """As tool arguments, as a tool's result, and as the user's and the model's text."""
        text = given if isinstance(given, str) else "text"
        seen: list[Any] = []

        def look(call: Any) -> Any:
            seen.append(call.tool_call.arguments["value"])
            return given

        def respond(turn: AgentTurnContext) -> Any:
            if not turn.is_resuming:
                return [ToolRequest("look", {"value": given}, effect=READ)]
            seen.append(turn.tool_calls["call-1"].output)
            return text

        async with _serving(backend, ScriptedRunner(respond, {"look": look})) as sessions:
            await sessions.start_session("s", text)
            snapshot = await _turn(sessions, 1)
        assert snapshot.state is not None
        assert snapshot.state.last_turn_error is None
        assert seen == [stored, stored]
        expected = stored if isinstance(stored, str) else "text"
        assert (snapshot.messages[0].text, snapshot.messages[-1].text) == (expected, expected)

    @rule("content")
    @pytest.mark.parametrize("value", [b"bytes", {1: "key"}, object(), {"a": {2, 3}}], ids=range(4))
    async def test_content_that_is_no_json_fails_at_its_own_step(
        self, backend: Backend, value: Any
    ) -> None:
        """The tool call says what cannot be stored, and the session goes on."""
        runner = ScriptedRunner(
            [[[ToolRequest("look", effect=READ)], "done"]], tools={"look": lambda _: value}
        )
        async with _serving(backend, runner) as sessions:
            await sessions.start_session("s", "go")
            snapshot = await _turn(sessions, 1)
        assert "cannot be stored" in (snapshot.messages[2].text or "")
        assert snapshot.messages[-1].text == "done"


@asynccontextmanager
async def _serving(
    backend: Backend, runner: Any, options: AgentSessionOptions = AT_ONCE
) -> AsyncIterator[AgentSessionClient]:
    table = session_table(runner, flow_type="Agent", options=options)
    async with backend.worker([table], grace_seconds=0.0):
        yield AgentSessionClient(backend, table)


async def _turn(sessions: AgentSessionClient, number: int) -> AgentSnapshot:
    """Return the snapshot at the end of a turn."""
    return await wait_for_agent_snapshot(
        sessions,
        "s",
        lambda seen: (
            seen
            if seen.state is not None
            and seen.state.turn_number == number
            and seen.state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
            and not seen.queued_message_count
            else None
        ),
        description=f"the end of turn {number}",
        timeout=20,
    )


async def _interrupt(sessions: AgentSessionClient) -> AgentInterrupt:
    """Return the first approval that is asked for."""
    return await wait_for_agent_snapshot(
        sessions,
        "s",
        lambda seen: next(iter(seen.pending_interrupts), None),
        description="an approval",
        timeout=20,
    )


def _noting(ran: list[str], error: Exception | None = None) -> Callable[[Any], str]:
    """Return a tool that notes its idempotency key, then fails if it is to."""

    def run(call: Any) -> str:
        ran.append(call.idempotency_key)
        if error is not None:
            raise error
        return "done"

    return run
