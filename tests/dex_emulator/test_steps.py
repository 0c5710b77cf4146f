"""Steps: movements, decisions, cancellation, and how flows end."""

from __future__ import annotations

import asyncio

import pytest
from dex import (
    AttributeMapNotLoadedError,
    FlowErrorType,
    FlowStatus,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)

from tests.dex_emulator.flows import Act, Await, Recover, count, inbox, notes, other, rooms, title


async def test_a_flow_runs_step_by_step_to_its_output(stack):
    """Movements carry inputs, attributes persist, and the output comes back."""

    @stack.script("start")
    async def start(context):
        title.set(context, "hello")
        assert context.attempt == 1
        return go_to(Act, "act")

    @stack.script("act")
    async def act(context):
        assert context.from_step_execution_id == "Start-1"
        return graceful_complete(f"{title.get(context)} {count.get(context)}")

    flow_id = await stack.start()
    result = await stack.result(flow_id)
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(str) == "hello 0"
    assert [each.step_execution_id for each in result.completions] == ["Act-1"]


async def test_executions_are_numbered_by_step_and_know_their_origin(stack):
    """The third Act is Act-3, and the first Step comes from __start__."""
    seen = []

    @stack.script("start")
    async def start(context):
        seen.append((context.step_execution_id, context.from_step_execution_id))
        return go_to_many(*(StepMovement.of(Act, "act") for _ in range(3)))

    @stack.script("act")
    async def act(context):
        seen.append((context.step_execution_id, context.from_step_execution_id))
        return graceful_complete()

    await stack.result(await stack.start())
    assert sorted(seen) == [
        ("Act-1", "Start-1"),
        ("Act-2", "Start-1"),
        ("Act-3", "Start-1"),
        ("Start-1", "__start__"),
    ]


async def test_a_graceful_completion_waits_for_the_other_branches(stack):
    """Every output counts, also those that come after the first completion."""
    gate = asyncio.Event()

    @stack.script("start")
    async def start(_context):
        return go_to_many(StepMovement.of(Act, "quick"), StepMovement.of(Act, "slow"))

    @stack.script("quick")
    async def quick(_context):
        gate.set()
        return graceful_complete("quick")

    @stack.script("slow")
    async def slow(_context):
        await gate.wait()
        return graceful_complete("slow")

    result = await stack.result(await stack.start())
    assert sorted(each.decode(str) for each in result.completions) == ["quick", "slow"]


async def test_a_forced_completion_cancels_what_runs(stack):
    """Handlers of other branches are cancelled on the worker."""
    cancelled = asyncio.Event()
    running = asyncio.Event()

    @stack.script("start")
    async def start(_context):
        return go_to_many(StepMovement.of(Act, "force"), StepMovement.of(Recover, "long"))

    @stack.script("force")
    async def force(_context):
        await running.wait()
        return force_complete("forced")

    @stack.script("long")
    async def long(_context):
        running.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await stack.output(await stack.start()) == "forced"
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_forced_failure_names_its_reason(stack):
    """The flow is FAILED by a decision, with the decision's words."""

    @stack.script("start")
    async def start(_context):
        return force_fail("no more")

    result = await stack.result(await stack.start())
    assert result.status is FlowStatus.FAILED
    assert result.error_type is FlowErrorType.STEP_DECISION_FAILED
    assert result.error_message == "no more"


async def test_a_dead_end_leaves_the_flow_running(stack):
    """Only a decision or a caller closes a flow."""

    @stack.script("start")
    async def start(_context):
        return dead_end()

    flow_id = await stack.start()
    await stack.client.wait_for_step_completion(flow_id, *stack.step("Start", 1))
    assert (await stack.client.describe_flow(flow_id)).status is FlowStatus.RUNNING


async def test_completion_on_empty_channels_takes_the_fallback_while_messages_wait(stack):
    """A queued message is never lost by a completion."""

    @stack.script("start")
    async def start(context):
        inbox.publish(context, "late")
        return force_complete_if_channels_empty("early", StepMovement.of(Await, "drain"), inbox)

    @stack.script("drain", wait=lambda _: one_message())
    async def drain(context):
        assert list(inbox.results(context)) == ["late"]
        return force_complete_if_channels_empty("empty", StepMovement.of(Await, "drain"), inbox)

    assert await stack.output(await stack.start()) == "empty"


async def one_message():
    return Wait.until(inbox.for_one())


