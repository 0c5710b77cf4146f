"""The store: what was acknowledged outlives the emulator's kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dex import FlowStatus, Wait, go_to, graceful_complete

from dex_agents.errors import StoreForeignError
from dex_agents_dex.emulator import DexEmulator
from tests.dex_emulator.conftest import Stack
from tests.dex_emulator.flows import Await, ScriptedFlow, inbox, notes, title


def emulator_over(path: Path, port: int = 0) -> DexEmulator:
    return DexEmulator(port, store=f"sqlite:///{path}", time_scale=0.05)


async def test_flows_go_on_after_a_restart(tmp_path, mode):
    """Attributes, queues, waits, locals and the history are as they were."""
    flow = ScriptedFlow()

    async def wait(context):
        context.set_step_execution_local("key", "kept")
        return Wait.until(inbox.for_n(2))

    async def start(context):
        title.set(context, "stored")
        notes.set(context, "a", "1")
        return go_to(Await, "await")

    async def ended(context):
        local = context.get_step_execution_local("key", str)
        return graceful_complete(f"{title.get(context)} {local} {list(inbox.results(context))}")

    flow.scripts.wait["await"] = wait
    flow.scripts.execute |= {"start": start, "await": ended}
    path = tmp_path / "dex.db"
    async with emulator_over(path) as emulator:
        stack = Stack(emulator, flow, mode)
        await stack.open()
        flow_id = await stack.start()
        await stack.waiting_for(flow_id, "Await-1")
        await stack.publish(flow_id, "inbox", "one")
        before = await stack.history(flow_id)
        run_id = (await stack.client.describe_flow(flow_id)).run_id
        await stack.close()
    async with emulator_over(path) as emulator:
        stack = Stack(emulator, flow, mode)
        await stack.open()
        assert (await stack.client.describe_flow(flow_id)).run_id == run_id
        assert await stack.history(flow_id) == before
        await stack.client.update_flow_config(flow_id, stack.config())
        await stack.publish(flow_id, "inbox", "two")
        assert await stack.output(flow_id) == "stored kept ['one', 'two']"
        await stack.client.wait_for_step_completion(flow_id, *stack.step("Start", 1))
        await stack.close()
    async with emulator_over(path) as emulator:
        stack = Stack(emulator, flow, mode)
        await stack.open()
        assert (await stack.client.describe_flow(flow_id)).status is FlowStatus.COMPLETED
        await stack.close()


async def test_an_attempt_that_was_cut_off_counts(tmp_path, mode):
    """After the restart the next attempt begins, by the retry policy."""
    flow = ScriptedFlow()
    running = asyncio.Event()

    async def start(context):
        if context.attempt == 1:
            running.set()
            await asyncio.sleep(30)
        return graceful_complete(f"attempt {context.attempt}")

    flow.scripts.execute["start"] = start
    path = tmp_path / "dex.db"
    emulator = emulator_over(path)
    await emulator.start()
    stack = Stack(emulator, flow, mode)
    await stack.open()
    flow_id = await stack.start()
    await running.wait()
    await emulator.stop()
    port = int(emulator.address.rpartition(":")[2])
    async with emulator_over(path, port):
        # The same worker and client find the new emulator on the old port.
        await asyncio.wait_for(stack.client._channel.channel_ready(), 10)
        assert await stack.output(flow_id) == "attempt 2"
        await stack.close()


async def test_another_programs_store_is_refused(tmp_path):
    """A file that is no store is left as it is, and a URL of another kind is an error."""
    with pytest.raises(ValueError, match="sqlite:///PATH"):
        DexEmulator(store="postgres://nowhere")
    (tmp_path / "other.db").write_bytes(b"x" * 4096)
    with pytest.raises(StoreForeignError):
        await emulator_over(tmp_path / "other.db").start()
