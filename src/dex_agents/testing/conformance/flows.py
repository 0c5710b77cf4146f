"""The thirteen rules of ``docs/semantics.md``, each by a few small flows."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dex_agents.backend import Backend, Capability, open_backend
from dex_agents.errors import (
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    NotLoadedError,
    RpcLockConflictError,
)
from dex_agents.table import Decision, Movement, RetryPolicy, RpcResult, StepOptions, Timer, Wait
from dex_agents.testing.conformance.lab import (
    INBOX,
    LOG,
    NOTES,
    OTHER,
    ROOMS,
    VALUE,
    Lab,
    act,
    forever,
)
from dex_agents.testing.conformance.rules import needs, rule

__all__ = ("FlowRules",)

ONCE_MORE = RetryPolicy(max_attempts=2, initial_seconds=1, max_seconds=1)


class FlowRules:
    """What a table means, whatever runs it."""

    pytestmark = pytest.mark.asyncio

    def serving(self, folder: Path) -> AbstractAsyncContextManager[str]:
        """Run what the backend needs beside it while the block runs, and yield its URL.

        Args:
            folder: For one test. Serving it again must find what was stored, if
                the backend is durable.
        """
        raise NotImplementedError

    # 1. Execution IDs

    @rule("1")
    async def test_executions_are_counted_by_step(self, lab: Lab) -> None:
        """The n-th execution of a Step is ``<Step>-<n>``, from 1, each Step by itself."""

        @lab.execute
        def begin(context: Any) -> Decision:
            lab.seen.append(context.step_execution_id)
            return Decision.go_to("Act", "first")

        @lab.execute
        def first(context: Any) -> Decision:
            lab.seen.append(context.step_execution_id)
            return Decision.go_to("Act", "second")

        @lab.execute
        def second(context: Any) -> None:
            lab.seen.append(context.step_execution_id)

        flow_id = await lab.start()
        assert (await lab.closed(flow_id)).status == "completed"
        assert lab.seen == ["Begin-1", "Act-1", "Act-2"]

    @rule("1")
    async def test_attempts_share_their_execution_id(self, lab: Lab) -> None:
        """A retry is the same execution."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("flaky", retry=ONCE_MORE))

        @lab.execute
        def flaky(context: Any) -> None:
            lab.seen.append((context.step_execution_id, context.attempt))
            if context.attempt == 1:
                raise RuntimeError("once")

        await lab.closed(await lab.start())
        assert lab.seen == [("Act-1", 1), ("Act-1", 2)]

    # 2. Wait, then execute

    @rule("2")
    async def test_wait_for_runs_first_and_its_writes_are_seen(self, lab: Lab) -> None:
        """What ``wait_for`` wrote is there when ``execute`` runs."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to("Await", "later")

        @lab.wait_for("later")
        def wait(context: Any) -> Wait:
            context.set(VALUE, "from wait_for")
            return Wait.skip_immediately()

        @lab.execute
        def later(context: Any) -> None:
            lab.seen.append(context.get(VALUE))

        await lab.closed(await lab.start())
        assert lab.seen == ["from wait_for"]

    @rule("2")
    async def test_execute_waits_for_its_conditions(self, lab: Lab) -> None:
        """Both messages must be there; until then nothing runs."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to("Await", "both")

        @lab.wait_for("both")
        def wait(_: Any) -> Wait:
            return Wait.all_of(INBOX.for_one(), ROOMS["red"].for_one())

        @lab.execute
        def both(context: Any) -> None:
            lab.seen.append((context.results(INBOX), context.results(ROOMS["red"])))

        flow_id = await lab.start()
        await lab.waits(flow_id, "Await-1")
        await lab.send(flow_id, "Inbox", "a")
        await asyncio.sleep(0.2)  # nothing tells that something does not happen
        assert lab.seen == []
        await lab.send(flow_id, "Rooms/red", "b")
        await lab.closed(flow_id)
        assert lab.seen == [(("a",), ("b",))]

    # 3. Choosing

    @rule("3")
    async def test_a_timer_is_looked_at_before_channels(self, lab: Lab) -> None:
        """A Timer that has fired wins over a message, which stays for others."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.publish(INBOX, "kept")
            return Decision.go_to("Await", "any")

        @lab.wait_for("any")
        def wait(_: Any) -> Wait:
            return Wait.any_of(INBOX.for_one(), Timer(0))

        @lab.execute
        def any(context: Any) -> None:  # noqa: A001 - the name is the Step's input
            lab.seen.append((context.results(INBOX), context.queue_size(INBOX)))

        await lab.closed(await lab.start())
        assert lab.seen == [((), 1)]

    @rule("3")
    async def test_channels_are_chosen_in_order_and_only_the_chosen_consumes(
        self, lab: Lab
    ) -> None:
        """The first ready condition in the order of arguments takes its message."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.publish(INBOX, "in")
            context.publish(OTHER, "out")
            return Decision.go_to("Await", "first")

        @lab.wait_for("first")
        def wait(_: Any) -> Wait:
            return Wait.any_of(OTHER.for_one(), INBOX.for_one(), Timer(3600))

        @lab.execute
        def first(context: Any) -> None:
            lab.seen.append((context.results(OTHER), context.results(INBOX)))
            lab.seen.append(context.queue_size(INBOX))

        await lab.closed(await lab.start())
        assert lab.seen == [(("out",), ()), 1]

    @rule("3")
    async def test_messages_are_taken_oldest_first_up_to_what_was_asked(self, lab: Lab) -> None:
        """``for_n`` takes exactly n, ``for_at_least`` all, ``for_at_most`` what there is."""

        @lab.execute
        def begin(context: Any) -> Decision:
            for number in range(5):
                context.publish(INBOX, f"m{number}")
            return Decision.go_to("Await", "two")

        @lab.wait_for("two")
        def wait_two(_: Any) -> Wait:
            return Wait.until(INBOX.for_n(2))

        @lab.execute
        def two(context: Any) -> Decision:
            lab.seen.append(context.results(INBOX))
            return Decision.go_to("Await", "rest")

        @lab.wait_for("rest")
        def wait_rest(_: Any) -> Wait:
            return Wait.all_of(INBOX.for_at_least(1), OTHER.for_at_most(9))

        @lab.execute
        def rest(context: Any) -> None:
            lab.seen.append((context.results(INBOX), context.results(OTHER)))

        await lab.closed(await lab.start())
        assert lab.seen == [("m0", "m1"), (("m2", "m3", "m4"), ())]

    @rule("3")
    async def test_each_message_goes_to_one_execution(self, lab: Lab) -> None:
        """Two executions that wait on one Channel share its messages out."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(Movement("Await", "one"), Movement("Await", "one"))

        @lab.wait_for("one")
        def wait(_: Any) -> Wait:
            return Wait.until(INBOX.for_one())

        @lab.execute
        def one(context: Any) -> Decision:
            lab.seen.append((context.step_execution_id, context.results(INBOX)))
            return Decision.dead_end()

        flow_id = await lab.start()
        await lab.waits(flow_id, "Await-1")
        await lab.waits(flow_id, "Await-2")
        await lab.send(flow_id, "Inbox", "a", "b")
        await lab.sees(2)
        assert sorted(lab.seen) == [("Await-1", ("a",)), ("Await-2", ("b",))]

    @rule("3")
    async def test_the_first_complete_combination_wins(self, lab: Lab) -> None:
        """A group that is half ready consumes nothing."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.publish(INBOX, "a")
            context.publish(OTHER, "b")
            return Decision.go_to("Await", "groups")

        @lab.wait_for("groups")
        def wait(_: Any) -> Wait:
            inbox, other, red = INBOX.for_one(), OTHER.for_one(), ROOMS["red"].for_one()
            return Wait.any_combination_of((inbox, red), (inbox, other))

        @lab.execute
        def groups(context: Any) -> None:
            lab.seen.append((context.results(INBOX), context.results(OTHER)))

        await lab.closed(await lab.start())
        assert lab.seen == [(("a",), ("b",))]

    # 4. Attempts

    @rule("4")
    async def test_a_timeout_ends_an_attempt(self, lab: Lab) -> None:
        """The next attempt is one higher, and the handler of the first is cancelled."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("slow", execute_timeout=1, retry=ONCE_MORE))

        @lab.execute
        async def slow(context: Any) -> None:
            lab.seen.append(context.attempt)
            if context.attempt == 1:
                try:
                    await forever()
                except asyncio.CancelledError:
                    lab.seen.append("cancelled")
                    raise

        await lab.closed(await lab.start())
        seen = await lab.sees(3)  # on some engines word of a timeout takes a way of its own
        assert [each for each in seen if each != "cancelled"] == [1, 2]

    @rule("4")
    async def test_silence_ends_an_attempt_and_a_heartbeat_keeps_it(self, lab: Lab) -> None:
        """A handler that gives signs of life outlives its heartbeat timeout."""
        options = {"heartbeat_timeout": 2, "retry": RetryPolicy(max_attempts=1)}

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(
                act("lively", **options), act("silent", **options, failure_step="Recover")
            )

        @lab.execute
        async def lively(context: Any) -> Decision:
            with context.keep_alive(0.2):
                await asyncio.sleep(2.5)  # longer than the timeout
            lab.seen.append("lively")
            return Decision.dead_end()

        @lab.execute
        async def silent(context: Any) -> Decision:
            if context.recovery_error is None:
                await forever()
            lab.seen.append("silent was given up")
            return Decision.dead_end()

        await lab.start()
        assert sorted(await lab.sees(2)) == ["lively", "silent was given up"]

    @rule("4")
    async def test_an_inline_step_is_an_execution_like_any_other(self, lab: Lab) -> None:
        """It sees what came before it, and leaves its changes, its history and its messages."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.set(VALUE, "a")
            return Decision.go_to("Inline", "between")

        @lab.execute
        def between(context: Any) -> Decision:
            context.set(VALUE, f"{context.get(VALUE)}b")
            context.write(LOG, context.step_execution_id)
            return Decision.go_to("Act", "last")

        @lab.execute
        def last(context: Any) -> None:
            lab.seen.append(context.get(VALUE))

        flow_id = await lab.start()
        assert (await lab.closed(flow_id)).status == "completed"
        assert lab.seen == ["ab"]
        assert await lab.log(flow_id) == ["Inline-1"]
        told = [
            (each.step_execution_id, each.final_attempt)
            for each in await lab.history(flow_id)
            if each.event_type == "step_execute_completed"
        ]
        assert told == [("Begin-1", 1), ("Inline-1", 1), ("Act-1", 1)]

    @rule("4")
    async def test_an_inline_step_is_retried_and_given_up(self, lab: Lab) -> None:
        """Its attempts count from 1; its failure route gets its input and the error."""

        @lab.execute
        def begin(_: Any) -> Decision:
            options = StepOptions(retry=ONCE_MORE, failure_step="Recover")
            return Decision.go_to_many(Movement("Inline", "broken", options))

        @lab.execute
        def broken(context: Any) -> None:
            if context.recovery_error is None:
                lab.seen.append(context.attempt)
                raise RuntimeError("again")
            lab.seen.append(context.recovery_error.detail)

        await lab.closed(await lab.start())
        assert lab.seen == [1, 2, "again"]

    # 5. One commit

    @rule("5")
    async def test_nothing_of_a_failed_attempt_is_kept(self, lab: Lab) -> None:
        """Neither writes nor messages; the Stream alone keeps what it got."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("twice", retry=ONCE_MORE))

        @lab.execute
        def twice(context: Any) -> None:
            lab.seen.append((context.get(VALUE), context.queue_size(INBOX)))
            context.set(VALUE, "written")
            context.publish(INBOX, "published")
            context.write(LOG, f"attempt {context.attempt}")
            if context.attempt == 1:
                raise RuntimeError("after its writes")

        flow_id = await lab.start()
        await lab.closed(flow_id)
        assert lab.seen == [(None, 0), (None, 0)]
        assert await lab.log(flow_id) == ["attempt 1", "attempt 2"]

    @rule("5")
    async def test_what_one_attempt_did_is_there_for_the_next_step(self, lab: Lab) -> None:
        """Writes, deletes and messages arrive together."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.set(VALUE, "old")
            context.set(NOTES["a"], "1")
            return Decision.go_to("Act", "change")

        @lab.execute
        def change(context: Any) -> Decision:
            context.delete(VALUE)
            context.set(NOTES["b/c".replace("/", " ")], "2")
            context.publish(ROOMS["red"], "m")
            return Decision.go_to_many(act("look", loads=(NOTES,)))

        @lab.execute
        def look(context: Any) -> None:
            lab.seen.append((context.get(VALUE), dict(context.entries(NOTES))))
            lab.seen.append(context.queue_size(ROOMS["red"]))

        await lab.closed(await lab.start())
        assert lab.seen == [(None, {"a": "1", "b c": "2"}), 1]

    # 6. Fencing

    @rule("6")
    async def test_a_result_that_comes_too_late_changes_nothing(self, lab: Lab) -> None:
        """An attempt that will not be cancelled returns after its successor, in vain."""
        release = asyncio.Event()

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("stubborn", execute_timeout=1, retry=ONCE_MORE))

        @lab.execute
        async def stubborn(context: Any) -> Decision:
            if context.attempt == 1:
                try:
                    await forever()
                except asyncio.CancelledError:
                    await release.wait()
            context.set(VALUE, f"attempt {context.attempt}")
            release.set()
            return Decision.go_to("Await", "last")

        @lab.wait_for("last")
        def wait(_: Any) -> Wait:
            return Wait.until(INBOX.for_one())

        @lab.execute
        def last(context: Any) -> None:
            lab.seen.append((context.step_execution_id, context.get(VALUE)))

        flow_id = await lab.start()
        await lab.waits(flow_id, "Await-1")
        await asyncio.sleep(0.2)  # for the late result, of which nothing tells
        await lab.send(flow_id, "Inbox", "go")
        await lab.closed(flow_id)
        assert lab.seen == [("Await-1", "attempt 2")]
        executions = {each.step_execution_id for each in await lab.history(flow_id)}
        assert "Await-2" not in executions

    # 7. Giving up

    @rule("7")
    @pytest.mark.parametrize("error", [RuntimeError, KeyError, ValueError, TypeError])
    async def test_the_failure_route_learns_what_happened(
        self, lab: Lab, error: type[Exception]
    ) -> None:
        """It gets the same input, and the error's own message and type."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("broken", retry=ONCE_MORE, failure_step="Recover"))

        @lab.execute
        def broken(context: Any) -> None:
            if context.recovery_error is None:
                raise error("in vain")
            seen = context.recovery_error
            lab.seen.append((context.step_execution_id, seen.detail, seen.error_type))

        await lab.closed(await lab.start())
        assert lab.seen == [("Recover-1", str(error("in vain")), error.__name__)]

    @rule("7")
    async def test_without_a_route_the_flow_fails_and_says_why(self, lab: Lab) -> None:
        """The summary names the error."""

        @lab.execute
        def begin(_: Any) -> None:
            raise RuntimeError("the disk is on fire")

        summary = await lab.closed(await lab.start())
        assert summary.status == "failed"
        assert "the disk is on fire" in (summary.failure or "")

    # 8. Fan-out

    @rule("8")
    async def test_movements_are_scheduled_in_order_and_run_in_parallel(self, lab: Lab) -> None:
        """Two executions that wait for each other both end."""
        meeting = asyncio.Barrier(2)

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("left"), act("right"))

        @lab.execute
        async def left(context: Any) -> Decision:
            await meeting.wait()
            lab.seen.append(("left", context.step_execution_id))
            return Decision.dead_end()

        @lab.execute
        async def right(context: Any) -> Decision:
            await meeting.wait()
            lab.seen.append(("right", context.step_execution_id))
            return Decision.dead_end()

        await lab.start()
        assert sorted(await lab.sees(2)) == [("left", "Act-1"), ("right", "Act-2")]

    @rule("8")
    async def test_a_decision_cancels_steps_by_name(self, lab: Lab) -> None:
        """Those that wait and those that run, but not the deciding one."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("runs"), Movement("Await", "waits"))

        @lab.execute
        async def runs(_: Any) -> None:
            lab.seen.append("runs")
            try:
                await forever()
            except asyncio.CancelledError:
                lab.seen.append("cancelled")
                raise

        @lab.wait_for("waits")
        def wait(_: Any) -> Wait:
            return Wait.until(INBOX.for_one())

        @lab.execute
        def waits(_: Any) -> Decision:
            return Decision.graceful_complete().canceling("Act")

        flow_id = await lab.start()
        await lab.waits(flow_id, "Await-1")
        await lab.sees(1)
        await lab.send(flow_id, "Inbox", "go")
        assert (await lab.closed(flow_id)).status == "completed"
        assert await lab.sees(2) == ["runs", "cancelled"]  # word of it may come after the end

    @rule("8")
    async def test_ends(self, lab: Lab) -> None:
        """A graceful end waits for what still runs; a forced one does not; a failure says why."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("slow"), act("ends"))

        @lab.execute
        async def slow(_: Any) -> Decision:
            await asyncio.sleep(0.2)
            lab.seen.append("slow")
            return Decision.dead_end()

        @lab.execute
        def ends(_: Any) -> Decision:
            return Decision.graceful_complete()

        @lab.execute
        def forced(_: Any) -> Decision:
            return Decision.force_complete("done")

        @lab.execute
        def fails(_: Any) -> Decision:
            return Decision.force_fail("no more")

        assert (await lab.closed(await lab.start())).status == "completed"
        assert lab.seen == ["slow"]
        assert (await lab.closed(await lab.start("forced"))).status == "completed"
        failed = await lab.closed(await lab.start("fails"))
        assert (failed.status, failed.failure) == ("failed", "no more")

    # 9. Loading

    @rule("9")
    async def test_only_what_is_loaded_is_seen(self, lab: Lab) -> None:
        """Another instance, or the whole map, is `NotLoadedError`, and names it."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.set(NOTES["a"], "1")
            context.set(NOTES["b"], "2")
            return Decision.go_to_many(act("look", loads=(NOTES["a"],)))

        @lab.execute
        def look(context: Any) -> None:
            lab.seen.append(context.get(NOTES["a"]))
            context.set(NOTES["a"], "own")
            lab.seen.append(context.get(NOTES["a"]))
            with pytest.raises(NotLoadedError, match="Notes/b"):
                context.get(NOTES["b"])
            with pytest.raises(NotLoadedError, match="Notes"):
                context.entries(NOTES)

        summary = await lab.closed(await lab.start())
        assert (summary.status, lab.seen) == ("completed", ["1", "own"])

    # 10. RPCs

    @rule("10")
    async def test_a_call_changes_everything_or_nothing(self, lab: Lab) -> None:
        """Writes, messages and Steps of a call arrive together; one that fails leaves nothing."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.dead_end()

        @lab.call
        def change(context: Any) -> RpcResult[str]:
            context.set(VALUE, "new")
            context.publish(INBOX, "m")
            return RpcResult("changed", next_steps=(Movement("Act", "look"),))

        @lab.call
        def fail(context: Any) -> None:
            context.set(VALUE, "half")
            raise RuntimeError("in mid-call")

        @lab.call
        def look_at(context: Any) -> str:
            return context.get(VALUE) or "nothing"

        @lab.execute
        def look(context: Any) -> Decision:
            lab.seen.append((context.get(VALUE), context.queue_size(INBOX)))
            return Decision.dead_end()

        flow_id = await lab.start()
        with pytest.raises(Exception, match="in mid-call"):
            await lab.rpc(flow_id, "fail")
        assert await lab.rpc(flow_id, "look_at", "read") == "nothing"
        assert await lab.rpc(flow_id, "change") == "changed"
        assert await lab.sees(1) == [("new", 1)]
        assert await lab.rpc(flow_id, "look_at", "read") == "new"

    @rule("10")
    async def test_a_lock_that_a_step_holds_is_a_conflict(self, lab: Lab) -> None:
        """The call is refused at once, and works when the Step has ended."""
        release = asyncio.Event()

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to_many(act("hold", locks=(VALUE,)))

        @lab.execute
        async def hold(_: Any) -> Decision:
            lab.seen.append("held")
            await release.wait()
            return Decision.go_to("Act", "after")

        @lab.execute
        def after(_: Any) -> Decision:
            lab.seen.append("after")
            return Decision.dead_end()

        @lab.call
        def touch(context: Any) -> str:
            context.set(VALUE, "touched")
            return "ok"

        flow_id = await lab.start()
        await lab.sees(1)
        with pytest.raises(RpcLockConflictError):
            await lab.rpc(flow_id, "touch", "change_locked")
        release.set()
        await lab.sees(2)
        assert await lab.rpc(flow_id, "touch", "change_locked") == "ok"

    @rule("10")
    async def test_a_closed_flow_can_be_read_and_not_changed(self, lab: Lab) -> None:
        """A read-only call is served; any other is `FlowNotActiveError`."""

        @lab.execute
        def begin(context: Any) -> None:
            context.set(VALUE, "kept")

        @lab.call
        def look(context: Any) -> Any:
            return context.get(VALUE)

        flow_id = await lab.start()
        await lab.closed(flow_id)
        assert await lab.rpc(flow_id, "look", "read") == "kept"
        with pytest.raises(FlowNotActiveError, match="completed"):
            await lab.send(flow_id, "Inbox", "too late")

    @rule("10")
    async def test_a_flow_that_is_not_there(self, lab: Lab) -> None:
        """Every call says so, and a second start of one ID is refused."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.dead_end()

        for call in (
            lab.send("nobody", "Inbox", "m"),
            lab.backend.stop_flow("nobody", ""),
            lab.backend.describe_flow("nobody"),
            lab.history("nobody"),
            lab.log("nobody"),
        ):
            with pytest.raises(FlowNotFoundError, match="nobody"):
                await call
        flow_id = await lab.start()
        with pytest.raises(FlowAlreadyStartedError, match=flow_id):
            await lab.backend.start_flow(lab.table, flow_id, "begin")

    # 11. Timers

    @rule("11")
    async def test_a_timer_never_fires_early(self, lab: Lab) -> None:
        """One second is at least one second."""
        begun: list[float] = []

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to("Await", "later")

        @lab.wait_for("later")
        def wait(_: Any) -> Wait:
            begun.append(time.monotonic())
            return Wait.until(Timer(1))

        @lab.execute
        def later(_: Any) -> None:
            lab.seen.append(time.monotonic() - begun[0])

        await lab.closed(await lab.start())
        assert 1.0 <= lab.seen[0] < 5.0

    @rule("11")
    async def test_an_overdue_timer_fires_when_a_worker_is_back(self, backend: Backend) -> None:
        """Nobody serves the flow while the Timer runs out."""
        lab = Lab(backend, "Late")

        @lab.execute
        def begin(_: Any) -> Decision:
            # An engine that finds no worker may count that as an attempt, so there are many.
            return Decision.go_to_many(Movement("Await", "later", StepOptions()))

        @lab.wait_for("later")
        def wait(_: Any) -> Wait:
            return Wait.until(Timer(1))

        @lab.execute
        def later(_: Any) -> None:
            lab.seen.append("fired")

        async with lab.worker():
            flow_id = await lab.start()
            await lab.waits(flow_id, "Await-1")
        await asyncio.sleep(1.2)  # no worker, and so no clock to move
        assert lab.seen == []
        async with lab.worker():
            await lab.closed(flow_id)
        assert lab.seen == ["fired"]

    @rule("11")
    async def test_a_flow_outlives_everything(self, tmp_path: Path) -> None:
        """What was stored is there when the backend and all beside it have begun again."""
        async with self.serving(tmp_path) as url, open_backend(url) as backend:
            if Capability.DURABLE not in backend.capabilities:
                pytest.skip(f"{backend.name} does not declare durable")
            lab = Lab(backend, "Kept")
            lab.execute(_keep)
            async with lab.worker():
                flow_id = await lab.start("_keep")
                await lab.send(flow_id, "Inbox", "m")
        async with self.serving(tmp_path) as url, open_backend(url) as backend:
            again = Lab(backend, "Kept")
            again.call(_look)
            async with again.worker():
                assert await again.rpc(flow_id, "_look", "read") == "kept 1"

    @rule("11")
    @needs(Capability.MULTI_PROCESS)
    async def test_a_second_backend_reaches_the_same_flows(self, lab: Lab, url: str) -> None:
        """What one writes, the other's worker serves."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to("Await", "one")

        @lab.wait_for("one")
        def wait(_: Any) -> Wait:
            return Wait.until(INBOX.for_one())

        @lab.execute
        def one(context: Any) -> None:
            lab.seen.append(context.results(INBOX))

        async with open_backend(url) as other:
            client = Lab(other, "Lab")
            flow_id = await client.start()
            await client.send(flow_id, "Inbox", "from elsewhere")
            await lab.closed(flow_id)
        assert lab.seen == [("from elsewhere",)]

    # 12. Stopping

    @rule("12")
    async def test_a_stopped_flow_runs_nothing_more(self, lab: Lab) -> None:
        """What runs is cancelled, what waits never runs; it stays readable."""

        @lab.execute
        def begin(context: Any) -> Decision:
            context.set(VALUE, "kept")
            return Decision.go_to_many(act("runs"), Movement("Await", "waits"))

        @lab.execute
        async def runs(_: Any) -> Decision:
            lab.seen.append("runs")
            await forever()
            return Decision.dead_end()

        @lab.wait_for("waits")
        def wait(_: Any) -> Wait:
            return Wait.until(Timer(1))

        @lab.execute
        def waits(_: Any) -> None:
            lab.seen.append("waited")

        @lab.call
        def look(context: Any) -> Any:
            return context.get(VALUE)

        flow_id = await lab.start()
        await lab.sees(1)
        await lab.backend.stop_flow(flow_id, "enough")
        assert (await lab.closed(flow_id)).status == "stopped"
        await asyncio.sleep(1.3)  # longer than its Timer
        assert lab.seen == ["runs"]
        assert await lab.rpc(flow_id, "look", "read") == "kept"
        with pytest.raises(FlowNotActiveError, match="stopped"):
            await lab.backend.stop_flow(flow_id, "again")

    # 13. Declared targets

    @rule("13")
    async def test_a_step_goes_only_where_its_row_says(self, lab: Lab) -> None:
        """Anything else fails the attempt, and names both."""

        @lab.execute
        def begin(_: Any) -> Decision:
            return Decision.go_to("Stray", "begin")

        summary = await lab.closed(await lab.start())
        assert summary.status == "failed"
        assert "Begin may not go to Stray" in (summary.failure or "")


def _keep(context: Any) -> Decision:
    context.set(VALUE, "kept")
    return Decision.dead_end()


def _look(context: Any) -> str:
    return f"{context.get(VALUE)} {context.queue_size(INBOX)}"
