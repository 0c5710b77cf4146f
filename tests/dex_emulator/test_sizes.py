"""Oversized values fail their own call, and nothing else."""

from __future__ import annotations

import grpc
import pytest
from dex import (
    DexServiceError,
    FlowStatus,
    RetryPolicy,
    StepOptions,
    WorkerInvocationError,
    go_to,
    graceful_complete,
)

from tests.dex_emulator.flows import Act, Recover, body, title

LARGE = "x" * (5 * 1024 * 1024)
HALF = LARGE[: 3 * 1024 * 1024]

ONCE = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))


async def assert_works(stack):
    """The worker takes the next task at once, in whatever queue."""

    @stack.script("small")
    async def small(_context):
        return graceful_complete("small")

    assert await stack.output(await stack.start("small")) == "small"


async def test_an_oversized_start_is_refused(stack):
    """The caller is told, and no flow was started."""
    with pytest.raises(DexServiceError, match="limit") as caught:
        await stack.client.start_flow(stack.flow, "large", LARGE)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await assert_works(stack)


async def test_an_oversized_result_fails_its_attempt(stack):
    """The flow's error names the size; the stream that carried it goes on."""
    stack.flow.scripts.options["Start"] = ONCE

    @stack.script("start")
    async def start(context):
        title.set(context, LARGE)
        return graceful_complete("large")

    result = await stack.result(await stack.start())
    assert result.status is FlowStatus.FAILED
    assert "the limit is" in result.error_message
    await assert_works(stack)


async def test_a_task_that_grew_too_large_is_never_sent(stack):
    """Two Attributes together exceed the limit: the Step fails, the worker stays well."""
    stack.flow.scripts.options["Recover"] = ONCE

    @stack.script("start")
    async def start(context):
        title.set(context, HALF)
        return go_to(Act, "act")

    @stack.script("act")
    async def act(context):
        body.set(context, HALF)
        return go_to(Recover, "never")

    result = await stack.result(await stack.start())
    assert result.status is FlowStatus.FAILED
    assert "execute task" in result.error_message
    await assert_works(stack)


async def test_an_oversized_rpc_result_is_the_callers_error(stack):
    """The call fails; the flow and its worker go on."""

    @stack.script("large")
    async def large(_context):
        return LARGE

    @stack.script("start")
    async def start(_context):
        return graceful_complete("small")

    flow_id = await stack.start()
    with pytest.raises(WorkerInvocationError, match="limit"):
        await stack.client.invoke_rpc(stack.flow.read, flow_id, "large")
    await assert_works(stack)
