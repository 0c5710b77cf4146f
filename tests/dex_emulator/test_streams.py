"""Streams: writes of Steps and clients, resume tokens, paging, capacity."""

from __future__ import annotations

from datetime import timedelta

import pytest
from dex import DexServiceError, LongPollTimeoutError, graceful_complete


async def test_a_stream_is_read_from_token_to_token(stack):
    """Each message names who wrote it and where to go on."""

    @stack.script("start")
    async def start(context):
        stack.flow.deltas.write(context, "one")
        stack.flow.deltas.write(context, "two")
        return graceful_complete()

    flow_id = await stack.start()
    await stack.result(flow_id)
    first = await stack.client.read_stream(flow_id, stack.flow.deltas)
    second = await stack.client.read_stream(flow_id, stack.flow.deltas, first.resume_token)
    assert (first.value, second.value) == ("one", "two")
    assert first.source == "#Start-1"
    with pytest.raises(LongPollTimeoutError):
        await stack.client.read_stream(
            flow_id, stack.flow.deltas, second.resume_token, timedelta(seconds=1)
        )


async def test_clients_write_to_flows_that_do_not_exist(stack):
    """A Stream lives beside its flow."""
    await stack.client.write_stream("nobody", stack.flow.deltas, "client", "hello")
    message = await stack.client.read_stream("nobody", stack.flow.deltas)
    assert (message.value, message.source) == ("hello", "client")
    with pytest.raises(LongPollTimeoutError):
        await stack.client.read_stream("other", stack.flow.deltas, "", timedelta(seconds=1))


async def test_pages_go_from_the_newest_to_the_oldest(stack):
    """A page's token leads to the older ones; the last has none."""
    for number in range(5):
        await stack.client.write_stream("paged", stack.flow.deltas, "client", str(number))
    seen, token = [], ""
    while True:
        page = await stack.client.list_stream_messages("paged", stack.flow.deltas, 2, token)
        seen.append([each.value for each in page.messages])
        token = page.next_page_token
        if not token:
            break
    assert seen == [["4", "3"], ["2", "1"], ["0"]]


async def test_the_oldest_messages_go_when_the_capacity_is_reached(stack):
    """A token of a trimmed message leads to the oldest that is left."""
    for number in range(4):
        await stack.client.write_stream(
            "full", stack.flow.deltas, "client", f"{number}" + "x" * 400
        )
    first = await stack.client.read_stream("full", stack.flow.deltas)
    assert first.value.startswith("2")
    again = await stack.client.read_stream("full", stack.flow.deltas, "1")
    assert again.value == first.value


async def test_a_message_that_is_too_large_is_refused(stack):
    """A client is told; a token that nobody gave out is refused as well."""
    with pytest.raises(DexServiceError, match="102400 bytes"):
        await stack.client.write_stream("large", stack.flow.deltas, "client", "x" * 200_000)
    with pytest.raises(DexServiceError, match="no token"):
        await stack.client.read_stream("large", stack.flow.deltas, "nonsense")
