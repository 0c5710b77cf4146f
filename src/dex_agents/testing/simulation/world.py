"""A few processes, one disk, some users, and everything that goes wrong between them."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dex_agents.errors import (
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    RpcLockConflictError,
    StoreError,
)
from dex_agents.executor import SystemClock
from dex_agents.machine import Changes, Phase
from dex_agents.records import AgentUsage
from dex_agents.runner import DeferredToolExecution
from dex_agents.session import AgentSessionOptions, session_table
from dex_agents.table import FlowTable, Step, StepContext
from dex_agents.testing.simulation.agent import ATTEMPT, WITNESS, RandomAgent
from dex_agents.testing.simulation.books import Books
from dex_agents.testing.simulation.faults import Faults
from dex_agents.testing.simulation.invariants import (
    AFTER_COMMIT,
    AT_CALL,
    AT_REST,
    BEGUN_ONCE,
    COMES_TO_REST,
    NOTHING_ESCAPES,
    RECEIPTS,
    SAME_EVERYWHERE,
    Invariant,
    Rule,
)
from dex_agents.testing.simulation.plan import Plan
from dex_agents.testing.simulation.process import Process
from dex_agents.testing.simulation.store import Disk

__all__ = ("Violation", "World", "simulated_table")

_EPOCH = 1_700_000_000.0
_BURST_SECONDS = 1e-5
"""Computing takes time too: no process can do anything for ever in no time at all."""
_LONGEST_CALM = 24 * 3600.0
_DECLARED = (
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    RpcLockConflictError,
    StoreError,
)
"""What a client's calls may raise when the world is as it is here."""


class Violation(Struct, frozen=True):
    """An invariant that did not hold.

    Attributes:
        invariant: Its name.
        words: What it says.
        detail: What contradicted it.
        transition: After how many transitions.
    """

    invariant: str
    words: str
    detail: str
    transition: int


