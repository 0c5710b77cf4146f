"""Waits: every form of condition, and what handlers learn of what ended them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from dex import (
    ConditionCombination,
    DexServiceError,
    Timer,
    TimerId,
    Wait,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb

from tests.dex_emulator.flows import Await, inbox, other, rooms


@pytest.fixture
def waiting(stack):
    """Return a function that starts a flow with messages and one wait, and reports its end."""

    def begin(wait, messages=(), report=None):
        async def build(_context):
            return wait

        @stack.script("start")
        async def start(context):
            for channel, text in messages:
                channel.publish(context, text)
            return go_to(Await, "await")

        @stack.script("await", wait=build)
        async def ended(context):
            inboxed = ",".join(inbox.results(context))
            return graceful_complete(
                report(context) if report else f"{inboxed}|{','.join(other.results(context))}"
            )

        return stack.start()

    return begin


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        (inbox.for_one(), "a"),
        (inbox.for_n(2), "a,b"),
        (inbox.at_least(1), "a,b,c"),
        (inbox.at_least(3), "a,b,c"),
        (inbox.at_most(2), "a,b"),
        (inbox.at_most(9), "a,b,c"),
        (inbox.for_range(at_least=2, at_most=2), "a,b"),
        (inbox.for_range(at_least=1, at_most=9), "a,b,c"),
    ],
)
async def test_bounds_decide_how_much_is_taken(stack, waiting, condition, taken):
    """A condition takes its minimum, then what is there up to its maximum."""
    flow_id = await waiting(Wait.until(condition), [(inbox, each) for each in "abc"])
    assert await stack.output(flow_id) == f"{taken}|"


async def test_at_most_never_blocks(stack, waiting):
    """A condition without a minimum is ready while its Channel is empty."""
    assert await stack.output(await waiting(Wait.until(inbox.at_most(3)))) == "|"


async def test_all_of_waits_for_everything(stack, waiting):
    """Nothing is taken before the last condition is ready."""
    flow_id = await waiting(Wait.all_of(inbox.for_one(), other.for_one()), [(inbox, "a")])
    await stack.publish(flow_id, "other", "b")
    assert await stack.output(flow_id) == "a|b"


async def test_any_of_takes_the_first_and_leaves_the_rest(stack, waiting):
    """Losing conditions consume nothing; a Timer that has not fired loses."""
    wait = Wait.any_of(Timer.by_duration(timedelta(hours=9)), other.for_one(), inbox.for_one())

    def report(context):
        return f"{context.has_timer_fired(0)} {list(inbox.results(context))}"

    flow_id = await waiting(wait, [(inbox, "a")], report)
    assert await stack.output(flow_id) == "False ['a']"


async def test_any_combination_takes_the_first_complete_group(stack, waiting):
    """A group wins as a whole."""
    a = inbox.for_one(condition_id="a")
    b = other.for_one(condition_id="b")
    never = Timer.by_duration(timedelta(hours=9), condition_id="never")
    wait = Wait.any_combination_of(ConditionCombination.of(a, never), ConditionCombination.of(a, b))
    flow_id = await waiting(wait, [(inbox, "x"), (other, "y")])
    assert await stack.output(flow_id) == "x|y"


async def test_two_conditions_share_one_channel_in_their_order(stack, waiting):
    """What was taken is shared out in declaration order."""
    wait = Wait.all_of(inbox.for_n(2), inbox.for_one())
    flow_id = await waiting(wait, [(inbox, each) for each in "abcd"])
    assert await stack.output(flow_id) == "a,b,c|"


async def test_a_timer_ends_a_wait_after_its_time(stack, waiting):
    """Two seconds at a twentieth are a tenth."""
    began = time.monotonic()
    wait = Wait.until(Timer.by_duration(timedelta(seconds=2)))
    flow_id = await waiting(wait, report=lambda context: str(context.has_timer_fired()))
    assert await stack.output(flow_id) == "True"
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("timer", [TimerId.by_condition_id("t"), TimerId.by_condition_index(0)])
async def test_a_timer_can_be_skipped(stack, waiting, timer):
    """A Timer counts as fired once somebody skipped it; an unknown one cannot be skipped."""
    wait = Wait.until(Timer.by_duration(timedelta(hours=9), condition_id="t"))
    flow_id = await waiting(wait, report=lambda context: str(context.has_timer_fired(0)))
    await stack.waiting_for(flow_id, "Await-1")
    unknown = TimerId.by_condition_id("unknown")
    with pytest.raises(DexServiceError, match="does not wait"):
        await stack.client.skip_timer(flow_id, stack.step("Await", 1)[0], unknown)
    await stack.client.skip_timer(flow_id, stack.step("Await", 1)[0], timer)
    assert await stack.output(flow_id) == "True"


async def test_a_wait_that_is_skipped_consumes_nothing(stack, waiting):
    """The handler goes on at once, and its Channels keep what they hold."""
    flow_id = await waiting(Wait.skip_immediately(), [(inbox, "a")])
    assert await stack.output(flow_id) == "|"
    request = pb.GetChannelMessagesRequest(flow_id=flow_id, channel_name="inbox")
    left = await stack.stub.GetChannelMessages(request)
    assert [each.value.string_value for each in left.messages] == ["a"]


async def test_map_channels_are_waited_for_by_instance(stack, waiting):
    """A message for another room does not end the wait."""
    wait = Wait.until(rooms.for_one("red room"))

    def report(context):
        return ",".join(rooms.results(context, "red room"))

    flow_id = await waiting(wait, report=report)
    await stack.publish(flow_id, "rooms/blue", "no")
    await stack.publish(flow_id, "rooms/red%20room", "yes")
    assert await stack.output(flow_id) == "yes"


async def test_locals_go_from_wait_for_to_execute(stack):
    """What wait_for noted for its execution is there in execute."""

    async def build(context):
        context.set_step_execution_local("key", "kept")
        return Wait.skip_immediately()

    @stack.script("start")
    async def start(_context):
        return go_to(Await, "await")

    @stack.script("await", wait=build)
    async def ended(context):
        return graceful_complete(context.get_step_execution_local("key", str))

    assert await stack.output(await stack.start()) == "kept"
