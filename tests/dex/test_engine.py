"""Engines and workers as processes: they start, are found ready, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from dex_agents import MissingExtraError
from dex_agents.errors import FlowNotFoundError
from dex_agents.testing import AgentTestStack, read_step_history, wait_until
from dex_agents_dex import DexBackend
from dex_agents_dex.testing import (
    BinaryMissingError,
    ChildExitedError,
    ChildNotReadyError,
    DexcliEngine,
    EmulatorEngine,
    WorkerSettingError,
    run_agent_worker,
)
from dex_agents_dex.testing.engine import answers
from tests.dex.conftest import ROOT
from tests.dex.dexcli_stand_in import install
from tests.dex.my_agent import build_flow

pytestmark = pytest.mark.timeout(90)


def left_running(folder: Path) -> set[int]:
    """Return the processes that live in a folder or were given its path."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            cwd = (process / "cwd").readlink()
            given = (process / "environ").read_bytes()
        except OSError:
            continue
        if cwd.is_relative_to(folder) or str(folder).encode() in given:
            found.add(int(process.name))
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Whatever a test does, no process of it is left."""
    yield
    assert not left_running(tmp_path)


@pytest.fixture
def dexcli(tmp_path) -> Path:
    """The stand-in for dexcli, with a dex-server-zd beside it."""
    return install(tmp_path / "bin")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Where an engine keeps its files."""
    folder = tmp_path / "engine"
    folder.mkdir()
    return folder


def my_stack(tmp_path: Path, flow=None, **options) -> AgentTestStack:
    """Return the stack of the kit's example."""
    options = {
        "worker_cwd": ROOT,
        "worker_env": {"MY_STATE_DIR": str(tmp_path)},
        **options,
    }
    return AgentTestStack(tmp_path, [flow or build_flow()], "tests.dex.my_worker", **options)


def timeless(entries):
    """Return history without its times."""
    return [structs.replace(each, at=0.0, begun_at=0.0) for each in entries]


def times(entries):
    """Return the times of history; they went through text, so they are nearly equal only."""
    return [pytest.approx((each.at, each.begun_at), abs=0.001) for each in entries]


# Engines


async def test_the_emulator_starts_and_stops(folder):
    """It answers when `start` returns, and does not when `stop` has."""
    engine = EmulatorEngine(folder)
    await engine.start()
    assert await answers(engine.address)
    assert left_running(folder)
    await engine.stop()
    assert not await answers(engine.address)


async def test_dexcli_is_started_with_free_ports_and_a_home_of_its_own(folder, dexcli):
    """It is told the engine, two ports and the server's path; its data stays in the folder."""
    engine = DexcliEngine(folder, dexcli)
    await engine.start()
    assert await answers(engine.address)
    await engine.stop()

    assert not await answers(engine.address)
    told = json.loads((folder / "home" / ".dex" / "told.json").read_text())
    assert engine.address == f"127.0.0.1:{told['dex_port']}"
    assert told["web_port"] not in (told["dex_port"], 8802)
    assert (told["engine"], told["open"]) == ("zd", "false")
    assert told["server"] == str(dexcli.with_name("dex-server-zd"))


async def test_dexcli_is_found_by_its_name(folder, dexcli, monkeypatch):
    """A name without a folder is looked up as a shell does."""
    monkeypatch.setenv("PATH", str(dexcli.parent), prepend=os.pathsep)
    engine = DexcliEngine(folder, "dexcli")
    await engine.start()
    await engine.stop()


async def test_two_engines_at_once_have_ports_of_their_own(tmp_path, dexcli):
    """Engines of two tests do not get into each other's way."""
    engines = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        engines.append(DexcliEngine(tmp_path / name, dexcli))
    await asyncio.gather(*(engine.start() for engine in engines))
    assert engines[0].address != engines[1].address
    assert await answers(engines[0].address)
    await engines[0].stop()
    assert await answers(engines[1].address)
    await engines[1].stop()


@pytest.mark.parametrize("path", ["missing/dexcli", "plain-file"])
async def test_a_missing_dexcli_is_named(folder, path, tmp_path):
    """What is no program is named, with the variable that says where it is."""
    (tmp_path / "plain-file").touch()
    with pytest.raises(BinaryMissingError, match=rf"{path}\. Set DEXCLI to its path"):
        await DexcliEngine(folder, tmp_path / path).start()


async def test_a_missing_server_is_named(folder, dexcli):
    """dex-server-zd is looked for beside dexcli; the error says what else one can do."""
    dexcli.with_name("dex-server-zd").unlink()
    with pytest.raises(BinaryMissingError, match=r"bin/dex-server-zd.*DEX_SERVER_ZD_BINARY"):
        await DexcliEngine(folder, dexcli).start()