class World:
    """Runs sessions under a plan until they rest, or until an invariant does not hold.

    Everything is drawn from the plan's seed, in separate rows for the schedule,
    the agent, the people and the faults, so that leaving out one kind of fault
    changes as little else as possible.

    Args:
        plan: What to do.
        trace: Told of everything that happens, a line each, or None.
    """

    def __init__(self, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.chance = plan.chance("agent")
        self._schedule = plan.chance("schedule")
        self._people = plan.chance("people")
        self._trace = trace
        self.now = _EPOCH
        self.skew = 0.0
        self.disk = Disk(SystemClock(lambda: self.now))
        self.books = {f"s{n}": Books(f"s{n}") for n in range(plan.sessions)}
        self.transitions = 0
        self.violation: Violation | None = None
        self.processes: list[Process] = []
        self.faults = Faults(plan, self)
        self.is_calm = False
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Process, Callable[[], None]]] = {}
        self._errands = 0  # what people still have to do
        self._restless: set[str] = set()
        self._current: Process | None = None
        self._deadline = math.inf
        WITNESS.set(self)
        self.table = simulated_table(self._people.choice((None, 60, 600)))
        self.lease_seconds = self._people.choice((60.0, 300.0))
        self._worker_options = {
            "lease_seconds": self.lease_seconds,
            "max_concurrent_steps": self._people.choice((1, 2, 16)),
            "max_resident_flows": self._people.choice((1, 8)),
            "grace_seconds": self._people.choice((0.0, 5.0)),
        }
        for _ in range(self._people.choice((1, 2, 2, 3))):
            self.add_process(serves=True)
        self.add_process(serves=False)
        for books in self.books.values():
            self._plan_session(books, plan)

    # Time

    def run(self) -> None:
        """Let everything happen."""
        while self.violation is None and not self._is_over():
            when, process = self._next()
            if process is None and when > self._deadline:
                restless = ", ".join(repr(self.books[each].rows) for each in self._restless)
                self.violate(COMES_TO_REST, restless or f"{self._errands} errands are left")
            elif process is None:
                self._pass_time(when)
            else:
                self._run(process)
        for process in self.processes:
            process.kill()

    def _next(self) -> tuple[float, Process | None]:
        """Return a process that can run now, or None and when something happens next."""
        ready: list[Process] = []
        when = self._later[0][0] if self._later else math.inf
        for process in self.processes:
            at = max(process.loop.next_call_at(), process.frozen_until)
            if at <= self.now:
                ready.append(process)
            elif at < when:
                when = at
        if not ready or (self._later and self._later[0][0] <= self.now):
            return when, None
        return when, ready[0] if len(ready) == 1 else self._schedule.choice(ready)

    def _pass_time(self, when: float) -> None:
        self.now = max(self.now, when)
        while self._later and self._later[0][0] <= self.now:
            heapq.heappop(self._later)[2]()

    def _run(self, process: Process) -> None:
        count = 1 if self._schedule.random() < 0.25 else self._schedule.randint(2, 60)
        self._current = process
        self.now += _BURST_SECONDS
        process.loop.run(count)
        self._current = None
        if self._restless:
            self.faults.strike(count)

    def later(self, delay: float, callback: Callable[[], None]) -> None:
        """Let something happen outside the processes after a delay in seconds."""
        heapq.heappush(self._later, (self.now + delay, next(self._numbers), callback))

    def calm(self) -> None:
        """End all faults for good, and give everything a day to come to rest."""
        self.is_calm = True
        self._deadline = self.now + _LONGEST_CALM
        for books in self.books.values():
            for interrupt in books.pending:
                self._answer(books, interrupt.interrupt_id, self._people.random() < 0.5)

    # Processes

    def add_process(self, *, serves: bool) -> None:
        """Start a process, with a worker or only with clients."""
        process = Process(self, f"p{next(self._numbers)}")
        self.processes.append(process)
        if serves:
            process.serve(lambda: self._has_stopped(process), **self._worker_options)

    def kill(self, process: Process) -> None:
        """Kill a process, if it lives; another comes in its place after a while."""
        if not process.is_alive:
            return
        self.note(f"{process.name} is killed")
        self.processes.remove(process)
        process.kill()
        for number, (where, lost) in list(self._jobs.items()):
            if where is process:
                del self._jobs[number]
                lost()
        delay = self._schedule.choice((0.0, 0.1, 1.0, 20.0))
        self.later(delay, lambda: self.add_process(serves=process.serves))

    def _has_stopped(self, process: Process) -> None:
        """Let a new worker come for one that was told to stop; the old process ends."""
        self.later(0.0, lambda: self.kill(process))

    def write_delay(self) -> float:
        """Return how long a group of writes takes, in seconds."""
        return self.faults.write_delay()

    def failed(self, process: Process, context: dict[str, Any]) -> None:
        """Learn of an error that nobody caught."""
        self.violate(NOTHING_ESCAPES, f"{process.name}: {context}")

    def wrote(self, process: Process) -> None:
        """Let the other processes notice, each in its own time."""
        for other in self.processes:
            if other is not process:
                for delay in self.faults.notices():
                    other.notice(delay)

    # Keeping the books

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        if self._trace is not None:
            self._trace(f"{self.now - _EPOCH:12.3f}  {self.transitions:5}  {line}")

    def violate(self, invariant: Invariant, detail: str) -> None:
        """Say that an invariant does not hold; the first one counts."""
        if self.violation is None:
            self.violation = Violation(invariant.name, invariant.words, detail, self.transitions)
            self.note(f"violated: {invariant.name}: {detail}")
        if self._current is not None:
            self._current.loop.interrupt()

    def _check(self, rules: Sequence[Rule], books: Books, *seen: Any) -> None:
        for rule in rules:
            for detail in rule.find(books, *seen):
                self.violate(rule, f"{books.flow_id}: {detail}")

    def committed(self, process: Process, flow_id: str, changes: Changes) -> None:
        """Check every invariant after a commit."""
        self.transitions += 1
        books = self.books[flow_id]
        seen = books.take(changes, process.clock.latest)
        if self._trace is not None:
            self.note(f"{process.name} {books.rows}")
        self._check(AFTER_COMMIT, books, seen)
        if books.is_at_rest:
            self._restless.discard(flow_id)
        else:
            self._restless.add(flow_id)
        asked = {each.interrupt_id for each in seen.pending_before}
        for interrupt in books.pending:
            if interrupt.interrupt_id not in asked:
                self._plan_answers(books, interrupt.interrupt_id)

    def begun(self, context: StepContext, phase: Phase) -> None:
        """Check what must hold when a handler begins."""
        books = self.books[context.flow_id]
        key = (context.step_execution_id, phase, context.attempt)
        ATTEMPT.set((context.step_execution_id, context.attempt))
        if key not in books.handed_out:
            self.violate(BEGUN_ONCE, f"{context.flow_id}: {key} began before its commit")
        if key in books.begun:
            self.violate(BEGUN_ONCE, f"{context.flow_id}: {key} began twice")
        books.begun.add(key)

    # What the agent does

    def model_answered(self, flow_id: str, attempt: tuple[str, int], usage: AgentUsage) -> None:
        """Keep what a model call cost."""
        self.books[flow_id].costs[attempt] = usage

    def tool_called(self, call: DeferredToolExecution) -> None:
        """Check what must hold when a tool's body runs."""
        books = self.books[call.flow_id]
        books.keys[call.idempotency_key] += 1
        self.note(f"tool {call.idempotency_key}, attempt {call.attempt}")
        self._check(AT_CALL, books, call)

    async def perhaps_crash(self) -> None:
        """Kill the process that this runs in, if a fault is due in a tool."""
        process = self._current
        if process is not None and self.faults.strikes_in_tool():
            self.later(0.0, lambda: self.kill(process))
            process.loop.interrupt()
            process.frozen_until = math.inf
            await process.loop.create_future()

    # What people do

    def _plan_session(self, books: Books, plan: Plan) -> None:
        people = self._people
        first = "m0" if people.random() < 0.5 else None
        self.later(people.uniform(0, 5), self._errand(self._start, books, first))
        for number in range(1, plan.messages + 1):
            at = people.choice((0.0, people.uniform(0, 60), people.uniform(0, 600)))
            self.later(at, self._errand(self._send, books, f"m{number}"))
        if people.random() < 0.05:
            self.later(people.uniform(5, 300), self._errand(self._stop, books))

    def _errand(self, do: Callable[..., None], *args: Any) -> Callable[[], None]:
        """Count something that people have yet to do."""
        self._errands += 1

        def begin() -> None:
            self._errands -= 1
            do(*args)

        return begin

    def _plan_answers(self, books: Books, interrupt_id: str) -> None:
        people = self._people
        answers = 1 if self.is_calm else people.choice((0, 1, 1, 2))
        for _ in range(answers):
            delay = people.choice((0.0, 1.0, people.uniform(0, 100), people.uniform(0, 1000)))
            do = self._errand(self._answer, books, interrupt_id, people.random() < 0.6)
            self.later(delay, do)

    def _job(
        self,
        work: Callable[[Process], Awaitable[Any]],
        done: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        """Let somebody do something in any process; it may fail, or die with the process."""
        if not self.processes:
            self.later(1.0, self._errand(self._job, work, done, failed))
            return
        process = self._people.choice(self.processes)
        number = next(self._numbers)

        def ended(error: BaseException | None) -> None:
            if self._jobs.pop(number, None) is None:
                return
            if error is None:
                done()
                return
            if not isinstance(error, _DECLARED):
                self.violate(NOTHING_ESCAPES, f"a client got {error!r}")
            failed()

        self._jobs[number] = (process, failed)
        process.spawn(work, ended, process)

    def _start(self, books: Books, first: str | None) -> None:
        if books.rows.header.version:
            return
        if first is not None:
            books.uncertain.add(first)

        async def work(process: Process) -> None:
            await process.client.start_session(books.flow_id, first)

        def done() -> None:
            if not books.rows.header.version:
                self.violate(RECEIPTS, f"{books.flow_id} was started, and is not there")

        self._job(work, done, lambda: self.later(1.0, self._errand(self._start, books, first)))

    def _send(self, books: Books, text: str) -> None:
        if not books.rows.header.version:
            self.later(1.0, self._errand(self._send, books, text))
            return
        books.uncertain.add(text)

        async def work(process: Process) -> None:
            await process.client.send_user_message(books.flow_id, text)

        def done() -> None:
            self.note(f"{books.flow_id} {text} was accepted")
            books.accepted.add(text)
            is_kept = books.texts[text] or text in books.queued_texts()
            if books.rows.header.status == "running" and not is_kept:
                self.violate(RECEIPTS, f"{books.flow_id}: {text!r} is not there")

        self._job(work, done, lambda: None)

    def _answer(self, books: Books, interrupt_id: str, approved: bool) -> None:
        def is_pending() -> bool:
            return any(each.interrupt_id == interrupt_id for each in books.pending)

        results: list[bool] = []

        async def work(process: Process) -> None:
            results.append(
                await process.client.resolve_interrupt(
                    books.flow_id, interrupt_id, approved=approved
                )
            )

        def done() -> None:
            if results[0] and interrupt_id not in books.answered:
                self.violate(RECEIPTS, f"{books.flow_id}: no answer to {interrupt_id} is there")
            failed()

        def failed() -> None:
            if self.is_calm and is_pending() and books.rows.header.status == "running":
                self.later(1.0, self._errand(self._answer, books, interrupt_id, approved))

        self._job(work, done, failed)

    def _stop(self, books: Books) -> None:
        async def work(process: Process) -> None:
            await process.client.stop_session(books.flow_id, "enough")

        def done() -> None:
            if books.rows.header.status == "running":
                self.violate(RECEIPTS, f"{books.flow_id} was stopped, and runs")

        self._job(work, done, lambda: None)

    # The end

    def _is_over(self) -> bool:
        if self._restless or self._errands or self._jobs:
            return False
        for books in self.books.values():
            self._check(AT_REST, books)
            for detail in self._differences(books):
                self.violate(SAME_EVERYWHERE, f"{books.flow_id}: {detail}")
        return True

    def _differences(self, books: Books) -> list[str]:
        stored = self.disk.flows.load(books.flow_id)
        if stored is None:
            return ["it is not stored"]
        found = []
        replayed = books.rows
        replayed.header = replace(replayed.header, version=stored.header.version)  # after claims
        if stored != replayed:
            found.append(f"stored is {stored}, replayed {replayed}")
        reader = self.disk.flows.reader(books.flow_id)
        found += [n for n, raw in books.attributes.items() if reader.get(n) != raw]
        for process in self.processes:
            handle = process.worker.resident(books.flow_id) if process.worker else None
            if handle is None or not handle.is_idle:
                continue  # what it has in memory is ahead of the rows, or about to be read anew
            if handle.durable_version != stored.header.version:
                continue
            if handle.state != stored:
                found.append(f"{process.name} has {handle.state}, stored is {stored}")
            attributes = handle.attributes
            found += [n for n, raw in books.attributes.items() if attributes.raw(n) != raw]
        return found


@functools.cache
def simulated_table(patience: float | None) -> FlowTable:
    """Return the session's table, of which the world sees every handler begin."""
    deadline = None if patience is None else timedelta(seconds=patience)
    table = session_table(
        RandomAgent(),
        flow_type="Simulated",
        options=AgentSessionOptions(interrupt_deadline=deadline),
    )
    watched = tuple(_watched(row) for row in table.steps)
    return FlowTable(table.flow_type, watched, table.rpcs, table.persistence)


def _watched(row: Step[Any]) -> Step[Any]:
    if row.is_inline:
        return row  # it may begin before its attempt is durable, for it has no effect

    async def execute(context: StepContext, given: Any) -> Any:
        WITNESS.get().begun(context, Phase.EXECUTE)
        return await row.execute(context, given)

    async def wait_for(context: StepContext, given: Any) -> Any:
        assert row.wait_for is not None
        WITNESS.get().begun(context, Phase.WAIT_FOR)
        return await row.wait_for(context, given)

    return replace(row, execute=execute, wait_for=wait_for if row.wait_for else None)
