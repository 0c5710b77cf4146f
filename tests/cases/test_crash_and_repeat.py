"""Group A: what a crash may repeat, and what it must not."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from typing import Any, Self

import pytest
from msgspec import structs

from dex_agents import AgentTurnContext, DeferredToolExecution
from dex_agents.executor import Commit
from dex_agents.testing import ToolRequest, wait_for_agent_snapshot, wait_until
from tests.cases.agent import (
    UNKNOWN,
    Agent,
    ended,
    finished,
    outcome,
    pending,
    recorded,
    replace_worker,
    serve,
    until,
)
from tests.cases.conftest import Site
from tests.session.engine import Engine, Gate, drop_dead, texts

real_workers = pytest.mark.timeout(120)
no_worker_waits = pytest.mark.pulling("a listening worker that is not there costs an attempt")

# C01


@no_worker_waits
async def test_c01_a_cut_off_write_is_unknown(engine: Engine):
    """Its worker goes after the effect, whichever way the write may run only once: never again."""
    names = ["pay", "act", "ask"]
    agent = Agent([[ToolRequest(each) for each in names], "Done."], **dict.fromkeys(names, hang))
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await pending(sessions, 1)
    assert await sessions.resolve_interrupt("s", "turn-1.call-3", approved=True)
    await wait_until("three effects", lambda: len(agent.calls) == 3)
    await replace_worker(engine, agent)
    await ended(engine, sessions)

    assert sorted(agent.runs()) == sorted(names)
    assert [each.startswith(UNKNOWN) for each in await outcome(sessions)] == [True] * 3
    assert await finished(sessions) == ["outcome_unknown"] * 3
    assert len(agent.model_calls) == 2


@real_workers
@pytest.mark.parametrize("site", ["sqlite", "dex-pull"], indirect=True)
async def test_c01_a_write_whose_worker_is_killed_is_unknown(site: Site):
    """SIGKILL between the effect and its record, and a second worker: the effect stays one."""
    tools = {"once-1": "once_write", "loose-1": "unclassified", "approval-1": "approved_write"}
    gates = [site.close_gate(f"after-{tool}") for tool in tools.values()]
    worker = await site.start_worker()
    for session in tools:
        await site.sessions.start_session(session, "write")
    await _approve(site, "approval-1")
    for gate in gates:
        await gate.wait_until_reached()
    await site.kill(worker)
    for tool in tools.values():
        site.open_gate(f"after-{tool}")
    await site.start_worker()

    for session, tool in tools.items():
        snapshot = await site.settled(session)
        (told,) = (m.text for m in snapshot.messages if m.role == "tool")
        assert told.startswith(UNKNOWN)
        assert site.effects(session) == [tool]
        assert site.model_calls(session) == 2
        assert await finished(site.sessions, session) == ["outcome_unknown"]


async def _approve(site: Site, session: str) -> None:
    interrupt = await wait_for_agent_snapshot(
        site.sessions,
        session,
        lambda s: next(iter(s.pending_interrupts), None),
        description="a pending approval",
    )
    assert await site.sessions.resolve_interrupt(session, interrupt.interrupt_id, approved=True)


# C03

PLACES = ("model-1", "read-0", "read-1", "model-2", "keyed_write", "model-3")
"""What a walk does: a model call, two reads, a model call, a keyed write, a model call."""


@real_workers
@pytest.mark.parametrize("site", ["sqlite", "dex-pull", "dex-listening"], indirect=True)
async def test_c03_only_what_runs_at_the_kill_is_repeated(site: Site):
    """One session for each moment of a turn, all killed at once: each repeats its own place only.

    What a commit leads to begins at once, so that "after" a Step is "before" the next.
    """
    walks = {f"walk-{m}-{p}": (m, p) for m in ("before", "after") for p in PLACES}
    gates = [site.close_gate(f"{each}-{m}-{p}") for each, (m, p) in walks.items()]
    worker = await site.start_worker()
    for session in walks:
        await site.sessions.start_session(session, "walk")
    await site.sessions.start_session("walk-ended", "walk")
    for gate in gates:
        await gate.wait_until_reached()
    for session, (_, place) in walks.items():
        if place.startswith("read"):
            await _one_is_recorded(site, session)
    await site.settled("walk-ended")
    await site.kill(worker)
    for session, (moment, place) in walks.items():
        site.open_gate(f"{session}-{moment}-{place}")
    await site.start_worker()

    answers = set()
    for session, (moment, place) in {**walks, "walk-ended": ("", "")}.items():
        snapshot = await site.settled(session)
        answers.add(tuple(m.text for m in snapshot.messages if m.role != "user"))
        repeated = [place] if moment == "after" else []
        assert site.model_calls(session) == 3 + any(e.startswith("model") for e in repeated)
        tools = [each for each in repeated if not each.startswith("model")]
        assert sorted(site.effects(session)) == sorted(["read-0", "read-1", "keyed_write", *tools])
    assert answers == {(None, "read 0", "read 1", None, "keyed_write done", "answer to walk")}


async def _one_is_recorded(site: Site, session: str) -> None:
    await wait_for_agent_snapshot(
        site.sessions,
        session,
        lambda s: any(each.is_final for each in s.tool_calls),
        description="the result of the other read",
    )


@no_worker_waits
async def test_c03_a_worker_that_ends_repeats_only_what_ran(engine: Engine):
    """The same walk on a worker that is told to end, cut off in each place of three sessions."""
    gates = {each: Gate() for each in ("look", "put", "model")}

    async def held(call: DeferredToolExecution) -> str:
        if call.flow_id == call.tool_call.tool_name and call.attempt == 1:
            await gates[call.flow_id].pass_through()
        return call.tool_call.tool_name

    class Walker(Agent):
        async def answering(self, turn: AgentTurnContext, place: int) -> None:
            if (turn.flow_id, turn.attempt, place) == ("model", 1, 1):
                await gates["model"].pass_through()

    script = [[ToolRequest("look"), ToolRequest("look")], [ToolRequest("put")], "Done."]
    agent = Walker(script, look=held, put=held)
    sessions = await serve(engine, agent)
    for session in gates:
        await sessions.start_session(session, "Go")
    for gate in gates.values():
        await gate.reached.wait()
    await wait_until("both looks", lambda: len(agent.runs("look")) == 2)
    await replace_worker(engine, agent)
    await ended(engine, sessions, *gates)

    for session in gates:
        assert await outcome(sessions, session) == ["look", "look", "put"]
        assert texts(await sessions.get_agent_snapshot(session))[-1] == "Done."
    counts = {each: agent.model_calls.count(each) for each in gates}
    assert counts == {"look": 3, "put": 3, "model": 4}
    assert agent.runs("look") == ["look"] * 4 + ["put"]  # both were running
    assert agent.runs("put") == ["look", "look", "put", "put"]
    assert agent.runs("model") == ["look", "look", "put"]


# C04


@no_worker_waits
async def test_c04_a_finished_sibling_is_not_run_again(engine: Engine):
    """Four of five are recorded, whichever runs on, when the worker goes: one more run in all."""
    gates = [Gate() for _ in range(5)]

    async def look(call: DeferredToolExecution) -> int:
        number = call.tool_call.arguments
        if call.flow_id == f"s{number}" and call.attempt == 1:
            await gates[number].pass_through()
        return number

    names = ("look", "put", "look", "put", "look")
    requests = [ToolRequest(name, n) for n, name in enumerate(names)]
    agent = Agent([requests, "Done."], look=look, put=look)
    sessions = await serve(engine, agent)
    for number, gate in enumerate(gates):
        await sessions.start_session(f"s{number}", "Go")
        await gate.reached.wait()
        await recorded(sessions, 4, f"s{number}")
    await replace_worker(engine, agent)
    await ended(engine, sessions, *(f"s{number}" for number in range(5)))

    for last in range(5):
        assert await outcome(sessions, f"s{last}") == ["0", "1", "2", "3", "4"]
        ran = [each.tool_call.arguments for each in agent.calls if each.flow_id == f"s{last}"]
        assert sorted(ran) == sorted([*range(5), last])


async def test_c04_a_long_waiting_call_that_ends_runs_no_other(engine: Engine):
    """A call that waited for three days is answered: those beside it are done, and stay so."""
    agent = Agent([[ToolRequest("ask"), ToolRequest("look"), ToolRequest("ask")], "Done."])
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await pending(sessions, 2)
    await recorded(sessions, 1)
    await engine.advance(3 * 86_400)
    await sessions.resolve_interrupt("s", "turn-1.call-3", approved=True)
    await recorded(sessions, 2)
    assert agent.runs() == ["look", "ask"]
    await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await ended(engine, sessions)
    assert agent.runs() == ["look", "ask", "ask"]
    assert await outcome(sessions) == ["call-1", "call-2", "call-3"]


# C06


@pytest.mark.local("the SDK's worker waits for a handler that does not end when it is cancelled")
async def test_c06_a_late_result_does_not_replace_the_next_attempts(engine: Engine):
    """An attempt that is given up answers after its successor has: its answer goes nowhere."""
    late = asyncio.Event()

    async def put(call: DeferredToolExecution) -> str:
        if call.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await late.wait()
        return f"attempt {call.attempt}"

    agent = Agent([[ToolRequest("put"), ToolRequest("ask")], "Done."], put=put)
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await pending(sessions, 1)
    await wait_until("the first attempt", lambda: agent.calls)
    await engine.advance(2 * 3600 + 5)
    await recorded(sessions, 1)
    late.set()
    await engine.settle()
    await sessions.resolve_interrupt("s", "turn-1.call-2", approved=True)
    await ended(engine, sessions)

    assert await outcome(sessions) == ["attempt 2", "call-2"]
    assert agent.runs() == ["put", "put", "ask"]
    assert agent.keys() == {"s/turn-1/call-1", "s/turn-1/call-2"}
    assert await finished(sessions) == ["succeeded", "succeeded"]


@real_workers
@pytest.mark.parametrize("answers", [True, False], ids=["it answers late", "it never answers"])
async def test_c06_a_frozen_workers_late_result_is_refused_and_told(site: Site, answers: bool):
    """SIGSTOP past the lease: the second worker's result stands, and the first one's log says why.

    On SQLite only: the emulator of Dex waits two real minutes for a frozen worker.
    """
    gate = site.close_gate("after-stamp")
    frozen = await site.start_worker()
    await site.sessions.start_session("stamp-1", "write")
    await gate.wait_until_reached()
    await site.shop.freeze(frozen)
    site.open_gate("after-stamp")
    await site.start_worker()
    await site.settled("stamp-1")
    if answers:
        gate.release()
    frozen.signal(signal.SIGCONT)

    warnings = site.shop.folder / f"warnings-{frozen.process.pid}.jsonl"

    def refused() -> list[dict[str, str]]:
        told = [json.loads(line) for line in warnings.read_text().splitlines()]
        return [each for each in told if each["event"] == "dex_agents.step.result_refused"]

    first = (await wait_until("a refused result", refused, timeout=30))[0]
    assert first["session_id"] == "stamp-1"
    assert "of CallTool-1 is no longer the current one" in first["error"]
    effects = site.log.entries("effect")
    assert {each["key"] for each in effects} == {"stamp-1/turn-1/call-1"}
    assert len(effects) > 1
    snapshot = await site.settled("stamp-1")
    (told,) = (m.text for m in snapshot.messages if m.role == "tool")
    assert told == f"stamped by attempt {effects[-1]['attempt']}"


# C07


async def hang(_: DeferredToolExecution) -> None:
    """Be a tool that never returns."""
    await asyncio.Event().wait()


async def time_out(engine: Engine, tool: Any, seconds: float) -> tuple[list[int], list[str]]:
    """Return how often each of four effects ran whose tool timed out, and what was told of it."""
    names = ("look", "put", "pay", "act")
    agent = Agent([[ToolRequest(n) for n in names], "Done."], **dict.fromkeys(names, tool))
    sessions = await serve(engine, agent)
    await sessions.start_session("s", "Go")
    await engine.advance(seconds)
    await ended(engine, sessions)
    assert agent.keys() == {f"s/turn-1/call-{n}" for n in (1, 2, 3, 4)}
    assert await finished(sessions) == ["failed", *["outcome_unknown"] * 3]
    return [agent.runs().count(name) for name in names], await outcome(sessions)


async def test_c07_a_timeout_is_repeated_only_where_that_does_no_harm(engine: Engine):
    """A client gives up waiting after the effect: no once write is tried again."""

    async def give_up(_: DeferredToolExecution) -> None:
        raise TimeoutError("no answer within 30 s")

    runs, told = await time_out(engine, give_up, 600)
    assert runs == [3, 3, 1, 1]
    assert told[0].startswith("The tool call failed: ")
    assert all(each.startswith(UNKNOWN) for each in told[1:])
    assert not any("again" in each.lower() or "retry" in each.lower() for each in told)


@pytest.mark.local("signs of life come in real time on Dex")
async def test_c07_the_steps_own_timeout_is_no_other(engine: Engine):
    """A tool that hangs is cut off after two hours; no third attempt begins after four."""
    runs, told = await time_out(engine, hang, 7 * 3600)
    assert runs == [2, 2, 1, 1]
    assert all("timeout of 7200 s" in each for each in told)


# C10


class Severed:
    """Breaks the connection of a worker to its store at one of its commits.

    What the worker writes after that commit is lost, and it hears of nothing any more.

    Attributes:
        commits: How many there were.
    """

    def __init__(self, store: Any, number: int, *, is_written: bool) -> None:
        self.commits = 0
        self._store = store
        self._write = store.commit
        self._number = number
        self._is_written = is_written

    def __enter__(self) -> Self:
        self._store.commit = self._commit
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._store.commit = self._write

    def _commit(self, commit: Commit) -> None:
        self.commits += 1
        if self.commits < self._number:
            self._write(commit)
        elif self.commits == self._number and self._is_written:
            self._write(structs.replace(commit, done=lambda _: None))


@pytest.mark.local("on Dex the store is the server's, which the worker's death does not touch")
@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after it"])
async def test_c10_no_commit_can_be_half_lost(engine: Engine, is_written: bool):
    """The worker dies at each commit of a turn in turn: what is recorded is never run again."""
    names = ("look", "put", "pay")
    agent = Agent([[ToolRequest(name) for name in names], "Done."])
    for number in itertools.count(2):  # the first one starts the session
        session = f"s{number}"
        sessions = await serve(engine, agent)
        with Severed(engine.backend._store, number, is_written=is_written) as severed:
            await sessions.start_session(session, "Go")
            await engine.settle()
        calls = (await sessions.get_agent_snapshot(session)).tool_calls
        final = {each.tool_name for each in calls if each.is_final}
        before = agent.runs(session)
        await drop_dead(engine.backend, engine.workers[-1])
        if severed.commits < number:
            break
        await serve(engine, agent)
        await engine.advance(600)

        assert texts(await sessions.get_agent_snapshot(session))[-1] == "Done."
        assert engine.queued(session, "ToolCallResults") == []
        assert agent.model_calls.count(session) <= 3
        after = agent.runs(session)
        assert not any(after.count(name) > before.count(name) for name in final)
        assert [after.count(name) <= most for name, most in zip(names, (2, 2, 1), strict=True)] == [
            True
        ] * 3
        told = await outcome(sessions, session)
        assert told[:2] == ["call-1", "call-2"]
        assert told[2] == "call-3" or told[2].startswith(UNKNOWN)
        await engine.retire()
    assert number > 6


# C11


@no_worker_waits
async def test_c11_what_takes_its_worker_along_is_given_up(engine: Engine):
    """Each worker ends while it runs the call: at most three do, then the reason is recorded.

    With SIGKILL for a read: ``test_a_tool_that_kills_its_worker_each_time_is_given_up``.
    """

    class Deadly(Agent):
        async def answering(self, turn: AgentTurnContext, place: int) -> None:
            if turn.flow_id == "model":
                await asyncio.Event().wait()

    names = ("look", "put", "pay")
    agent = Deadly([[ToolRequest(name) for name in names], "Done."], **dict.fromkeys(names, hang))
    sessions = await serve(engine, agent)
    for session in ("tools", "model"):
        await sessions.start_session(session, "Go")
    for tools, models in ((3, 1), (5, 2), (7, 3)):
        await until(
            engine,
            "an attempt of each",
            lambda t=tools, m=models: (
                len(agent.calls) == t and agent.model_calls.count("model") == m
            ),
        )
        await replace_worker(engine, agent)
    await ended(engine, sessions, "tools", "model")

    assert [agent.runs("tools").count(name) for name in names] == [3, 3, 1]
    assert agent.model_calls.count("model") == 3
    told = await outcome(sessions, "tools")
    assert told[0].startswith("The tool call failed: ")
    assert all(each.startswith(UNKNOWN) for each in told[1:])
    assert all("worker" in each.lower() for each in told)
    state = (await sessions.get_agent_snapshot("model")).state
    assert "worker" in state.last_turn_error.lower()