async def test_the_server_may_be_elsewhere(folder, dexcli, tmp_path, monkeypatch):
    """DEX_SERVER_ZD_BINARY comes before what is beside dexcli."""
    elsewhere = tmp_path / "a-server"
    dexcli.with_name("dex-server-zd").rename(elsewhere)
    monkeypatch.setenv("DEX_SERVER_ZD_BINARY", str(elsewhere))
    engine = DexcliEngine(folder, dexcli)
    await engine.start()
    await engine.stop()
    told = json.loads((folder / "home" / ".dex" / "told.json").read_text())
    assert told["server"] == str(elsewhere)


async def test_an_engine_that_exits_is_quoted(folder, dexcli, monkeypatch):
    """The error has the exit status and everything that was printed."""
    monkeypatch.setenv("STAND_IN", "exits")
    with pytest.raises(ChildExitedError) as caught:
        await DexcliEngine(folder, dexcli).start()
    assert caught.value.status == 3
    assert "exited with status 3" in str(caught.value)
    assert "starting on port" in str(caught.value)
    assert "the disk is full" in str(caught.value)


async def test_an_emulator_that_exits_is_quoted(folder):
    """A wrong argument shows in the error."""
    with pytest.raises(ChildExitedError, match="unrecognized arguments: --nonsense"):
        await EmulatorEngine(folder, ["--nonsense"]).start()


async def test_an_engine_that_never_answers_is_given_up(folder, dexcli, monkeypatch):
    """After its time it is killed with all of its processes, and its output is quoted."""
    monkeypatch.setenv("STAND_IN", "mute")
    engine = DexcliEngine(folder, dexcli, ready_seconds=2)
    with pytest.raises(ChildNotReadyError, match=r"not ready after 2 s(.|\n)*starting on port"):
        await engine.start()
    assert not left_running(folder)
    await engine.stop()


async def test_an_engine_that_does_not_stop_is_killed(folder, dexcli, monkeypatch):
    """Ctrl-C is tried first, then SIGKILL."""
    monkeypatch.setenv("STAND_IN", "stubborn")
    engine = DexcliEngine(folder, dexcli, stop_seconds=0.5)
    await engine.start()
    await engine.stop()
    assert not left_running(folder)


@pytest.mark.parametrize("behaviour", ["", "stubborn"])
async def test_a_cancelled_stop_kills(folder, dexcli, monkeypatch, behaviour):
    """Whoever cannot wait for the end leaves nothing behind either."""
    monkeypatch.setenv("STAND_IN", behaviour)
    engine = DexcliEngine(folder, dexcli)
    await engine.start()
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not left_running(folder)


# Stacks


@pytest.mark.parametrize("mode", ["pull", "listening"])
async def test_a_whole_stack_on_dexcli(tmp_path, dexcli, monkeypatch, mode):
    """With DEXCLI set a session runs on it, and history read by it is the server's own."""
    monkeypatch.setenv("DEXCLI", str(dexcli))
    flow = build_flow()
    async with my_stack(tmp_path, flow, mode=mode) as stack:
        sessions = stack.sessions(flow)
        await stack.start_worker()
        await sessions.start_session("session-1", "refund order 7")

        async def interrupt():
            snapshot = await sessions.get_agent_snapshot("session-1")
            return snapshot.pending_interrupts

        await wait_until("an approval", interrupt)
        by_dexcli = await stack.read_step_history("session-1")
        async with DexBackend(stack.server_address) as backend:
            by_server = await backend.read_history("session-1")
        with pytest.raises(FlowNotFoundError):
            await stack.read_step_history("nobody")
    steps = [entry for entry in by_server if entry.event_type.startswith("step_")]
    assert timeless(by_dexcli) == timeless(steps)
    assert [(each.at, each.begun_at) for each in by_dexcli] == times(steps)
    assert [entry.step_type for entry in by_dexcli][:2] == ["StartAgentSession", "RunModel"]
    assert (tmp_path / "dex-stack-1" / "home" / ".dex").exists()


async def test_a_dexcli_that_fails_is_quoted(dexcli, monkeypatch):
    """History cannot be read from where no server is; the error says what dexcli said."""
    monkeypatch.setenv("DEXCLI", str(dexcli))
    with pytest.raises(ChildExitedError, match=r"dexcli flow history(.|\n)*UNAVAILABLE"):
        await read_step_history("127.0.0.1:1", "session-1")


async def test_history_of_an_unknown_session(tmp_path):
    """It is said that there is none."""
    async with my_stack(tmp_path) as stack:
        with pytest.raises(FlowNotFoundError):
            await read_step_history(stack.server_address, "nobody")


async def test_nothing_is_left_when_a_test_fails(tmp_path):
    """The error of the block comes out, and every process is gone."""
    with pytest.raises(ZeroDivisionError):
        async with my_stack(tmp_path) as stack:
            await stack.start_worker()
            assert len(left_running(tmp_path)) == 2
            _ = 1 / 0
    assert not left_running(tmp_path)