async def test_cancelled_steps_end_and_others_do_not(stack):
    """Cancelling by type ends every execution of it; the decider's own movements are spared."""
    cancelled = []

    @stack.script("start")
    async def start(_context):
        return go_to_many(
            StepMovement.of(Recover, "long"),
            StepMovement.of(Recover, "long"),
            StepMovement.of(Act, "cancel"),
        )

    @stack.script("long")
    async def long(context):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(context.step_execution_id)
            raise

    @stack.script("cancel")
    async def cancel(context):
        await asyncio.sleep(0.1)
        return go_to(Recover, "spared").with_canceling_steps(Recover)

    @stack.script("spared")
    async def spared(context):
        return graceful_complete(context.step_execution_id)

    flow_id = await stack.start()
    assert await stack.output(flow_id) == "Recover-3"
    for number in (1, 2):
        await stack.client.wait_for_step_completion(flow_id, *stack.step("Recover", number))


async def test_sibling_cancellation_spares_the_same_step_of_another_origin(stack):
    """Siblings are what the same execution scheduled."""

    @stack.script("start")
    async def start(_context):
        return go_to_many(StepMovement.of(Act, "parent"), StepMovement.of(Await, "cousin"))

    @stack.script("parent")
    async def parent(_context):
        return go_to_many(StepMovement.of(Await, "sibling"), StepMovement.of(Recover, "decide"))

    async def forever(_context):
        return Wait.until(inbox.for_one())

    stack.flow.scripts.wait["cousin"] = stack.flow.scripts.wait["sibling"] = forever

    @stack.script("sibling")
    async def sibling(_context):
        return graceful_complete("sibling")

    @stack.script("cousin")
    async def cousin(_context):
        return graceful_complete("cousin")

    @stack.script("decide")
    async def decide(context):
        inbox.publish(context, "for whoever is left")
        return graceful_complete().with_canceling_sibling_steps(Await)

    # Which of the two awaits is older does not matter: the sibling is gone before the message is.
    result = await stack.result(await stack.start())
    assert {each.decode(str) for each in result.completions} <= {"cousin", "sibling"}
    assert len(result.completions) == 1


async def test_maps_and_messages_are_loaded_only_when_asked_for(stack):
    """The echo of the selectors tells the SDK what it may read.

    All messages are equal, because the SDK may mix up those of two Channels: it
    pairs them by the order of a protobuf map, which a copy need not keep.
    """
    stack.flow.scripts.options["Act"] = StepOptions(
        execute_load_attribute_map_instances=(notes.load("a b"),),
        execute_load_channels=(inbox,),
        execute_load_channel_map_instances=(rooms.load_messages("red"),),
    )
    stack.flow.scripts.options["Recover"] = StepOptions(
        execute_load_attribute_maps=(notes,), execute_load_channel_maps=(rooms,)
    )

    @stack.script("start")
    async def start(context):
        notes.set(context, "a b", "one")
        notes.set(context, "c", "two")
        inbox.publish(context, "m")
        rooms.publish(context, "red", "m")
        rooms.publish(context, "blue", "m")
        return go_to(Act, "act")

    @stack.script("act")
    async def act(context):
        assert notes.get(context, "a b") == "one"
        assert [each.value for each in inbox.pending_messages(context)] == ["m"]
        assert [each.value for each in rooms.pending_messages(context, "red")] == ["m"]
        assert inbox.size(context) == 1
        assert other.size(context) == 0
        assert sorted(rooms.get_all_instance_keys(context)) == ["blue", "red"]
        return go_to(Recover, "all")

    @stack.script("all")
    async def everything(context):
        assert sorted(notes.get_all_instance_keys(context)) == ["a b", "c"]
        assert [each.value for each in rooms.pending_messages(context, "blue")] == ["m"]
        assert list(rooms.pending_messages(context, "green")) == []
        notes.delete(context, "c")
        return go_to(Act, "last")

    @stack.script("last")
    async def last(context):
        with pytest.raises(AttributeMapNotLoadedError):
            notes.get_all_instance_keys(context)
        return graceful_complete("read")

    flow_id = await stack.start()
    assert await stack.output(flow_id) == "read"
    assert await stack.client.invoke_rpc(stack.flow.mapped, flow_id) == "a b=one"


async def test_a_lock_makes_the_second_step_wait(stack):
    """Two Steps that lock the same Attribute never overlap."""
    stack.flow.scripts.options["Act"] = StepOptions(execute_lock_attributes=(title.lock(),))
    inside = []

    @stack.script("start")
    async def start(_context):
        return go_to_many(StepMovement.of(Act, "act"), StepMovement.of(Act, "act"))

    @stack.script("act")
    async def act(context):
        inside.append(context.step_execution_id)
        seen = len(inside)
        await asyncio.sleep(0.05)
        assert len(inside) == seen
        count.set(context, count.get(context) + 1)
        return graceful_complete(count.get(context))

    result = await stack.result(await stack.start())
    assert sorted(each.decode(int) for each in result.completions) == [1, 2]
