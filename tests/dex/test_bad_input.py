"""Whatever is wrong on Dex is a clear error of the call that it belongs to, and of no other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from google.protobuf import empty_pb2

from dex_agents.backend import open_backend
from dex_agents.errors import DexAgentsError, EncodingError, FlowIdError, StoreUnavailableError
from dex_agents.table import (
    Attribute,
    Channel,
    Decision,
    FlowTable,
    Movement,
    RetryPolicy,
    Rpc,
    RpcResult,
    StepOptions,
    Timer,
    Wait,
)
from dex_agents_dex import DexBackend, IncompatibleDexError, WorkerCallError
from dex_agents_dex.emulator import DexEmulator
from dex_agents_dex.sdk import require_sdk
from dex_agents_dex.wire import MAX_BYTES
from tests.addresses import free_address
from tests.dex.running import (
    INBOX,
    ITEMS,
    LOG,
    NOTE,
    Runs,
    done,
    flow,
    running,
    step,
    waiting,
)

MIB = 1024 * 1024
ONCE = RetryPolicy(max_attempts=1)
DEX = ("listening", "pull")


@pytest.fixture(params=DEX)
async def runs(request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    """Dex, with workers that listen and with workers that pull."""
    async with running(request.param) as found:
        yield found


async def idle(_context: Any, _given: Any) -> Decision:
    """End the branch, and leave the flow open."""
    return Decision.dead_end()


# Too large


def too_large_note(context: Any) -> None:
    """Write one value that no message holds."""
    context.set(NOTE, "x" * (4 * MIB + 1))


def too_large_together(context: Any) -> None:
    """Write two values that fit one by one."""
    context.set(NOTE, "x" * (3 * MIB))
    context.publish(INBOX, "y" * (2 * MIB))


def too_large_escaped(context: Any) -> None:
    """Write what is small in UTF-8 and large as the SDK writes it."""
    context.set(ITEMS["k"], {"ä" * MIB: 1})


def too_many(context: Any) -> None:
    """Publish much that is small: what is around each message counts too."""
    for _ in range(100_000):
        context.publish(INBOX, "")


def too_large_output(_context: Any) -> Decision:
    """Complete with what no message holds."""
    return Decision.graceful_complete(["x" * (5 * MIB)])


def too_large_input(_context: Any) -> Decision:
    """Go on with inputs that fit one by one."""
    return Decision.go_to_many(*(Movement("Next", "x" * (3 * MIB)) for _ in range(2)))


def too_large_stream(context: Any) -> None:
    """Write a message that no frame holds."""
    context.write(LOG, "x" * (5 * MIB))


@pytest.mark.parametrize(
    "act",
    [
        too_large_note,
        too_large_together,
        too_large_escaped,
        too_many,
        too_large_output,
        too_large_input,
        too_large_stream,
    ],
)
async def test_what_is_too_large_fails_its_attempt_and_nothing_else(runs, act):
    """The failure route hears the sizes; the worker serves other flows at once."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        return act(context) or Decision.dead_end()

    async def rescue(context: Any, _given: Any) -> Decision:
        seen.append((context.recovery_error.error_type, context.recovery_error.detail))
        return Decision.graceful_complete()

    async def following(_context: Any, _given: str) -> Decision:
        return Decision.dead_end()

    table = flow(
        step("Start", start, "Next", retry=ONCE, failure_step="Rescue"),
        step("Rescue", rescue),
        step("Next", following, tp=str),
    )
    other = flow(done(), name="Other")
    async with runs.serving(table, other):
        large = await runs.start(table)
        begun = time.monotonic()
        assert (await runs.ended(await runs.start(other))).status == "completed"
        assert (await runs.ended(large)).status == "completed"
        assert (await runs.ended(await runs.start(other))).status == "completed"
        assert time.monotonic() - begun < 10
    ((error_type, detail),) = seen
    assert error_type == "dex_agents.errors.EncodingError"
    assert f"bytes, and a message to Dex holds {MAX_BYTES:,}" in detail


