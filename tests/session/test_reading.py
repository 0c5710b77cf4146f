"""Reading a session: snapshots, pages, closed sessions, and messages decoded as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest

from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentStatus,
    AgentTurnContext,
    DeferredToolExecution,
    FlowNotActiveError,
    FrameworkMessage,
    MessageRole,
    TurnCompleted,
    message_sequence_key,
)
from dex_agents.session.turn import StoredMessages
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.engine import ASK, READ, Engine, Gate, texts


async def _filled(engine: Engine, count: int) -> AgentSessionClient:
    """Return the client of a session with so many messages."""
    messages = [FrameworkMessage(MessageRole.ASSISTANT, n, str(n)) for n in range(2, count + 1)]
    sessions = await engine.serve(ScriptedRunner([[TurnCompleted(messages)], ["More."]]))
    await sessions.start_session("s", "1")
    await engine.settle()
    return sessions


# Snapshots and pages


async def test_a_snapshot_holds_the_last_two_hundred_messages(engine: Engine):
    """Oldest first; the state tells how many there are."""
    sessions = await _filled(engine, 450)
    snapshot = await sessions.get_agent_snapshot("s")
    assert [message.sequence for message in snapshot.messages] == list(range(251, 451))
    assert snapshot.state.message_count == 450


@pytest.mark.parametrize("count", [1, 199, 200, 201])
async def test_a_snapshot_of_few_messages_holds_them_all(engine: Engine, count: int):
    """Up to 200, and not one more."""
    sessions = await _filled(engine, count)
    messages = (await sessions.get_agent_snapshot("s")).messages
    assert [m.sequence for m in messages] == list(range(max(count - 199, 1), count + 1))


@pytest.mark.parametrize(
    ("limit", "length"), [(-5, 1), (0, 1), (1, 1), (50, 50), (200, 200), (201, 200), (1000, 200)]
)
async def test_a_pages_limit_is_clamped(engine: Engine, limit: int, length: int):
    """To 1..200."""
    sessions = await _filled(engine, 450)
    page = await sessions.list_agent_messages("s", limit=limit)
    assert [message.sequence for message in page.messages] == list(range(1, length + 1))
    assert page.next_after_sequence == length


async def test_a_page_holds_fifty_messages_unless_asked_otherwise(engine: Engine):
    """The default limit."""
    sessions = await _filled(engine, 60)
    assert len((await sessions.list_agent_messages("s")).messages) == 50


@pytest.mark.parametrize("limit", [1, 7, 50, 45])
async def test_pages_put_together_are_the_session(engine: Engine, limit: int):
    """Following ``next_after_sequence`` until it is None reads every message once."""
    sessions = await _filled(engine, 90)
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await sessions.list_agent_messages("s", after_sequence=after, limit=limit)
        assert page.messages
        found += [message.sequence for message in page.messages]
        after = page.next_after_sequence
    assert found == list(range(1, 91))


@pytest.mark.parametrize("after", [90, 91, 10_000])
async def test_behind_the_last_message_there_is_an_empty_last_page(engine: Engine, after: int):
    """A client that polls gets nothing, not an error."""
    sessions = await _filled(engine, 90)
    page = await sessions.list_agent_messages("s", after_sequence=after)
    assert (page.messages, page.next_after_sequence) == ([], None)


async def test_a_negative_sequence_is_the_beginning(engine: Engine):
    """As 0 is."""
    sessions = await _filled(engine, 5)
    page = await sessions.list_agent_messages("s", after_sequence=-3, limit=2)
    assert [message.sequence for message in page.messages] == [1, 2]


@pytest.mark.local("on Dex a call needs a worker")
async def test_an_empty_session_has_one_empty_page(engine: Engine):
    """Also before its first Step has committed."""
    client = AgentSessionClient(engine.backend, "Agent")
    await client.start_session("s")
    for _ in range(2):
        page = await client.list_agent_messages("s")
        assert (page.messages, page.next_after_sequence) == ([], None)
        if not engine.workers:
            await engine.serve(ScriptedRunner([]))
            await engine.settle()


@pytest.mark.local("on Dex a call needs a worker")
async def test_a_snapshot_counts_queued_messages(engine: Engine):
    """Those that no turn has taken yet."""
    client = AgentSessionClient(engine.backend, "Agent")
    await client.start_session("s")
    for count in range(3):
        assert (await client.get_agent_snapshot("s")).queued_message_count == count
        await client.send_user_message("s", "Hi")


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "\u3000"])
async def test_a_blank_message_is_not_queued(engine: Engine, text: str):
    """``send_user_message`` returns False."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s")
    assert not await sessions.send_user_message("s", text)
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert (snapshot.queued_message_count, snapshot.messages) == (0, [])


