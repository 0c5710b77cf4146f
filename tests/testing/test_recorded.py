"""Recordings, their replay and their comparison; on our own data and on 60 real conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import dex_agents.testing
from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionOptions,
    AgentStatus,
    DeferredToolExecution,
    ToolEffect,
    ToolExecutionError,
    session_table,
)
from dex_agents.testing import (
    AgentMemoryStack,
    BrokenLineError,
    RecordedRunner,
    Recording,
    RecordingError,
    compare_recording,
)

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
CONVERSATIONS = DATA / "airline-trajectories.jsonl"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asks(*call_ids: str, text: str | None = None) -> dict[str, Any]:
    calls = [{"id": each, "name": "look", "arguments": '{"at": "sky"}'} for each in call_ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def tool(call_id: str, content: str = "a bird") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, "name": "look"}


async def _messages(sessions: AgentSessionClient, session_id: str) -> list[AgentMessage]:
    messages: list[AgentMessage] = []
    after: int | None = 0
    while after is not None:
        page = await sessions.list_agent_messages(session_id, after_sequence=after, limit=200)
        messages += page.messages
        after = page.next_after_sequence
    return messages


async def _replay(
    recording: Recording, runner: RecordedRunner | None = None, effect: ToolEffect = ToolEffect.READ
) -> list[AgentMessage]:
    """Replay a recording, one user message a turn, and return what the session stored."""
    flow = session_table(
        runner or RecordedRunner([recording]),
        flow_type="Recorded",
        options=AgentSessionOptions(default_tool_effect=effect),
    )
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session(recording.id)
        for turn, text in enumerate(recording.user_messages, start=1):
            await sessions.send_user_message(recording.id, text)
            while (state := (await _state(sessions, recording.id, stack))).turn_number < turn:
                await stack.settle()
            assert state.last_turn_error is None
        return await _messages(sessions, recording.id)


async def _state(sessions: AgentSessionClient, session_id: str, stack: AgentMemoryStack) -> Any:
    """Return the state once the session waits for its user again."""
    for _ in range(100):
        await stack.advance(3600)
        state = (await sessions.get_agent_snapshot(session_id)).state
        if state is not None and state.status is AgentStatus.WAITING_FOR_USER_MESSAGE:
            return state
    raise AssertionError(f"{session_id} does not come to rest: {state}")


# Reading


def _real() -> list[Recording]:
    if not CONVERSATIONS.exists():
        return []
    return Recording.read_file(CONVERSATIONS)


def test_the_real_conversations_can_be_read():
    """All sixty are conversations; five repeat a tool call ID within a turn."""
    if not CONVERSATIONS.exists():
        pytest.skip(f"NO REAL CONVERSATIONS: {CONVERSATIONS} is absent")
    recordings = _real()
    assert len(recordings) == 60
    replays = [dex_agents.testing.replay.Replay(each.id, each.messages) for each in recordings]
    repeating = [
        each for each in replays if any(i.endswith(".2") for i in each.result_ids.values())
    ]
    assert len(repeating) == 5


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '{"id": "a"}',
        '{"id": 1, "messages": []}',
        '{"id": "a", "messages": [{"role": "system", "content": "x"}]}',
        '{"id": "a", "messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str):
    """The error names the file and the line; blank lines are none."""
    path = tmp_path / "recorded.jsonl"
    path.write_text('{"id": "good", "messages": []}\n\n' + line + "\n", "utf-8")
    with pytest.raises(BrokenLineError, match=r"recorded\.jsonl, line 3: "):
        Recording.read_file(path)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([says("Hi.")], "message 1: a conversation begins"),
        ([user("a"), asks("1"), says("b")], "message 3: tool call '1' before it has no result"),
        ([user("a"), asks("1"), tool("2")], "message 3: it answers '2'"),
        ([user("a"), asks("1"), tool("1"), tool("1")], "message 4: it answers '1'"),
        ([user(" "), says("b")], "message 1: a session takes no blank"),
        ([{"role": "user", "content": "a", "name": "Bo"}, says("b")], "message 1: .*name"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: list[Any], problem: str):
    """The error names the recording and the message."""
    with pytest.raises(RecordingError, match=f"Recording 'r': {problem}"):
        Recording("r", messages)


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([user("a"), says("b"), user("c")], 2),
        ([user("a"), says("b"), user("c"), user("d")], 2),
        ([user("a"), asks("1"), tool("1")], 3),
        ([user("a"), says("b"), user("c"), asks("1")], 2),
        ([user("a"), says("b"), user("c"), asks("1", "2"), tool("2")], 2),
        ([user("a"), asks("1"), tool("1"), asks("2")], 3),
        ([user("a")], 0),
        ([], 0),
    ],
)
def test_an_unanswered_end_is_not_replayed(messages: list[Any], kept: int):
    """Trailing user messages and calls without results are left out; tool results are not."""
    recording = Recording("r", messages)
    assert recording.replayed_messages == messages[:kept]
    assert len(recording.user_messages) == [each["role"] for each in messages[:kept]].count("user")


# Replaying


@pytest.mark.parametrize(
    "recording",
    _real() or [pytest.param(None, marks=pytest.mark.skip(f"NO REAL DATA: {DATA} is absent"))],
    ids=lambda recording: recording.id if recording else "absent",
)
async def test_a_real_conversation_is_stored_one_to_one(recording: Recording):
    """Every message and every tool call of a real conversation, each call run once."""
    calls = []
    runner = RecordedRunner([recording], on_tool_call=calls.append)
    messages = await _replay(recording, runner)
    assert compare_recording(recording, messages) == []
    assert [each.framework_item for each in messages] == list(recording.replayed_messages)
    assert len(calls) == sum(each["role"] == "tool" for each in recording.replayed_messages)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([user("a"), says("b"), says("c"), user("d"), says("e")], id="two answers"),
        pytest.param([user("a"), says("b"), asks("1"), tool("1"), says("c")], id="text then call"),
        pytest.param([user("a"), user("b"), says("c")], id="two user messages"),
        pytest.param([user("a"), asks("1"), tool("1"), user("b"), says("c")], id="no answer"),
        pytest.param([user("a"), asks("1", text="t"), tool("1", "")], id="ends on an empty result"),
        pytest.param([user("a"), asks("1", "2"), tool("2", "y"), tool("1", "x"), says("b")]),
        pytest.param([user("a"), asks("1", "1"), tool("1", "x"), tool("1", "y"), says("b")]),
        pytest.param([user("a"), asks("x/y", ""), tool("x/y"), tool(""), says("b")]),
        pytest.param([user("a"), says("b"), user("unanswered")], id="unanswered"),
    ],
)
async def test_unusual_conversations_are_stored_one_to_one(messages: list[Any]):
    """Whatever a chat may hold comes out as it went in."""
    recording = Recording("r", messages)
    assert compare_recording(recording, await _replay(recording)) == []


async def test_repeated_tool_call_ids_are_unique_in_the_session_only():
    """The session sees ``<id>.2``; the framework items keep the provider's ID."""
    seen = []

    async def on_tool_call(call: DeferredToolExecution) -> None:
        seen.append((call.tool_call.turn_id, call.tool_call.tool_call_id))

    turn = [asks("x"), tool("x", "1"), asks("x"), tool("x", "2"), asks("x.2"), tool("x.2", "3")]
    recording = Recording("r", [user("a"), *turn, says("b"), user("c"), asks("x"), tool("x")])
    messages = await _replay(recording, RecordedRunner([recording], on_tool_call=on_tool_call))
    assert seen == [("turn-1", "x"), ("turn-1", "x.2"), ("turn-1", "x.2.2"), ("turn-2", "x")]
    assert compare_recording(recording, messages) == []