async def test_the_last_write_of_an_attribute_is_what_counts(runs):
    """A value that is written over and over is sent once; a caught error spoils nothing."""

    async def start(context: Any, _given: Any) -> Decision:
        for _ in range(4):
            context.set(NOTE, "x" * (3 * MIB))
        with pytest.raises(EncodingError):
            context.publish(INBOX, "x" * (3 * MIB))
        context.delete(NOTE)
        context.publish(INBOX, "x" * (3 * MIB))
        return Decision.graceful_complete()

    assert (await runs.run(flow(step("Start", start, retry=ONCE)))).status == "completed"


async def test_the_largest_result_is_sent(runs):
    """A value at the limit of a message passes, there and back."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        context.set(NOTE, "x" * (MAX_BYTES - 1000))
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(len(context.get(NOTE)))
        return Decision.graceful_complete()

    table = flow(step("Start", start, "Look", retry=ONCE), step("Look", look, retry=ONCE))
    assert (await runs.run(table)).status == "completed"
    assert seen == [MAX_BYTES - 1000]


async def test_a_state_that_no_message_holds_fails_its_flow_and_no_other(runs):
    """Attributes that grew too large together stop their own flow, with a reason."""

    async def start(context: Any, _given: Any) -> Decision:
        context.set(NOTE, "x" * (3 * MIB))
        return Decision.go_to("Next")

    async def following(context: Any, _given: Any) -> Decision:
        context.set(ITEMS["k"], {"x" * (3 * MIB): 1})
        return Decision.go_to("Last")

    table = flow(
        step("Start", start, "Next", retry=ONCE),
        step("Next", following, "Last", retry=ONCE),
        step("Last", idle, retry=ONCE, loads=(ITEMS,)),
    )
    other = flow(done(), name="Other")
    async with runs.serving(table, other):
        large = await runs.ended(await runs.start(table))
        assert large.status == "failed"
        assert "limit" in str(large.failure)
        assert (await runs.ended(await runs.start(other))).status == "completed"


@pytest.mark.parametrize("size", [4 * MIB, 50 * MIB])
async def test_a_call_that_is_too_large_is_never_made(runs, size):
    """Start inputs and RPC inputs are measured before they are sent."""
    ask = Rpc("ask", lambda _context, given: RpcResult(given), input=str, output=str)
    table = flow(step("Start", idle, tp=str), rpcs=(ask,))
    async with runs.serving(table):
        with pytest.raises(EncodingError, match="input of Start cannot be stored: it has"):
            await runs.start(table, "x" * size)
        flow_id = await runs.start(table, "small")
        with pytest.raises(EncodingError, match="input of ask cannot be stored: it has"):
            await runs.call(table, flow_id, "ask", "x" * size)
        assert await runs.call(table, flow_id, "ask", "small") == "small"


async def test_an_rpc_that_answers_too_much_is_its_callers_error(runs):
    """The caller hears the sizes; the flow and its worker go on."""
    ask = Rpc("ask", lambda _context, given: RpcResult("x" * given), input=int, output=str)
    table = flow(step("Start", idle), rpcs=(ask,))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        with pytest.raises(WorkerCallError, match="output of ask cannot be stored: it has"):
            await runs.call(table, flow_id, "ask", 5 * MIB)
        assert len(await runs.call(table, flow_id, "ask", 3 * MIB)) == 3 * MIB


# Values that do not fit


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (5, "output of ask cannot be stored: it holds str, not int"),
        ("\ud800", "output of ask cannot be stored"),
    ],
)
async def test_an_rpc_that_answers_nonsense_is_told_so(runs, output, said):
    """The output is checked against the row on the worker."""
    table = flow(step("Start", idle), rpcs=(Rpc("ask", lambda *_: RpcResult(output), output=str),))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        with pytest.raises(WorkerCallError, match=said):
            await runs.call(table, flow_id, "ask")


class BrokenError(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text \ud800")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RuntimeError("lone \ud800"), "RuntimeError: lone \ufffd"),
        (lambda: TypeError("lone \ud800"), "TypeError: lone \ufffd"),
        (BrokenError, "BrokenError: BrokenError"),
        (lambda: KeyError("k"), "KeyError: 'k'"),
        (ValueError, "ValueError: ValueError"),
    ],
)
async def test_an_rpcs_error_is_told_in_plain_text(runs, make, said):
    """Text that UTF-8 cannot carry, or that there is not, never hides the error."""

    def fail(_context: Any, _given: Any) -> RpcResult[None]:
        raise make()

    table = flow(step("Start", idle), rpcs=(Rpc("ask", fail),))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        with pytest.raises(WorkerCallError) as caught:
            await runs.call(table, flow_id, "ask")
    assert said in str(caught.value)
    assert flow_id in str(caught.value)


@pytest.mark.parametrize("letter", ["x", "ä", "語", "😀", "\n", "%", '"', "xxxxä"])
async def test_a_long_error_text_is_cut_and_not_lost(runs, letter):
    """Dex keeps the head of a long message; it is never cut within a letter.

    gRPC refuses error texts of over 8 KiB at random, so each call is made often.
    """
    seen = []

    async def fail(_context: Any, _given: Any) -> Decision:
        raise RuntimeError("begun " + letter * 50_000)

    async def rescue(context: Any, _given: Any) -> Decision:
        seen.append((context.recovery_error.error_type, context.recovery_error.detail))
        return Decision.graceful_complete()

    def ask(_context: Any, _given: Any) -> RpcResult[None]:
        raise RuntimeError("begun " + letter * 50_000)

    table = flow(
        step("Start", fail, retry=ONCE, failure_step="Rescue"),
        step("Rescue", rescue),
        rpcs=(Rpc("ask", ask, is_read_only=True),),
    )
    async with runs.serving(table):
        for _ in range(8):
            flow_id = await runs.start(table)
            await runs.ended(flow_id)
            with pytest.raises(WorkerCallError, match="RuntimeError: begun " + letter * 20):
                await runs.call(table, flow_id, "ask")
    for error_type, detail in seen:
        assert error_type == "RuntimeError"
        assert detail.startswith("begun " + letter * 80)
        assert "\ufffd" not in detail


async def test_a_timer_that_dex_cannot_hold_fails_its_attempt(runs):
    """A Timer of a thousand years is an error with the reason."""
    table = flow(waiting(Wait.until(Timer(1e12)), idle, retry=ONCE))
    summary = await runs.run(table)
    assert summary.status == "failed"
    assert "A Timer of 1e+12 seconds is longer than" in str(summary.failure)


async def test_a_movement_with_options_that_dex_cannot_hold_fails_its_attempt(runs):
    """The reason names the Step and the option."""

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.go_to("Next", options=StepOptions(execute_timeout=1e12))

    table = flow(step("Start", start, "Next", retry=ONCE), step("Next", idle))
    summary = await runs.run(table)
    assert "Next has a duration over" in str(summary.failure)


async def test_a_value_of_another_version_is_told(runs):
    """What an older table stored and this one cannot read names the row."""
    old = FlowTable(
        "Flow", (step("Start", idle),), (_writing("write", list[int], [1]),), _rows(list[int])
    )
    new = FlowTable("Flow", (step("Start", idle),), (_reading("read", int),), _rows(int))
    async with runs.serving(old):
        flow_id = await runs.start(old)
        await runs.call(old, flow_id, "write")
    async with runs.serving(new):

        async def told() -> str:
            try:
                await runs.call(new, flow_id, "read")
            except WorkerCallError as error:
                return str(error)
            raise AssertionError

        if runs.kind == "listening":
            return  # the flow stays with the address that it was started with
        assert "The stored Value cannot be read" in await told()


def _rows(tp: Any) -> tuple[Any, ...]:
    return (Attribute("Value", tp), Channel("Inbox", str))


def _writing(name: str, tp: Any, value: Any) -> Rpc[Any, Any]:
    def write(context: Any, _given: Any) -> RpcResult[None]:
        context.set(Attribute("Value", tp), value)
        return RpcResult(None)

    return Rpc(name, write)


def _reading(name: str, tp: Any) -> Rpc[Any, Any]:
    return Rpc(
        name,
        lambda context, _given: RpcResult(context.get(Attribute("Value", tp))),
        output=tp,
        is_read_only=True,
    )


# Nobody there


async def test_a_call_without_a_worker_says_what_is_missing(runs):
    """Nobody serves the flow's type: the error says that a worker is needed."""
    table = flow(step("Start", idle), rpcs=(Rpc("ask", lambda *_: RpcResult(None)),))
    other = flow(done(), name="Other")
    async with runs.serving(other):
        flow_id = await runs.start(table)
        with pytest.raises(WorkerCallError, match="needs a running worker"):
            await runs.call(table, flow_id, "ask")
        assert (await runs.backend.describe_flow(flow_id)).status == "running"
    async with runs.serving(table):
        flow_id = await runs.start(table)
        assert await runs.call(table, flow_id, "ask") is None