async def test_a_message_keeps_its_white_space(engine: Engine):
    """Only a blank one is special."""
    sessions = await engine.serve(ScriptedRunner([["Hello."]]))
    await sessions.start_session("s", "  Hi \n")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s"))[0] == "  Hi \n"


async def test_reading_changes_nothing(engine: Engine):
    """No read appears in the history."""
    sessions = await _filled(engine, 5)
    before = await sessions.read_history("s")
    await sessions.get_agent_snapshot("s")
    await sessions.list_agent_messages("s")
    await engine.settle()
    assert await sessions.read_history("s") == before


# Stopping


@pytest.mark.local("Dex keeps no reason of a stop")
async def test_a_stopped_session_stays_readable(engine: Engine):
    """Snapshot, pages, history and events."""
    sessions = await _filled(engine, 5)
    before = await sessions.get_agent_snapshot("s")
    await sessions.stop_session("s", "enough")
    assert await sessions.get_agent_snapshot("s") == before
    assert len((await sessions.list_agent_messages("s")).messages) == 5
    summary = await sessions.describe_session("s")
    assert (summary.status, summary.failure) == ("stopped", "enough")
    assert summary.closed_at == engine.clock.now()


async def test_a_stopped_session_refuses_every_change(engine: Engine):
    """The error names the session and its status."""
    sessions = await _filled(engine, 5)
    await sessions.stop_session("s")
    calls = (
        sessions.send_user_message("s", "Hi"),
        sessions.resolve_interrupt("s", "turn-1.call-1", approved=True),
        sessions.stop_session("s"),
    )
    for call in calls:
        with pytest.raises(FlowNotActiveError, match="'s' is stopped"):
            await call


@pytest.mark.local("on Dex a call needs a worker")
async def test_a_session_can_be_stopped_without_a_worker(engine: Engine):
    """And a later worker leaves it alone."""
    client = AgentSessionClient(engine.backend, "Agent")
    await client.start_session("s", "Hi")
    await client.stop_session("s")
    await engine.serve(ScriptedRunner([["Hello."]]))
    await engine.advance(60)
    snapshot = await client.get_agent_snapshot("s")
    assert (snapshot.state, snapshot.messages) == (None, [])


async def test_stopping_cancels_a_running_tool(engine: Engine):
    """Its task is cancelled at once, and nothing runs afterwards."""
    gate = Gate()
    cancelled, models = asyncio.Event(), 0

    async def look(_: DeferredToolExecution) -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    def script(turn: AgentTurnContext) -> object:
        nonlocal models
        models += 1
        return [ToolRequest("look")]

    sessions = await engine.serve(
        ScriptedRunner(script, {"look": look}), tool_policies={"look": READ}
    )
    await sessions.start_session("s", "Go")
    await engine.settle()
    await sessions.send_user_message("s", "Later")
    await sessions.stop_session("s", "user left")
    await engine.settle()
    assert cancelled.is_set()
    gate.open.set()
    await engine.advance(3600)
    assert models == 1
    snapshot = await sessions.get_agent_snapshot("s")
    assert (texts(snapshot), snapshot.state.status) == (["Go"], AgentStatus.RUNNING_TOOLS)


async def test_stopping_cancels_a_running_model_call(engine: Engine):
    """Whatever it returns then is not stored."""
    gate = Gate()

    async def script(turn: AgentTurnContext) -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            return "Too late."
        return "Never."

    sessions = await engine.serve(ScriptedRunner(script))
    await sessions.start_session("s", "Go")
    await engine.settle()
    await sessions.stop_session("s")
    await engine.settle()
    assert texts(await sessions.get_agent_snapshot("s")) == ["Go"]


async def test_stopping_ends_a_retry_and_a_deadline(engine: Engine):
    """No Timer of a stopped session fires."""
    calls = 0

    def look(_: DeferredToolExecution) -> None:
        nonlocal calls
        calls += 1
        raise OSError("no")

    runner = ScriptedRunner([[[ToolRequest("look"), ToolRequest("pay")], "-"]], {"look": look})
    sessions = await engine.serve(runner, tool_policies={"look": READ, "pay": ASK})
    await sessions.start_session("s", "Go")
    await engine.settle()
    await sessions.stop_session("s")
    await engine.advance(3600)
    assert calls == 1


