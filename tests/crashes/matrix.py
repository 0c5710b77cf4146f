"""Kills a worker at each point of each Step, lets another one finish, and says what came of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dex_agents import AgentSessionClient, AgentSnapshot
from dex_agents.backend import Backend, open_backend
from dex_agents.errors import DexAgentsError
from dex_agents.machine import Begin, ExecuteReturned, Phase, WaitReturned
from dex_agents.testing import InvocationLog, wait_until
from dex_agents_dex.emulator import DexEmulator
from tests.crashes.scenarios import FLOW_TYPE, MAX_ATTEMPTS, SCENARIOS
from tests.crashes.worker import POINTS, Bomb, serve

__all__ = ("ENGINES", "ROWS", "Row", "cells", "page", "points")

ENGINES = ("SQLite", "Dex")
_PATIENCE = 60.0
_EXECUTE_ENDED = ("step_execute_completed", "step_execute_failed")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crashes.worker", "dex_agents_dex", "dex_agents_sqlite"])


class Row(Struct, frozen=True):
    """A Step in a scenario: what is killed there.

    Attributes:
        step: The Step.
        scenario: The session's ID, and what happens in it.
        then: The Step that is next.
        phase: Which half of the Step.
        then_phase: Which half of the Step that is next.
    """

    step: str
    scenario: str
    then: str
    phase: Phase = Phase.EXECUTE
    then_phase: Phase = Phase.EXECUTE

    @property
    def title(self) -> str:
        """How the row is called in the table."""
        half = ", `wait_for`" if self.phase is Phase.WAIT_FOR else ""
        return f"`{self.step}`{half} | {self.scenario}"


class Cell(Struct, frozen=True):
    """What a crash has left behind.

    Attributes:
        model_calls: How often the model really ran.
        tool_calls: How often the tool really ran.
        status: What the model was told of the tool call, or None without a tool.
        is_answered: Whether the turn ended with an answer.
    """

    model_calls: int
    tool_calls: int
    status: str | None
    is_answered: bool

    @property
    def text(self) -> str:
        """What the table says."""
        words = [f"model {self.model_calls}"]
        if self.status is not None:
            words.append(f"tool {self.tool_calls}: {self.status}")
        words.append("answered" if self.is_answered else "turn failed")
        return ", ".join(words)


_WAIT = Phase.WAIT_FOR
ROWS = (
    Row("StartAgentSession", "answer", "RunModel"),
    Row("RunModel", "answer", "AwaitUserMessage", then_phase=_WAIT),
    Row("AwaitUserMessage", "later", "AwaitUserMessage", _WAIT),
    Row("AwaitUserMessage", "later", "RunModel"),
    Row("CallTool", "read", "ResumeTurn"),
    Row("CallTool", "idempotent_write", "ResumeTurn"),
    Row("CallSingleAttemptTool", "non_idempotent_write", "ResumeTurn"),
    Row("CallSingleAttemptTool", "unclassified", "ResumeTurn"),
    Row("AwaitToolApproval", "approval", "AwaitToolApproval", _WAIT),
    Row("AwaitToolApproval", "approval", "CallSingleAttemptTool"),
    Row("CallSingleAttemptTool", "approval", "ResumeTurn"),
    Row("ResumeTurn", "approval", "ResumeTurn", _WAIT),
    Row("ResumeTurn", "read", "RunModel"),
    Row("RecordToolFailure", "broken read", "ResumeTurn"),
    Row("RecordToolFailure", "broken idempotent_write", "ResumeTurn"),
    Row("RecordToolOutcomeUnknown", "broken non_idempotent_write", "ResumeTurn"),
    Row("RecordTurnFailure", "broken model", "AwaitUserMessage", then_phase=_WAIT),
)
_WITH_EFFECT = ("RunModel", "CallTool", "CallSingleAttemptTool")
_NOT_ON_DEX = ("after the start marker",)
_ONLY_WITH_EFFECT = ("after the start marker", "after the effect")


def points(engine: str, row: Row) -> tuple[str, ...]:
    """Return the points that a Step has on an engine."""
    if row.step in _WITH_EFFECT:
        return tuple(each for each in POINTS if engine != "Dex" or each not in _NOT_ON_DEX)
    return tuple(each for each in POINTS if each not in _ONLY_WITH_EFFECT)


async def cells(engine: str, row: Row, folder: Path) -> dict[str, str]:
    """Return what a row of the table says, by point.

    Args:
        engine: One of `ENGINES`.
        row: What is killed.
        folder: An empty one.

    Raises:
        AssertionError: A session did not keep what every cell must keep.
    """
    names = ("no crash", *points(engine, row))
    async with asyncio.TaskGroup() as group:  # most of a cell is waiting: for a lease, for a retry
        running = {
            name: group.create_task(_cell(engine, row, name, folder / name.replace(" ", "-")))
            for name in names
        }
    found = {name: task.result() for name, task in running.items()}
    plain = found["no crash"]
    for name, cell in found.items():
        repeated = (cell.model_calls - plain.model_calls, cell.tool_calls - plain.tool_calls)
        assert sum(map(abs, repeated)) <= 1, f"{name}: too much ran again"
    return {name: cell.text for name, cell in found.items()}


async def _cell(engine: str, row: Row, point: str, folder: Path) -> Cell:
    folder.mkdir(parents=True)  # noqa: ASYNC240 - nothing else runs yet
    async with _engine(engine, folder) as (url, emulator), open_backend(url) as backend:
        sessions = AgentSessionClient(backend, FLOW_TYPE)
        driver = asyncio.create_task(_drive(sessions, row.scenario))
        tasks: list[asyncio.Task[Any]] = [driver]
        try:
            if point in POINTS:
                bomb = Bomb(row.step, row.phase, point, (row.then, row.then_phase))
                with _worker(url, folder, bomb) as doomed:
                    if emulator is not None:
                        tasks.append(_let_the_engine_kill(emulator, doomed, bomb))
                    await wait_until("the kill", lambda: not doomed.is_alive(), timeout=_PATIENCE)
                    assert doomed.exitcode == -signal.SIGKILL
            with _worker(url, folder, None):
                snapshot = await driver
        finally:
            for task in tasks:
                task.cancel()
        return await _judged(backend, sessions, row, snapshot, folder)


@contextmanager
def _worker(url: str, folder: Path, bomb: Bomb | None) -> Iterator[Any]:
    process = _context.Process(target=serve, args=(url, folder, bomb), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


@asynccontextmanager
async def _engine(engine: str, folder: Path) -> AsyncIterator[tuple[str, DexEmulator | None]]:
    if engine == "SQLite":
        yield f"sqlite:///{folder / 'sessions.db'}", None
        return
    async with DexEmulator(time_scale=0.05, dispatch_wait=_PATIENCE) as emulator:
        yield f"dex://{emulator.address}", emulator


def _let_the_engine_kill(emulator: DexEmulator, worker: Any, bomb: Bomb) -> asyncio.Task[None]:
    """Kill the worker where only the engine sees it; return a task to cancel at the end."""
    flows = emulator._flows
    apply, perform = flows.apply, flows.perform

    dying = asyncio.Event()
    late: list[asyncio.Task[None]] = []
    is_gone = asyncio.create_task(_gone(emulator, dying))

    def kill(point: str) -> None:
        if point == bomb.point and not dying.is_set():
            dying.set()
            os.kill(worker.pid, signal.SIGKILL)

    def watched_apply(run: Any, event: Any, payload: Any = None) -> Any:
        ends = ExecuteReturned if bomb.phase is Phase.EXECUTE else WaitReturned
        if isinstance(event, ends) and event.execution_id.rpartition("-")[0] == bomb.step:
            kill("after the commit")
        return apply(run, event, payload)

    def watched_perform(run: Any, effect: Any) -> None:
        if isinstance(effect, Begin):
            begun = (effect.execution.step, effect.execution.phase)
            if begun == (bomb.step, bomb.phase):
                kill("before the hand-out")
        if dying.is_set():
            late.append(asyncio.create_task(perform_late(run, effect)))
        else:
            perform(run, effect)

    async def perform_late(run: Any, effect: Any) -> None:
        """Hand out once it is seen that nobody is there: who is dying may get a call or not."""
        await is_gone
        perform(run, effect)

    flows.apply, flows.perform = watched_apply, watched_perform
    return is_gone


async def _gone(emulator: DexEmulator, dying: asyncio.Event) -> None:
    """Wait until the engine has seen that its dying worker is gone."""
    await dying.wait()
    streams = emulator._pull._streams
    old = {stream for queue in streams.values() for stream in queue}
    await wait_until(
        "the streams to end", lambda: not any(old & queue.keys() for queue in streams.values())
    )


async def _drive(sessions: AgentSessionClient, name: str) -> AgentSnapshot:
    """Play the user until the turn has ended, whoever dies meanwhile."""
    await sessions.start_session(name, None if SCENARIOS[name].later else "go")

    async def look() -> AgentSnapshot | None:
        with suppress(DexAgentsError):  # on Dex a call needs a living worker
            snapshot = await sessions.get_agent_snapshot(name)
            state = snapshot.state
            if SCENARIOS[name].later and not await _has_sent(sessions, name):
                await sessions.send_user_message(name, "go")
            if snapshot.pending_interrupts and await _all_wait(sessions, name):
                (question,) = snapshot.pending_interrupts
                await sessions.resolve_interrupt(name, question.interrupt_id, approved=True)
            if state and state.turn_number and state.status == "waiting_for_user_message":
                return snapshot
        return None

    return await wait_until(f"the end of {name}", look, timeout=_PATIENCE)


async def _has_sent(sessions: AgentSessionClient, name: str) -> bool:
    """Return whether a message is there, also when its sender was told of an error."""
    history = await sessions.read_history(name)
    return any(each.step_type == "send_user_message" for each in history)


async def _all_wait(sessions: AgentSessionClient, name: str) -> bool:
    """Return whether everything waits, so that a kill hits nothing that runs beside its Step."""
    history = await sessions.read_history(name)
    waiting = [each for each in history if each.event_type == "step_wait_for_completed"]
    return {"AwaitToolApproval", "ResumeTurn"} <= {each.step_type for each in waiting}


async def _judged(
    backend: Backend, sessions: AgentSessionClient, row: Row, snapshot: AgentSnapshot, folder: Path
) -> Cell:
    """Return a cell, once what must hold in all of them holds."""
    log = InvocationLog(folder / "invocations.jsonl")
    scenario = SCENARIOS[row.scenario]
    model, tools = log.count("model"), log.entries("tool")
    assert snapshot.state is not None  # the turn has ended
    is_answered = snapshot.state.last_turn_error is None
    _check_messages(snapshot, 1 if scenario.tool is not None and is_answered else 0)
    assert len({each["key"] for each in tools}) <= 1
    assert len(tools) <= (1 if scenario.is_once_only else MAX_ATTEMPTS), "a write was doubled"
    statuses = {tuple(each["statuses"]) for each in log.entries("told")}
    assert len(statuses) <= 1, "the model was told different things of one call"
    history = await backend.read_history(row.scenario)
    assert not any(each.event_type == "flow_closed" for each in history)
    ended = [each.step_execution_id for each in history if each.event_type in _EXECUTE_ENDED]
    assert len(set(ended)) == len(ended), "a Step execution ended twice"
    status = None
    if scenario.tool is not None:
        ((status,),) = statuses or {("not told",)}
    return Cell(model, len(tools), status, is_answered)


def _check_messages(snapshot: AgentSnapshot, call_count: int) -> None:
    """Check that no message is lost or doubled, and that each tool call has one result."""
    messages = snapshot.messages
    assert [m.sequence for m in messages] == [*range(1, len(messages) + 1)]
    said = [m.text for m in messages if m.role == "user" and not m.text.startswith("[Dex]")]
    assert (said, snapshot.queued_message_count) == (["go"], 0), "a message is lost or doubled"
    asked = [c["id"] for m in messages for c in m.framework_item.get("tool_calls") or ()]
    results = [m.framework_item["tool_call_id"] for m in messages if m.role == "tool"]
    assert asked == results, "a tool call has not exactly one result"
    assert len(results) == call_count


def page(tables: dict[str, dict[Row, dict[str, str]]]) -> str:
    """Return the document: for each engine a table of points by Step."""
    lines = [*_PREAMBLE]
    for engine, rows in tables.items():
        columns = ["no crash", *(p for p in POINTS if engine != "Dex" or p not in _NOT_ON_DEX)]
        lines += [f"## {engine}", "", f"| Step | session | {' | '.join(columns)} |"]
        lines.append("| --- | --- |" + " --- |" * len(columns))
        for row, found in rows.items():
            plain = found["no crash"]
            shown = (
                plain if name == "no crash" else _difference(found.get(name), plain)
                for name in columns
            )
            lines.append(f"| {row.title} | {' | '.join(shown)} |")
        lines.append("")
    return "\n".join(lines)


def _difference(cell: str | None, plain: str) -> str:
    if cell is None:
        return ""
    return "the same" if cell == plain else f"**{cell}**"


_PREAMBLE = (
    "# Crashes by Step",
    "",
    "A worker process is killed with SIGKILL at one point of one Step, and another one finishes",
    "the session. Each cell says how often the model and the tool really ran, what the model was",
    "told of the call, and how the turn ended; **bold** is what differs from a run without a",
    "crash. At most the call that was running is repeated, and what may not run twice never is:",
    "then its outcome is unknown.",
    "",
    "`python -m tests.crashes` makes this page again. A test compares every cell.",
    "",
    "- *before the hand-out*: the attempt is decided on, and not durable yet;",
    "- *after the start marker*: that it began is durable, and its handler is not called yet. A",
    "  worker on Dex has no such moment: the engine records that it handed a call out. Nor has",
    "  an inline Step, one that calls no runner, on SQLite: it begins and ends in one commit;",
    "- *in the handler*: where a runner is called, before it does anything;",
    "- *after the effect*: the model or the tool has run, and nothing of it is recorded. Steps",
    "  that call no runner have no effect;",
    "- *before the commit*: the handler has returned;",
    "- *after the commit*: its result is durable (on Dex: has reached the engine), and nothing",
    "  that follows has begun;",
    "- *before the next Step*: the next handler is called. On SQLite that of an inline Step is",
    "  called before the commit, of which it is a part.",
    "",
    "Dex means the [emulator](dex-emulator.md) with a worker that pulls. Where the engine is the",
    "one who kills, it goes on once it has seen that the worker is gone. A call that it hands to",
    "one which is dying counts as begun, since nobody can tell otherwise.",
    "",
)