async def test_a_flow_that_was_started_before_its_worker_runs_once_there_is_one():
    """A flow waits for a worker that pulls, however late it comes."""
    async with running("pull") as runs:
        table = flow(done())
        flow_id = await runs.start(table)
        assert (await runs.backend.describe_flow(flow_id)).status == "running"
        async with runs.serving(table):
            assert (await runs.ended(flow_id)).status == "completed"


@pytest.mark.parametrize("flow_id", ["", " ", "a/b", "a$b", "a:b", "a\n", "\ud800"])
async def test_an_id_that_no_flow_can_have_is_refused(runs, flow_id):
    """The ID is checked before the server is asked."""
    with pytest.raises(FlowIdError):
        await runs.backend.start_flow(flow(done()), flow_id, None)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "no-such-host.invalid:8801", "not an address", ""]
)
async def test_a_wrong_address_is_told_when_the_backend_is_opened(address):
    """Opening says which address was tried, and what happened."""
    with pytest.raises(StoreUnavailableError, match=f"at {address}.*no Dex server answers"):
        async with DexBackend(address):
            pass


async def test_a_server_that_went_away_is_told():
    """A call to a server that is gone is StoreUnavailableError with its address."""
    emulator = DexEmulator()
    await emulator.start()
    async with DexBackend(emulator.address) as backend:
        await emulator.stop()
        for call in (
            backend.list_flows(),
            backend.describe_flow("x"),
            backend.stop_flow("x", ""),
            backend.start_flow(flow(done()), "x", None),
        ):
            with pytest.raises(StoreUnavailableError, match=emulator.address):
                await call