@pytest.mark.local("Dex's history has no cancellations")
async def test_history_says_what_a_stop_cancelled(engine: Engine):
    """Every open Step, then the end with its reason."""
    gate = Gate()

    async def look(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return ""

    runner = ScriptedRunner([[[ToolRequest("look"), ToolRequest("pay")], "-"]], {"look": look})
    sessions = await engine.serve(runner, tool_policies={"look": READ, "pay": ASK})
    await sessions.start_session("s", "Go")
    await engine.settle()
    await sessions.stop_session("s", "user left")
    history = await sessions.read_history("s")
    canceled = [e.step_execution_id for e in history if e.event_type == "step_canceled"]
    assert set(canceled) == {"CallTool-1", "AwaitToolApproval-1", "ResumeTurn-1"}
    assert (history[-1].event_type, history[-1].error) == ("flow_closed", "user left")


async def test_stopping_one_session_leaves_the_others(engine: Engine):
    """Their tools and turns go on."""
    sessions = await engine.serve(ScriptedRunner(lambda turn: turn.turn_id))
    for name in ("a", "b"):
        await sessions.start_session(name, "Hi")
    await engine.settle()
    await sessions.stop_session("a")
    await sessions.send_user_message("b", "Again")
    await engine.settle()
    assert len(texts(await sessions.get_agent_snapshot("b"))) == 4


# Messages as they are read


class Counting(Mapping[str, AgentMessage]):
    """Stored messages that remember which of them were asked for."""

    def __init__(self, count: int) -> None:
        self.asked: list[str] = []
        self._count = count

    def __getitem__(self, key: str) -> AgentMessage:
        self.asked.append(key)
        return AgentMessage(int(key), MessageRole.USER, None, key)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("nobody needs all keys")

    def __len__(self) -> int:
        raise AssertionError("nobody needs to count")


def test_the_last_message_alone_is_read():
    """However many there are."""
    entries = Counting(1000)
    messages = StoredMessages(entries, 1000)
    assert len(messages) == 1000
    assert messages[-1].sequence == 1000
    assert entries.asked == [message_sequence_key(1000)]


def test_a_slice_reads_what_it_holds():
    """As a list's would."""
    entries = Counting(1000)
    messages = StoredMessages(entries, 1000)
    assert [message.sequence for message in messages[-3:]] == [998, 999, 1000]
    assert [message.sequence for message in messages[2:8:3]] == [3, 6]
    assert [message.sequence for message in messages[:2][::-1]] == [2, 1]
    assert len(entries.asked) == 7


def test_a_search_from_the_end_stops_where_it_finds():
    """``reversed`` reads no more than it gives."""
    entries = Counting(1000)
    found = next(m for m in reversed(StoredMessages(entries, 1000)) if m.sequence == 997)
    assert found.sequence == 997
    assert len(entries.asked) == 4


@pytest.mark.parametrize("index", [5, -6, 1000])
def test_an_index_outside_is_an_index_error(index: int):
    """As with a list."""
    with pytest.raises(IndexError):
        StoredMessages(Counting(5), 5)[index]


@pytest.mark.local("on Dex a model call loads the whole history")
async def test_a_long_sessions_turn_decodes_only_what_its_runner_reads(engine: Engine):
    """One message of a thousand."""
    seen: list[object] = []

    def script(turn: AgentTurnContext) -> object:
        if turn.turn_id == "turn-1":
            messages = [FrameworkMessage(MessageRole.ASSISTANT, n, str(n)) for n in range(999)]
            return TurnCompleted(messages)
        seen.append((len(turn.messages), turn.messages[-1].text))
        return "Done."

    runner = ScriptedRunner(script)
    sessions = await engine.serve(runner)
    await sessions.start_session("s", "1")
    await engine.settle()
    await engine.retire()
    await engine.settle()
    await sessions.send_user_message("s", "last")
    await engine.serve(runner)
    await engine.settle()
    assert seen == [(1001, "last")]
    handle = engine.workers[0].resident("s")
    decoded = [name for name in handle.attributes._decoded if name.startswith("AgentMessages/")]
    assert decoded == [f"AgentMessages/{message_sequence_key(1001)}"]
