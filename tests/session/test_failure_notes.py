"""The note that a failed turn leaves, so that the next turn's model repeats no write."""

from __future__ import annotations

from typing import Any

from dex_agents import AgentTurnContext, DeferredToolExecution, MessageRole, ToolExecutionError
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.engine import ASK, ONCE, READ, Engine, texts


def _refuse(_: DeferredToolExecution) -> None:
    raise ToolExecutionError("no such order")


def _break(_: DeferredToolExecution) -> None:
    raise OSError("connection lost.")


TOOLS = {"look": lambda _: {"found": 7}, "refuse": _refuse, "pay": _break, "say": lambda _: "hi"}
POLICIES = {"look": READ, "refuse": READ, "pay": ONCE, "say": READ}
NOTE = """\
[Dex] The previous turn failed after these tool calls ran:
- pay {"amount":3} -> outcome_unknown: It is unknown whether the tool call took effect. \
Check before doing anything that depends on it. Cause: connection lost.
- look {} -> succeeded: {"found":7}
- refuse [1] -> failed: The tool call failed: no such order
- say plain -> succeeded: hi
Do not repeat these tool calls unless the user asks again."""


async def _fail(engine: Engine, script: list[Any]) -> Any:
    runner = ScriptedRunner(script, TOOLS)
    sessions = await engine.serve(runner, tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await engine.advance(600)
    return sessions


async def test_a_failed_turn_leaves_a_note_of_what_ran(engine: Engine):
    """The contract's text, one line a call, in model order over the turn's responses."""
    first = [ToolRequest("pay", {"amount": 3}, tool_call_id="z"), ToolRequest("look")]
    second = [ToolRequest("refuse", [1], tool_call_id="a"), ToolRequest("say", "plain")]
    sessions = await _fail(engine, [[first, second, ValueError("model is down")]])
    snapshot = await sessions.get_agent_snapshot("s")
    assert texts(snapshot) == ["Go", NOTE]
    assert snapshot.state.last_turn_error == "model is down"


async def test_the_note_is_a_user_message_of_the_failed_turn(engine: Engine):
    """Built by build_user_message, so the framework can read it back."""
    sessions = await _fail(engine, [[[ToolRequest("say", None)], ValueError("no")]])
    note = (await sessions.get_agent_snapshot("s")).messages[1]
    assert (note.sequence, note.role, note.turn_id) == (2, MessageRole.USER, "turn-1")
    assert note.framework_item == {"role": "user", "content": note.text}


async def test_without_a_tool_call_there_is_no_note(engine: Engine):
    """Nothing is appended."""
    sessions = await _fail(engine, [[ValueError("no")]])
    snapshot = await sessions.get_agent_snapshot("s")
    assert (texts(snapshot), snapshot.state.message_count) == (["Go"], 1)


async def test_a_rejected_call_is_in_the_note(engine: Engine):
    """A rejection is a result too."""
    runner = ScriptedRunner([[[ToolRequest("pay", {})], ValueError("no")]], TOOLS)
    sessions = await engine.serve(runner, tool_policies={"pay": ASK})
    await sessions.start_session("s", "Go")
    await engine.settle()
    (interrupt,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
    await sessions.resolve_interrupt(
        "s", interrupt.interrupt_id, approved=False, rejection_message="Too much."
    )
    await engine.advance(600)
    assert "\n- pay {} -> rejected: Too much.\n" in texts(await sessions.get_agent_snapshot("s"))[1]


async def test_the_next_turns_model_sees_the_note(engine: Engine):
    """In its place, before the user's next message."""
    seen: list[str | None] = []

    def script(turn: AgentTurnContext) -> Any:
        if turn.turn_id == "turn-2":
            seen.extend(message.text for message in turn.messages)
            return "I did not repeat it."
        return ValueError("no") if turn.tool_calls else [ToolRequest("look")]

    sessions = await engine.serve(ScriptedRunner(script, TOOLS), tool_policies=POLICIES)
    await sessions.start_session("s", "Go")
    await sessions.send_user_message("s", "Again?")
    await engine.advance(600)
    assert [seen[0], seen[2]] == ["Go", "Again?"]
    assert seen[1].startswith("[Dex] The previous turn failed after these tool calls ran:\n- look ")
    snapshot = await sessions.get_agent_snapshot("s")
    assert snapshot.messages[-1].sequence == 4
    assert snapshot.state.last_turn_error is None


async def test_each_failed_turn_leaves_its_own_note(engine: Engine):
    """The second names only its own calls."""

    def script(turn: AgentTurnContext) -> Any:
        name = "look" if turn.turn_id == "turn-1" else "say"
        return ValueError("no") if turn.tool_calls else [ToolRequest(name)]

    sessions = await engine.serve(ScriptedRunner(script, TOOLS), tool_policies=POLICIES)
    await sessions.start_session("s", "a")
    await engine.advance(600)
    await sessions.send_user_message("s", "b")
    await engine.advance(600)
    _, first, _, second = texts(await sessions.get_agent_snapshot("s"))
    assert ("- look" in first, "- say" in first) == (True, False)
    assert ("- look" in second, "- say" in second) == (False, True)