async def test_a_backend_that_is_not_open_says_so():
    """Every call needs ``async with``."""
    backend = DexBackend("127.0.0.1:1")
    for call in (backend.list_flows(), backend.start_flow(flow(done()), "x", None)):
        with pytest.raises(StoreUnavailableError, match="async with"):
            await call


@pytest.mark.parametrize(
    ("url", "server", "worker"),
    [
        ("dex:", "localhost:8801", None),
        ("dex://", "localhost:8801", None),
        ("dex://example", "example:8801", None),
        ("dex://example:1", "example:1", None),
        ("dex://[::1]", "[::1]:8801", None),
        ("dex://[::1]:5", "[::1]:5", None),
        ("dex://e:1?worker=127.0.0.1:0", "e:1", "127.0.0.1:0"),
    ],
)
def test_a_url_names_a_server(url, server, worker):
    """The port may be left out; workers listen where the URL says, or pull."""
    backend: Any = open_backend(url)
    assert (backend.server_address, backend._worker_address) == (server, worker)


# Servers that are no servers


@asynccontextmanager
async def fake_server(reply: Any) -> AsyncIterator[str]:
    """Serve nothing but GetServerInfo."""

    async def info(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if isinstance(reply, grpc.StatusCode):
            await context.abort(reply, "go away")
        return reply

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        info,
        request_deserializer=empty_pb2.Empty.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    handler = grpc.method_handlers_generic_handler("dex.FlowService", {"GetServerInfo": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def versions(least: int, most: int) -> pb.ServerInfo:
    """Return what a server says of itself."""
    return pb.ServerInfo(minimum_supported_protocol_version=least, current_protocol_version=most)


@pytest.mark.parametrize(("least", "most"), [(0, 0), (4, 9), (0, 3), (3, 2), (1, 0)])
async def test_a_server_of_another_protocol_is_told(least, most):
    """The error names the server's versions and ours."""
    async with fake_server(versions(least, most)) as address:
        with pytest.raises(IncompatibleDexError, match=f"{address} is {least} to {most}"):
            async with DexBackend(address):
                pass


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 3), (3, 7), (2, 2)])
async def test_a_server_of_a_protocol_that_fits_is_taken(least, most):
    """One version that both speak is enough."""
    async with fake_server(versions(least, most)) as address, DexBackend(address) as backend:
        assert backend.server_address == address


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_server_that_refuses_is_told(code):
    """A server that is not Dex, or lets nobody in, is named with its answer."""
    async with fake_server(code) as address:
        with pytest.raises(StoreUnavailableError, match=f"{address}.*{code.name}"):
            async with DexBackend(address):
                pass