class _Forgetful:
    """Asks a new runner each time, as a worker does that was just started."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def build_user_message(self, text: str) -> Any:
        return RecordedRunner([self._recording]).build_user_message(text)

    async def run_model_step(self, turn: Any) -> Any:
        return await RecordedRunner([self._recording]).run_model_step(turn)

    async def execute_deferred_tool_call(self, call: Any) -> Any:
        return await RecordedRunner([self._recording]).execute_deferred_tool_call(call)


async def test_a_recorded_runner_keeps_nothing_between_calls():
    """A new runner for every call replays the same."""
    turn = [user("a"), asks("x"), tool("x", "1"), asks("x"), tool("x", "2"), says("b")]
    recording = Recording("r", [*turn, *turn])
    assert compare_recording(recording, await _replay(recording, _Forgetful(recording))) == []


async def test_arguments_go_to_the_session_as_the_model_wrote_them():
    """They are the recorded JSON text, unread."""
    seen = []
    recording = Recording("r", [user("a"), asks("1"), tool("1")])
    runner = RecordedRunner([recording], on_tool_call=lambda call: seen.append(call.tool_call))
    await _replay(recording, runner)
    assert [each.arguments for each in seen] == ['{"at": "sky"}']


async def test_a_call_that_did_not_succeed_stores_what_became_of_it():
    """Only the content changes; the comparison tells, and allows it only where it is asked to."""

    def fail(call: DeferredToolExecution) -> None:
        raise ToolExecutionError("no sky today")

    recording = Recording("r", [user("a"), asks("1"), tool("1"), says("b")])
    stored = await _replay(recording, RecordedRunner([recording], on_tool_call=fail))
    item = stored[2].framework_item
    assert item == {**tool("1"), "content": "The tool call failed: no sky today"}
    for allow_unknown in (False, True):
        found = compare_recording(recording, stored, allow_unknown=allow_unknown)
        assert len(found) == 1
        assert "message 3 (tool): content is 'The tool call failed" in found[0]


async def test_an_unknown_outcome_can_be_allowed():
    """A write that died counts as a difference unless the test allows unknown outcomes."""

    def die(call: DeferredToolExecution) -> None:
        raise RuntimeError("cut off")

    recording = Recording("r", [user("a"), asks("1"), tool("1"), says("b")])
    runner = RecordedRunner([recording], on_tool_call=die)
    stored = await _replay(recording, runner, ToolEffect.IDEMPOTENT_WRITE)
    assert "It is unknown" in stored[2].framework_item["content"]
    assert len(compare_recording(recording, stored)) == 1
    assert compare_recording(recording, stored, allow_unknown=True) == []


async def _turn_error(recording: Recording, session_id: str, *texts: str) -> str:
    flow = session_table(RecordedRunner([recording]), flow_type="Recorded")
    async with AgentMemoryStack([flow]) as stack:
        sessions = stack.sessions(flow)
        await sessions.start_session(session_id)
        for text in texts:
            await sessions.send_user_message(session_id, text)
            await stack.advance(3600)
        return str((await sessions.get_agent_snapshot(session_id)).state.last_turn_error)


async def test_a_session_that_leaves_its_recording_is_told_where():
    """Another session, another message and a message too many each fail the turn."""
    recording = Recording("r", [user("a"), says("b")])
    assert "there is none for the session" in await _turn_error(recording, "other", "a")
    assert "message 1 is {'role': 'user', 'content': 'a'}" in await _turn_error(recording, "r", "z")
    assert "it ends after 2 messages" in await _turn_error(recording, "r", "a", "z")


def test_two_recordings_of_one_id_are_refused():
    """A session could not tell which is its own."""
    recording = Recording("r", [])
    with pytest.raises(RecordingError, match="two of this ID"):
        RecordedRunner([recording, recording])


# Comparing


async def test_every_kind_of_difference_is_said():
    """Length, order, role, turn, text and item are each compared."""
    recording = Recording("r", [user("a"), asks("1"), tool("1"), says("b" * 200)])
    stored = await _replay(recording)
    assert compare_recording(recording, stored[:3]) == [
        "the recording has 4 messages, the session stored 3"
    ]
    extra = {**stored[2].framework_item, "extra": 1}
    for changed, words in (
        (replace(stored[2], sequence=9), "message 3 (tool): sequence is 9"),
        (replace(stored[2], role="user"), "stored role is 'user', the recording has 'tool'"),
        (replace(stored[2], turn_id="turn-2"), "turn is 'turn-2', the recording has 'turn-1'"),
        (replace(stored[2], text="z"), "text is 'z', the recording has 'a bird'"),
        (replace(stored[2], framework_item=extra), "extra is 1, the recording has 'missing'"),
        (replace(stored[2], framework_item=[]), "the framework item is []"),
    ):
        found = compare_recording(recording, [*stored[:2], changed, stored[3]])
        assert len(found) == 1
        assert words in found[0]


def test_recordings_survive_a_file(tmp_path: Path):
    """What is read is what was written, keys of other tools included."""
    messages = [user("é"), asks("1"), tool("1")]
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"id": "r", "messages": messages, "more": 1}), "utf-8")
    assert Recording.read_file(path) == [Recording("r", messages)]


def test_every_public_name_is_exported():
    """``__all__`` names what is there, sorted as ruff sorts it, without repeats."""
    names = dex_agents.testing.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(dex_agents.testing, name) for name in names)


def test_the_kit_needs_no_pytest():
    """Whoever serves a scripted agent does not need a test framework; only the contract does."""
    for module in Path(dex_agents.testing.__file__).parent.rglob("*.py"):
        if module.parent.name != "conformance":
            assert "import pytest" not in module.read_text("utf-8"), module
