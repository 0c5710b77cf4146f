"""Inline Steps run within the commit that schedules them, and with it they stand or fall."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager

import pytest

from dex_agents.executor import CommitConflict, SystemClock
from dex_agents.executor.local import LocalBackend
from dex_agents.table import (
    Attribute,
    Decision,
    FlowTable,
    Movement,
    RetryPolicy,
    Step,
    StepOptions,
    Stream,
)
from dex_agents.testing import wait_until
from dex_agents_memory.store import MemoryStore

VALUE = Attribute("Value", str)
LOG = Stream("Log", str, 1024)


class CountingStore(MemoryStore):
    """Counts commits, and refuses the next few."""

    def __init__(self):
        super().__init__(SystemClock())
        self.commits = 0
        self.refusals = 0

    def commit(self, commit):
        if self.refusals:
            self.refusals -= 1
            commit.finish(CommitConflict())
        else:
            self.commits += 1
            super().commit(commit)


class Lab:
    """A flow of the Steps ``Inline`` and ``Act``; they run the function that their input names."""

    def __init__(self):
        self.store = CountingStore()
        self.backend = LocalBackend(self.store, ())
        self.does = {}
        options = StepOptions(retry=RetryPolicy(max_attempts=1))
        rows = [
            Step(
                name,
                self.run,
                input=str,
                options=options,
                next_steps=("Inline", "Act"),
                is_inline=name == "Inline",
            )
            for name in ("Inline", "Act")
        ]
        self.table = FlowTable("Flow", tuple(rows), persistence=(VALUE, LOG))

    async def run(self, context, name):
        found = self.does[name](context)
        return await found if asyncio.iscoroutine(found) else found

    @asynccontextmanager
    async def open(self):
        async with self.backend, self.backend.worker([self.table], grace_seconds=0.0):
            yield

    async def closed(self):
        async def look():
            summary = await self.backend.describe_flow("f")
            return summary if summary.status != "running" else None

        return await wait_until("the end", look)

    async def start(self, name):
        await self.backend.start_flow(self.table, "f", name)

    async def log(self):
        stream = self.backend.read_stream(self.table, "f", "Log", None, follow=False)
        return [each.value async for each in stream]


@pytest.fixture
def lab():
    return Lab()


def ends(_context):
    return Decision.graceful_complete()


async def test_a_row_of_inline_steps_is_one_commit(lab):
    """The one that starts the flow; and the next Step's beginning belongs to it."""
    lab.does = {
        "first": lambda _: Decision.go_to("Inline", "second"),
        "second": lambda _: Decision.go_to("Act", "last"),
        "last": ends,
    }
    async with lab.open():
        await lab.start("first")
        assert (await lab.closed()).status == "completed"
        assert lab.store.commits == 2


async def test_what_a_conflict_refuses_runs_again_on_fresh_state(lab):
    """It does not see what it wrote in vain, and its Stream has no message of that either."""
    runs = []

    def act(_context):
        lab.store.refusals = 1
        return Decision.go_to("Inline", "write")

    def write(context):
        runs.append(context.get(VALUE))
        context.set(VALUE, "written")
        context.write(LOG, "once")
        return Decision.graceful_complete()

    lab.does = {"first": lambda _: Decision.go_to("Act", "act"), "act": act, "write": write}
    async with lab.open():
        await lab.start("first")
        await lab.closed()
        assert runs == [None, None]
        assert await lab.log() == ["once"]


async def test_what_a_worker_finds_is_handed_out_on_record_first(lab):
    """Should the Step bring its worker down, the next worker counts the attempt."""
    found = []

    def look(_context):
        state = lab.store.load("f")
        found.append([each.is_running for each in state.executions.values()])
        return Decision.graceful_complete()

    lab.does = {"look": look}
    async with lab.backend:
        await lab.start("look")
        async with lab.backend.worker([lab.table], grace_seconds=0.0):
            await lab.closed()
    assert found == [[True]]


async def test_one_that_waits_has_failed(lab):
    """It says which Step is at fault, and nothing of it goes on."""
    went_on = []

    async def sleep():
        await asyncio.sleep(0)
        went_on.append(True)

    lab.does = {"sleep": lambda _: sleep()}
    async with lab.open():
        await lab.start("sleep")
        summary = await lab.closed()
        await asyncio.sleep(0.01)
        history = await lab.backend.read_history("f")
    assert summary.status == "failed"
    failure = next(each for each in history if each.event_type == "step_execute_failed")
    assert failure.error_type == "dex_agents.InlineStepWaits"
    assert failure.error == "Inline is inline, and its handler waits for something."
    assert not went_on


async def test_one_that_cancels_itself_has_failed(lab):
    """As any other handler that lets a cancellation out."""

    async def cancel():
        raise asyncio.CancelledError

    lab.does = {"cancel": lambda _: cancel()}
    async with lab.open():
        await lab.start("cancel")
        assert (await lab.closed()).status == "failed"


async def test_one_that_is_cancelled_before_its_turn_never_runs(lab):
    """Of two that begin together the first cancels the second."""
    seen = []

    def first(_context):
        seen.append("first")
        return Decision.go_to("Act", "last").canceling("Inline")

    lab.does = {
        "begin": lambda _: Decision.go_to_many(
            Movement("Inline", "first"), Movement("Inline", "second")
        ),
        "first": first,
        "second": lambda _: seen.append("second"),
        "last": ends,
    }
    async with lab.open():
        await lab.start("begin")
        assert (await lab.closed()).status == "completed"
    assert seen == ["first"]


async def test_an_endless_row_lets_others_have_their_turn(lab):
    """After some dozens, the next one waits for the commit like any Step."""
    rounds = []

    def again(_context):
        rounds.append(True)
        return Decision.go_to("Inline", "again") if len(rounds) < 300 else ends(_context)

    lab.does = {"again": again}
    async with lab.open():
        await lab.start("again")
        assert (await lab.closed()).status == "completed"
    assert len(rounds) == 300
    assert 300 / 65 < lab.store.commits < 10


def test_one_that_exits_ends_the_process():
    """Once what it is a part of is made, so that nothing is left half done."""
    program = """
        import asyncio
        from dex_agents.table import FlowTable, Step
        from dex_agents_memory import MemoryBackend

        async def leave(context, given):
            raise SystemExit(3)

        async def main():
            table = FlowTable("Flow", (Step("Leave", leave, is_inline=True),))
            async with MemoryBackend() as backend, backend.worker([table]):
                await backend.start_flow(table, "f", None)
                print((await backend.describe_flow("f")).status, flush=True)
                await asyncio.sleep(60)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        check=False,
        timeout=30,
        text=True,
    )
    assert done.returncode == 3
    assert done.stderr == ""
