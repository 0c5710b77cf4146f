"""The emulator as a server in this process."""

from __future__ import annotations

import ipaddress
from types import TracebackType
from typing import Any, Self

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_agents.executor import Clock, SystemClock, VirtualClock
from dex_agents_dex.emulator.attempts import Attempts
from dex_agents_dex.emulator.dispatch import Dispatcher
from dex_agents_dex.emulator.dispatch_listening import ListeningDispatcher
from dex_agents_dex.emulator.dispatch_pull import PullDispatcher
from dex_agents_dex.emulator.flows import Flows
from dex_agents_dex.emulator.rpc import Rpcs
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.service import FlowService, flow_service_handler
from dex_agents_dex.emulator.storage import Storage
from dex_agents_dex.emulator.streams import Streams

__all__ = ("DexEmulator", "require_loopback")

_OPTIONS = (
    # A worker's large frame must fail its own task. gRPC's limit would end the whole stream.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
_GRACE_SECONDS = 0.2


class DexEmulator:
    """The Dex wire protocol on a loopback port, for tests and development.

    Args:
        port: 0 picks a free one.
        host: A loopback address.
        store: ``sqlite:///PATH`` keeps flows across a kill; empty keeps them in memory.
        time_scale: Multiplies the delays of Timers, retries, heartbeat and flow timeouts.
            What handlers can see of time, such as method timeouts, is never scaled.
        dispatch_wait: How many seconds a task waits for a pull worker.
        longest_poll: How many seconds a waiting call is held at most.
        clock: What flows take for the time, None for the system's. With a `VirtualClock`
            a test moves it; what is under way is waited for in real time.

    Raises:
        ValueError: The host is no loopback address, or the store is no SQLite file.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        store: str = "",
        time_scale: float = 1.0,
        dispatch_wait: float = 10.0,
        longest_poll: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._host = require_loopback(host)
        self._port = port
        self._listening = ListeningDispatcher()
        self._pull = PullDispatcher(dispatch_wait)
        clock = clock or SystemClock()
        self._flows = Flows(time_scale, Storage(store) if store else None, clock)
        streams = Streams()
        self._attempts = Attempts(self._flows, self._dispatcher, streams)
        self._flows.perform = self._attempts.perform
        if isinstance(clock, VirtualClock):
            clock.running = self._attempts.running
        rpcs = Rpcs(self._flows, self._dispatcher)
        self._service = FlowService(self._flows, rpcs, streams, longest_poll)
        self._server: Any = None

    @property
    def address(self) -> str:
        """Where clients and workers find it, as ``host:port``."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Take up stored flows and listen.

        Raises:
            OSError: The port cannot be had.
        """
        server = grpc.aio.server(options=_OPTIONS)
        handlers = (flow_service_handler(self._service), self._pull_handler())
        server.add_generic_rpc_handlers(handlers)
        try:
            self._port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.address}: {error}") from error
        await self._flows.open()
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop listening and let go of every worker; stored flows go on at the next start."""
        await self._attempts.close()
        self._pull.close()
        if self._server is not None:
            await self._server.stop(_GRACE_SECONDS)
        await self._listening.close()
        await self._flows.close_all()

    async def wait(self) -> None:
        """Return when the server has stopped."""
        await self._server.wait_for_termination()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _dispatcher(self, run: Run) -> Dispatcher:
        return self._pull if run.target.is_pull_mode else self._listening

    def _pull_handler(self) -> grpc.GenericRpcHandler:
        async def poll(_requests: Any, context: Any) -> None:
            await self._pull.serve(context)

        method = grpc.stream_stream_rpc_method_handler(
            poll,
            request_deserializer=pb.PollWorkerTaskRequest.FromString,
            response_serializer=pb.PollWorkerTaskResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            "dex.WorkerTaskService", {"PollWorkerTask": method}
        )


def require_loopback(host: str) -> str:
    """Return a host that only this machine can reach.

    Raises:
        ValueError: Others could reach it.
    """
    if host == "localhost":
        return "127.0.0.1"
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(
            f"The Dex emulator listens on loopback only, not on {host!r}: "
            "it asks nobody who they are."
        )
    return f"[{host}]" if ":" in host else host
