"""Failures: retries, timeouts, heartbeats, routes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dex import (
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    StepMovement,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    go_to,
    go_to_many,
    graceful_complete,
    retry_after,
)

from tests.dex_emulator.flows import Act, Await, Recover, title


class BrokenError(Exception):
    """A handler's failure."""


def retried(attempts, **options):
    policy = RetryPolicy(maximum_attempts=attempts, initial_interval=timedelta(seconds=1))
    return StepOptions(execute_retry=policy, wait_for_retry=policy, **options)


async def test_attempts_are_counted_and_keep_their_first_time(stack):
    """The third attempt succeeds, and nothing of the failed ones was written."""
    stack.flow.scripts.options["Start"] = retried(3)
    firsts = set()

    @stack.script("start")
    async def start(context):
        firsts.add(context.first_attempt_at)
        assert title.get(context) is None
        title.set(context, "written")
        if context.attempt < 3:
            raise BrokenError
        return graceful_complete(str(context.attempt))

    assert await stack.output(await stack.start()) == "3"
    assert len(firsts) == 1


async def test_a_flow_fails_when_the_attempts_are_used_up(stack):
    """The worker's words are the flow's error."""
    stack.flow.scripts.options["Start"] = retried(2)

    @stack.script("start")
    async def start(context):
        raise BrokenError(f"attempt {context.attempt}")

    result = await stack.result(await stack.start())
    assert result.status is FlowStatus.FAILED
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert result.error_message == "attempt 2"


async def test_a_handler_can_choose_the_delay(stack):
    """retry_after replaces the policy's delay, which would be far too long here."""
    stack.flow.scripts.options["Start"] = StepOptions(
        execute_retry=RetryPolicy(initial_interval=timedelta(hours=1))
    )

    @stack.script("start")
    async def start(context):
        if context.attempt == 1:
            raise retry_after(1, BrokenError())
        return graceful_complete("again")

    assert await stack.output(await stack.start()) == "again"


async def test_a_failure_route_knows_the_failure(stack):
    """The recovery Step has the failed Step's input and its error."""
    stack.flow.scripts.options["Act"] = retried(1).on_execute_failure_proceed_to(
        Recover, StepOptions()
    )

    @stack.script("start")
    async def start(_context):
        return go_to(Act, "both")

    @stack.script("both")
    async def both(context):
        if context.step_execution_id == "Act-1":
            raise BrokenError("lost")
        error = context.recovery_error
        assert context.from_step_execution_id == "Act-1"
        return graceful_complete(f"{error.detail} {error.error_type.rpartition('.')[2]}")

    assert await stack.output(await stack.start()) == "lost BrokenError"


async def test_a_failed_wait_can_be_passed_over(stack):
    """With PROCEED, execute runs and is told."""
    stack.flow.scripts.options["Await"] = retried(2, wait_for_failure=WaitForFailurePolicy.PROCEED)

    async def build(_context):
        raise BrokenError("no wait")

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=build)
    async def ended(context):
        assert context.wait_for_method_failed()
        return graceful_complete(context.recovery_error.detail)

    assert await stack.output(await stack.start()) == "no wait"


async def test_a_failed_wait_fails_its_flow_otherwise(stack):
    """The default is to fail."""
    stack.flow.scripts.options["Await"] = retried(1)

    async def build(_context):
        raise BrokenError("no wait")

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=build)
    async def ended(_context):
        return graceful_complete("unexpected")

    result = await stack.result(await stack.start())
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "no wait")


async def test_wait_for_and_execute_have_retry_policies_of_their_own(stack):
    """wait_for may be tried twice while execute may not."""
    stack.flow.scripts.options["Await"] = StepOptions(
        wait_for_retry=RetryPolicy(maximum_attempts=2),
        execute_retry=RetryPolicy(maximum_attempts=1),
    )

    async def build(context):
        if context.attempt == 1:
            raise BrokenError
        return Wait.skip_immediately()

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=build)
    async def ended(_context):
        raise BrokenError("once")

    result = await stack.result(await stack.start())
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "once")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"execute_method_timeout": timedelta(seconds=1)}, "StartToClose"),
        ({"heartbeat_timeout": timedelta(seconds=10)}, "Heartbeat"),
    ],
)
async def test_a_silent_attempt_is_ended_and_cancelled(stack, options, kind):
    """The handler is cancelled, and the route names the kind of timeout."""
    cancelled = asyncio.Event()
    stack.flow.scripts.options["Act"] = retried(1, **options).on_execute_failure_proceed_to(
        Recover, StepOptions()
    )

    @stack.script("start")
    async def start(_context):
        return go_to(Act, "both")

    @stack.script("both")
    async def both(context):
        if context.step_execution_id == "Recover-1":
            return graceful_complete(context.recovery_error.error_type)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await stack.output(await stack.start()) == kind
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_heartbeats_keep_an_attempt_alive_and_reach_the_next(stack):
    """The last value that was sent is there in the next attempt; an empty one clears it."""
    stack.flow.scripts.options["Start"] = retried(3, heartbeat_timeout=timedelta(seconds=10))
    seen = []

    @stack.script("start")
    async def start(context):
        has_value = context.has_last_heartbeat_value()
        seen.append(context.get_last_heartbeat_value(str) if has_value else None)
        if context.attempt == 1:
            for number in range(4):
                await context.heartbeat(f"at {number}")
                await asyncio.sleep(0.2)
            raise BrokenError
        if context.attempt == 2:
            await context.heartbeat()
            raise BrokenError
        return graceful_complete("alive")

    assert await stack.output(await stack.start()) == "alive"
    assert seen == [None, "at 3", None]


async def test_the_loads_of_a_retried_call_are_those_of_its_first_attempt(stack):
    """Retries repeat the call, not a newer view of the flow."""
    stack.flow.scripts.options["Act"] = retried(2)
    seen = []

    @stack.script("start")
    async def start(context):
        title.set(context, "old")
        return go_to(Act, "act")

    @stack.script("act")
    async def act(context):
        seen.append(title.get(context))
        if context.attempt == 1:
            await stack.client.invoke_rpc(stack.flow.steer, context.flow_id, "write")
            raise BrokenError
        return graceful_complete("done")

    @stack.script("write")
    async def write(context):
        title.set(context, "new")
        return stack.rpc_result("written")

    assert await stack.output(await stack.start()) == "done"
    assert seen == ["old", "old"]


async def test_a_movement_can_bring_its_own_options(stack):
    """A movement's options replace those of the Step."""
    stack.flow.scripts.options["Act"] = retried(1)

    @stack.script("start")
    async def start(_context):
        return go_to_many(StepMovement.of(Act, "act", options=retried(2)))

    @stack.script("act")
    async def act(context):
        if context.attempt == 1:
            raise BrokenError
        return graceful_complete("second")

    assert await stack.output(await stack.start()) == "second"
