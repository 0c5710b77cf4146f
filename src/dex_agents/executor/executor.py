"""The worker of the local backends: owns flows, drives the machine over a store, runs handlers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from dex_agents import signals
from dex_agents.errors import (
    DexAgentsError,
    StoreCorruptError,
    StoredRecordError,
    StoreError,
    StoreLostError,
)
from dex_agents.executor.attempt import Attempt
from dex_agents.executor.clock import Alarm, StepWatch
from dex_agents.executor.handle import FlowHandle, Served
from dex_agents.executor.store import LONGEST_LEASE_SECONDS, Store, StreamAppend
from dex_agents.executor.watchdog import Watchdog
from dex_agents.machine import (
    Event,
    Execution,
    Failure,
    FlowState,
    FlowStatus,
    Machine,
    TableRules,
)
from dex_agents.table import FlowTable
from dex_agents.telemetry import Telemetry

__all__ = ("Executor",)

T = TypeVar("T")

_CLAIM = 64
"""How many flows are claimed at once."""

WORKER_STOPPED = Failure("The worker was stopped during this attempt.", "dex_agents.WorkerStopped")


class Executor:
    """One worker.

    Args:
        store: Where its flows are kept.
        tables: The flows that it serves.
        telemetry: Watches every attempt.
        max_concurrent_steps: How many attempts run at once.
        lease_seconds: How long its flows stay its own without a renewal. After
            its death others take them over within this time. At most
            `LONGEST_LEASE_SECONDS`.
        max_resident_flows: How many idle flows stay in memory.
    """

    def __init__(
        self,
        store: Store,
        tables: Iterable[FlowTable],
        telemetry: Telemetry,
        *,
        max_concurrent_steps: int = 256,
        lease_seconds: float = 15.0,
        max_resident_flows: int = 1024,
    ) -> None:
        if not 0 < lease_seconds <= LONGEST_LEASE_SECONDS:
            raise ValueError(f"lease_seconds must be above 0 and at most {LONGEST_LEASE_SECONDS:g}")
        self.worker = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.store = store
        self._served = {
            table.flow_type: Served(table, Machine(TableRules(table))) for table in tables
        }
        self._telemetry = telemetry
        self._max_slots = max_concurrent_steps
        self._taken = 0
        self._lease_seconds = lease_seconds
        self._max_resident = max_resident_flows
        self._handles: dict[str, FlowHandle] = {}
        self._starved: dict[str, None] = {}
        self._is_stopping = False
        self._is_claiming = False
        self._is_feeding = False
        self._tasks: list[asyncio.Task[None]] = []
        self._context = contextvars.copy_context()
        self._context.run(telemetry.clear)
        self._watchdog = Watchdog(store.clock.steady)
        self._alarm: Alarm | None = None
        self._clock_steps = StepWatch(store.clock)
        self._claims_from = 0.0
        self._store_trouble: str | None = None
        self._ended = asyncio.Event()
        self._end_of_store: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()

    # Life

    async def start(self) -> None:
        """Take a lease and begin to serve."""
        self.store.renew(self.worker, self._lease_seconds)
        self._tasks = [
            asyncio.create_task(self._renew_lease(), name="dex-agents lease"),
            asyncio.create_task(self._look_for_work(), name="dex-agents worker"),
        ]

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Finish what runs, or after a grace period hand it over, and give every flow back.

        An attempt that the grace period cuts off counts as failed, never as
        done: what may run again does so on another worker.
        """
        self._is_stopping = True
        if self._end_of_store.done():
            grace_seconds = 0.0  # no result can be kept any more
        deadline = asyncio.get_running_loop().time() + grace_seconds
        await self._wait_until(lambda h: not h.attempts and h.is_settled, deadline)
        for handle in list(self._handles.values()):
            for attempt in list(handle.attempts.values()):
                attempt.abort(WORKER_STOPPED)
        if not self._end_of_store.done():
            await self._wait_until(lambda h: h.is_settled, deadline + 2.0)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._alarm is not None:
            self._alarm.cancel()
        for handle in list(self._handles.values()):
            handle.close()
        self._handles.clear()
        self._watchdog.close()
        released = asyncio.Event()
        self.store.release(self.worker, lambda _error: released.set())
        await released.wait()  # so that whoever starts next finds the flows free

    async def end_of_store(self) -> StoreError:
        """Wait until the store is lost or damaged, so that serving it is at an end; say why.

        A disk that is full or a lock of another program is not the end: the
        worker tries again by itself.
        """
        return await asyncio.shield(self._end_of_store)

    def running(self) -> list[str]:
        """Return which attempts run now, as ``"<flow>: <Step>-<n>, attempt <m>"``."""
        return [
            f"{flow_id}: {each.execution.id}, attempt {each.execution.attempt}"
            for flow_id, handle in self._handles.items()
            for each in handle.attempts.values()
        ]

    async def _wait_until(self, is_done: Callable[[FlowHandle], bool], deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while not all(is_done(handle) for handle in self._handles.values()):
            if loop.time() >= deadline:
                return
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):  # a commit does not set it
                    await self._ended.wait()

    async def _renew_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            self.store.renew(self.worker, self._lease_seconds)

    async def _look_for_work(self) -> None:
        """Look whenever another process writes, and now and then whether a lease has ended."""
        while True:
            self._look_around()
            await self.store.changed_elsewhere.wait(self._lease_seconds / 3)

    def _look_around(self) -> None:
        try:
            self._notice_step()
            self._follow_changes()
            self.look()
            self._set_alarm()
            self._store_trouble = None
        except StoreError as error:
            self._meet_store_trouble(error)
        except Exception as error:  # noqa: BLE001 - one fault must not stop the worker
            context = {"message": "A dex-agents worker met a fault", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _notice_step(self) -> None:
        """When the clock was set, keep what is this worker's, and do what is due by the new time.

        To others every lease seems to have ended, or to last too long. Each worker
        renews its own at once and leaves the others the time to do the same.
        """
        if not self._clock_steps.has_stepped():
            return
        self.store.renew(self.worker, self._lease_seconds)
        self._claims_from = self.store.clock.steady.now() + self._lease_seconds / 3
        for handle in list(self._handles.values()):
            handle.tick()

    def _set_alarm(self) -> None:
        """Look again when the next Timer of a flow is due that nobody has in memory."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        wake_at = self.store.next_wake(tuple(self._served))
        if wake_at is not None:
            self._alarm = self.store.clock.call_at(wake_at, self._look_around)

    # Flows in

    def serves(self, flow_type: str) -> bool:
        """Return whether flows of this type are run here."""
        return flow_type in self._served and not self._is_stopping

    def resident(self, flow_id: str) -> FlowHandle | None:
        """Return the flow if this worker owns it and has it in memory."""
        return self._handles.get(flow_id)

    def found(self, flow_id: str, flow_type: str) -> FlowHandle:
        """Return a handle for a flow that is about to be started here."""
        return self._adopt(FlowState.absent(flow_id), flow_type)

    def wake(self, flow_id: str) -> None:
        """Take up a flow that this process has changed in the store."""
        with contextlib.suppress(StoreError):
            owned = self.store.owned_versions(self.worker, [flow_id])
            if flow_id in owned and flow_id not in self._handles and not self._is_stopping:
                self._take_over(flow_id)
        self.look()

    def look(self) -> None:
        """Claim flows that need a worker now, as far as there are slots."""
        if self._is_stopping or self._is_claiming or self.free_slots() <= 0:
            return
        self._notice_step()
        if self.store.clock.steady.now() < self._claims_from:
            return  # looked for again shortly
        self._is_claiming = True
        types = tuple(self._served)
        limit = min(self.free_slots(), _CLAIM)
        self.store.claim(self.worker, self._lease_seconds, types, limit, self._claimed)

    def _claimed(self, flow_ids: list[str]) -> None:
        self._is_claiming = False
        for flow_id in flow_ids:
            if flow_id not in self._handles and not self._is_stopping:
                self._take_over(flow_id)
        if flow_ids:
            self.look()

    def _take_over(self, flow_id: str) -> None:
        try:
            state = self.store.load(flow_id)
            if state is None or state.header.status is not FlowStatus.RUNNING:
                return
            flow_type = state.header.flow_type
            if flow_type not in self._served:  # its row said otherwise: the file is damaged
                raise StoredRecordError("flow header", f"its flow type is {flow_type!r}")
            if self._adopt(state, flow_type).take_over():
                self._telemetry.warn(signals.SESSION_TAKEN_OVER, session_id=flow_id)
                self._telemetry.count(signals.LEASE_TAKEOVERS, 1)
        except DexAgentsError as error:
            # One flow that cannot be read must not keep the others waiting.
            self._telemetry.warn(signals.SESSION_UNREADABLE, session_id=flow_id, error=str(error))

    def _adopt(self, state: FlowState, flow_type: str) -> FlowHandle:
        if len(self._handles) >= self._max_resident:
            self._evict()  # before the new one comes, which is idle as yet
        handle = FlowHandle(self, self._served[flow_type], state)
        self._handles[handle.flow_id] = handle
        return handle

    def _evict(self) -> None:
        """Let go of idle flows from the oldest on; whoever changes one of them wakes it."""
        surplus = len(self._handles) - self._max_resident * 3 // 4
        idle = [each for each in self._handles.values() if each.is_idle and not each.has_timers]
        for handle in idle[:surplus]:
            handle.close()
            del self._handles[handle.flow_id]

    def _follow_changes(self) -> None:
        """Refresh the flows here that another process has changed, and wake those that it woke."""
        active = [handle.flow_id for handle in self._handles.values() if not handle.is_idle]
        versions = self.store.owned_versions(self.worker, active)
        for flow_id in active:
            if flow_id not in versions:
                self._handles[flow_id].refresh()
        for flow_id, version in versions.items():
            handle = self._handles.get(flow_id)
            if handle is None:
                self._take_over(flow_id)
            elif version != handle.durable_version:
                handle.refresh()

    # What handles need

    def free_slots(self) -> int:
        """Return how many attempts may begin now."""
        return 0 if self._is_stopping else self._max_slots - self._taken

    def take_slots(self, count: int) -> None:
        """Count attempts that are handed out."""
        self._taken += count

    def return_slots(self, count: int) -> None:
        """Count attempts that are over, or that never began; whoever waits for a slot is next."""
        self._taken -= count
        if self._starved and not self._is_feeding:
            self._is_feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def begin(self, handle: FlowHandle, execution: Execution) -> Attempt:
        """Start an attempt."""
        attempt = self._attempt(
            handle,
            execution,
            partial(self.store.append, handle.flow_id),
            partial(self._report, handle),
        )
        self._watchdog.add(attempt)
        attempt.start(self._context)
        return attempt

    def run_inline(
        self, handle: FlowHandle, execution: Execution, append: Callable[[StreamAppend], None]
    ) -> Event:
        """Run an attempt here and now; return what came of it."""
        events: list[Event | None] = []
        attempt = self._attempt(
            handle, execution, append, lambda _attempt, event: events.append(event)
        )
        attempt.run(self._context)
        assert events[0] is not None  # only a cancellation from without leaves an attempt unsaid
        return events[0]

    def _attempt(
        self,
        handle: FlowHandle,
        execution: Execution,
        append: Callable[[StreamAppend], None],
        report: Callable[[Attempt, Event | None], None],
    ) -> Attempt:
        served = handle.served
        return Attempt(
            table=served.table,
            execution=execution,
            options=served.machine.options(execution),
            state=handle.state,
            view=handle.attributes.view(),
            clock=self.store.clock,
            telemetry=self._telemetry,
            append=append,
            report=report,
        )

    def _report(self, handle: FlowHandle, attempt: Attempt, event: Event | None) -> None:
        self._watchdog.remove(attempt)
        handle.ended(attempt, event)
        self._ended.set()

    def starve(self, handle: FlowHandle) -> None:
        """Remember a flow that waits for a slot."""
        if handle.flow_id not in self._starved:
            self._starved[handle.flow_id] = None
            self._telemetry.count(signals.QUEUE_DEPTH, 1)

    def _feed(self) -> None:
        """Give freed slots to flows that had to wait for one, in the order they came."""
        self._is_feeding = False
        while self._starved and self.free_slots() > 0:
            flow_id = next(iter(self._starved))
            del self._starved[flow_id]
            self._telemetry.count(signals.QUEUE_DEPTH, -1)
            if (handle := self._handles.get(flow_id)) is not None:
                handle.tick()

    def refused(self, handle: FlowHandle, error: DexAgentsError) -> None:
        """Log a result that was refused."""
        self._telemetry.warn(signals.RESULT_REFUSED, session_id=handle.flow_id, error=str(error))

    def store_refused(self, handle: FlowHandle, error: StoreError) -> None:
        """Log that the store could not take a commit."""
        self._meet_store_trouble(error, session_id=handle.flow_id)

    def _meet_store_trouble(self, error: StoreError, **data: str) -> None:
        """Tell whoever waits for the end of the store, if this is it.

        What is wrong is logged once, not with every session and every new try.
        """
        if isinstance(error, StoreLostError | StoreCorruptError) and not self._end_of_store.done():
            self._end_of_store.set_result(error)
        trouble = str(error)
        if trouble != self._store_trouble:
            self._store_trouble = trouble
            self._telemetry.warn(signals.STORE_UNAVAILABLE, error=trouble, **data)

    def rested(self, handle: FlowHandle) -> None:
        """Tell telemetry that nothing of a flow is left to do here for now."""
        self._telemetry.rest(handle.flow_id)

    def drop(self, handle: FlowHandle) -> None:
        """Forget a flow that this worker no longer owns."""
        if self._handles.get(handle.flow_id) is handle:
            del self._handles[handle.flow_id]
        handle.close()