# Versions and extras


@pytest.mark.parametrize("found", ["1.22.0", "1.0", "1", "0.99.1", "2.0.0", "2.0.0rc1", "10.1.0"])
def test_an_sdk_that_does_not_fit_is_told(found):
    """The error names the version found, those that fit, and how to get one."""
    with pytest.raises(IncompatibleDexError) as caught:
        require_sdk(found)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, DexAgentsError)
    for part in (found, "1.23 or a later 1.x", "pip install 'dex-agents[dex]'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("found", [None, "1.23.0", "1.23", "1.30.0", "1.24rc1", "1.23.0.dev1+x"])
def test_an_sdk_that_fits_is_taken(found):
    """Every 1.x from 1.23 on fits, and so does the installed one."""
    require_sdk(found)


@pytest.mark.parametrize("found", ["nonsense", "x.y", "unknown"])
def test_an_sdk_without_a_version_is_told(found):
    """A version that is none does not fit; nothing else is raised."""
    with pytest.raises(IncompatibleDexError, match=found):
        require_sdk(found)


BLOCKED = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dex", "grpc"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
import dex_agents
from dex_agents import MissingExtraError, open_backend
"""


@pytest.mark.parametrize(
    "use",
    ["dex_agents.AgentSessionFlow", "open_backend('dex://localhost')"],
)
def test_a_missing_extra_is_told(use):
    """Without the SDK everything else is imported; the rest says which extra to install."""
    code = BLOCKED + textwrap.dedent(f"""
        try:
            {use}
        except MissingExtraError as error:
            print(error)
        open_backend("memory:")
        assert not {{"dex", "grpc"}} & set(sys.modules)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.endswith("needs an extra: pip install 'dex-agents[dex]'.\n")


OLDER = """
import importlib.metadata
import sys

installed = importlib.metadata.version
importlib.metadata.version = lambda name: "1.22.0" if name == "dex-python-sdk" else installed(name)
import dex_agents

for use in (lambda: dex_agents.AgentSessionFlow, lambda: dex_agents.open_backend("dex:")):
    try:
        use()
    except dex_agents.DexAgentsError as error:
        print(type(error).__name__, error)
assert "dex" not in sys.modules
"""


def test_an_sdk_that_does_not_fit_is_told_before_it_is_imported():
    """The two ways to Dex give the reason itself, not a missing extra."""
    done = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    said = "IncompatibleDexError The installed dex-python-sdk is 1.22.0; this dex-agents needs 1.23"
    assert [line.startswith(said) for line in done.stdout.splitlines()] == [True, True]


async def test_a_worker_that_cannot_listen_says_so():
    """An address that is taken fails the worker's start, and not some call later."""
    async with (
        DexEmulator() as emulator,
        DexBackend(emulator.address, worker_address=emulator.address) as backend,
    ):
        entered = False
        with pytest.raises(StoreUnavailableError, match=f"{emulator.address}"):
            async with backend.worker([flow(done())]):
                entered = True
        assert not entered


@pytest.mark.parametrize("kind", DEX)
async def test_a_worker_without_a_server_says_so(kind):
    """A worker that finds no server fails its start, with the reason."""
    address = "127.0.0.1:0" if kind == "listening" else None
    backend = DexBackend("127.0.0.1:1", worker_address=address)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        async with backend.worker([flow(done())]):
            raise AssertionError


async def test_a_worker_that_is_left_at_once_ends_well():
    """A block that does nothing starts and ends a worker, whatever its address."""
    async with DexEmulator() as emulator:
        for address in (None, "127.0.0.1:0", free_address()):
            async with DexBackend(emulator.address, worker_address=address) as backend:
                for _ in range(2):
                    async with backend.worker([flow(done())]):
                        pass


async def test_two_workers_share_the_work_and_one_may_leave():
    """Pulling workers of one type come and go; flows go on with those that are left."""
    async with running("pull") as runs:
        table = flow(done())
        async with runs.serving(table):
            async with runs.serving(table):
                first = await runs.ended(await runs.start(table))
            second = await runs.ended(await runs.start(table))
        assert (first.status, second.status) == ("completed", "completed")