@pytest.mark.parametrize("moment", ["engine.pid", "worker-1.pid", "worker-1.ready"])
async def test_nothing_is_left_when_a_test_is_cancelled(tmp_path, moment):
    """Also when it is cancelled while the engine or a worker starts."""

    async def run() -> None:
        async with my_stack(tmp_path) as stack:
            await stack.start_worker()
            await asyncio.Event().wait()

    running = asyncio.create_task(run())
    await wait_until(moment, (tmp_path / "dex-stack-1" / moment).exists, interval=0.001)
    assert left_running(tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not left_running(tmp_path)


async def test_a_worker_that_exits_is_quoted(tmp_path):
    """What the child wrote stands in the error, and the stack can go on."""
    flow = build_flow()
    stack = AgentTestStack(tmp_path, [flow], "tests.dex.no_such_worker", worker_cwd=ROOT)
    async with stack:
        with pytest.raises(ChildExitedError, match=r"worker-1 exited(.|\n)*no_such_worker"):
            await stack.start_worker()
        assert await answers(stack.server_address)


async def test_a_worker_is_killed_at_once(tmp_path):
    """`kill` returns when the process is gone, may be repeated, and spares the others."""
    async with my_stack(tmp_path) as stack:
        worker, other = await stack.start_worker(), await stack.start_worker()
        assert worker.pid in left_running(tmp_path)
        worker.kill()
        assert worker.pid not in left_running(tmp_path)
        worker.kill()
        assert (worker.status, other.status) == (-signal.SIGKILL, None)


@pytest.mark.parametrize("mode", ["pull", "listening"])
async def test_a_worker_stops_when_told(tmp_path, mode):
    """SIGTERM ends it in order."""
    async with my_stack(tmp_path, mode=mode) as stack:
        worker = await stack.start_worker()
        os.kill(worker.pid, signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 20) == 0


DYING_RUN = """
import asyncio, os, sys
from pathlib import Path
from tests.dex.test_engine import my_stack

async def main():
    async with my_stack(Path(sys.argv[1])) as stack:
        await stack.start_worker()
        print(stack.server_address, flush=True)
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_what_an_earlier_run_left_is_killed(tmp_path):
    """A run that was killed leaves an engine and a worker; the next one in its folder ends them."""
    earlier = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DYING_RUN, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await earlier.communicate()
    stale = left_running(tmp_path)
    assert len(stale) == 2
    assert await answers(printed.decode().strip())

    async with my_stack(tmp_path) as stack:
        assert stack.folder.name == "dex-stack-1"
        assert not stale & left_running(tmp_path)
        assert stack.server_address != printed.decode().strip()
        await stack.start_worker()


async def test_a_stack_that_lives_is_left_alone(tmp_path):
    """Two stacks below one folder have folders and processes of their own."""
    async with my_stack(tmp_path) as first, my_stack(tmp_path) as second:
        assert first.folder != second.folder
        await first.start_worker()
        await second.start_worker()
        assert await answers(first.server_address)
        assert len(left_running(tmp_path)) == 4


async def test_a_stack_knows_its_flows_and_modes(tmp_path):
    """Another flow, even an equal one, and another mode are refused."""
    with pytest.raises(ValueError, match="'push' is no mode"):
        my_stack(tmp_path, mode="push")
    flow = build_flow()
    stack = my_stack(tmp_path, flow)
    with pytest.raises(RuntimeError, match="async with"):
        stack.sessions(flow)
    with pytest.raises(RuntimeError, match="async with"):
        _ = stack.server_address
    async with stack:
        with pytest.raises(ValueError, match="none of those"):
            stack.sessions(build_flow())


# Imports


def test_a_worker_needs_a_stack(monkeypatch):
    """Run by hand, a worker module says what it is for."""
    monkeypatch.delenv("DEX_AGENTS_SERVER_ADDRESS", raising=False)
    with pytest.raises(WorkerSettingError, match="DEX_AGENTS_SERVER_ADDRESS is not set"):
        run_agent_worker([build_flow()])


def run_python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_kit_loads_no_sdk():
    """Importing the kit, even all of it, loads neither the SDK nor gRPC."""
    code = (
        "import sys\nfrom dex_agents.testing import *\n"
        "print({'dex', 'grpc', 'dex_agents_dex'} & set(sys.modules))"
    )
    assert run_python(code) == "set()\n"


def test_without_the_extra_the_kit_says_which():
    """Asking for a Dex name without the SDK names the extra that brings it."""
    code = (
        "import sys\nsys.modules['dex'] = None\nimport dex_agents.testing as kit\n"
        "try:\n    kit.AgentTestStack\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    printed = run_python(code)
    assert printed.startswith(MissingExtraError.__name__)
    assert "dex-agents[dex]" in printed


def test_the_kit_has_no_other_names():
    """A name that it does not have is an AttributeError as with any module."""
    code = "import dex_agents.testing as kit\nprint(hasattr(kit, 'AgentTestStak'))"
    assert run_python(code) == "False\n"
