"""The command line: the first line, the port, refusals, and a kill with a store."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from dex import Registry
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from dex_agents_dex.emulator import DexEmulator
from dex_agents_dex.emulator.__main__ import main
from tests.dex_emulator.conftest import running_worker
from tests.dex_emulator.flows import ScriptedFlow


@asynccontextmanager
async def emulating(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command; yield its process and the address of its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dex_agents_dex.emulator",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        prefix, _, address = line.decode().strip().rpartition(" ")
        assert prefix == "listening on"
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_first_line_says_where_it_listens_and_a_signal_ends_it():
    """Port 0 picks a free port; SIGTERM is a clean end."""
    async with emulating("--port", "0") as (process, address):
        host, _, port = address.partition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        async with grpc.aio.insecure_channel(address) as channel:
            info = await dex_pb2_grpc.FlowServiceStub(channel).GetServerInfo(Empty())
        assert (info.minimum_supported_protocol_version, info.current_protocol_version) == (1, 3)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_killed_emulator_comes_back_with_its_flows(tmp_path):
    """What StartFlow acknowledged is there after SIGKILL."""
    store = f"sqlite:///{tmp_path / 'dex.db'}"
    start = pb.StartFlowRequest(flow_id="f", flow_type="T", request_id="r")
    async with emulating("--port", "0", "--store", store) as (process, address):
        async with grpc.aio.insecure_channel(address) as channel:
            started = await dex_pb2_grpc.FlowServiceStub(channel).StartFlow(start)
        process.kill()
        await process.wait()
    async with (
        emulating("--port", "0", "--store", store) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        request = pb.GetFlowSummaryRequest(flow_id="f")
        found = await dex_pb2_grpc.FlowServiceStub(channel).GetFlowSummary(request)
    assert found.flow_execution_id.run_id == started.run_id


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "example.org", ""])
def test_an_address_that_others_could_reach_is_refused(host, capsys):
    """The command says why, and ends with status 2."""
    assert main(["--port", "0", "--host", host]) == 2
    assert "loopback only" in capsys.readouterr().err
    with pytest.raises(ValueError, match="loopback only"):
        DexEmulator(host=host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_every_loopback_address_will_do(host):
    """localhost is taken as 127.0.0.1."""
    assert DexEmulator(1234, host=host).address.endswith(":1234")


def test_a_store_of_another_kind_is_refused(capsys):
    """The message shows the form that is meant."""
    assert main(["--port", "0", "--store", "postgres://x"]) == 2
    assert "sqlite:///PATH" in capsys.readouterr().err


async def test_a_taken_port_is_an_error():
    """Two emulators never share a port."""
    async with DexEmulator() as emulator:
        port = int(emulator.address.rpartition(":")[2])
        with pytest.raises(OSError, match="cannot listen"):
            await DexEmulator(port).start()


async def test_a_worker_at_the_wrong_address_says_so():
    """The SDK's error reaches whoever started the worker."""
    registry = Registry([ScriptedFlow()], allow_async_handlers=True)
    with pytest.raises(RuntimeError, match="GetServerInfo failed"):
        async with running_worker(registry, "127.0.0.1:1", "listening"):
            pass
