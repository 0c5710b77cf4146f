"""Dispatch to a worker that listens: its WorkerService is called."""

from __future__ import annotations

from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from grpc_status import rpc_status

from dex_agents_dex.emulator.dispatch import Outcome, WorkerFailed, WorkerTask

__all__ = ("ListeningDispatcher",)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),  # where a worker's error text travels
    # A worker that comes back on its old port is found again at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)

_METHODS = {
    "wait_for": "/dex.WorkerService/InvokeWaitForMethod",
    "execute": "/dex.WorkerService/InvokeExecuteMethod",
    "rpc": "/dex.WorkerService/InvokeWorkerRPC",
}
_OUTPUTS: dict[str, Any] = {
    "wait_for": pb.InvokeWaitForMethodOutput,
    "execute": pb.InvokeExecuteMethodOutput,
    "rpc": pb.InvokeWorkerRPCResponse,
}


class ListeningDispatcher:
    """Calls workers at the addresses that their flows name."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}

    async def invoke(self, task: WorkerTask) -> Outcome:
        """Call the worker and return its response."""
        if not task.address:
            raise WorkerFailed(
                "The flow names no worker: neither an address nor pull mode.", "NO_WORKER_TARGET"
            )
        try:
            return Outcome(await self._call(task))
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels.values():
            await channel.close()

    async def _call(self, task: WorkerTask) -> Any:
        channel = self._channel(task.address)
        method, output = _METHODS[task.kind], _OUTPUTS[task.kind]
        serialize = type(task.request).SerializeToString
        task.on_begin()
        if task.kind == "rpc":
            return await channel.unary_unary(method, serialize, output.FromString)(task.request)
        call = channel.unary_stream(method, serialize, output.FromString)(task.request)
        try:
            return await _result(call, task)
        finally:
            call.cancel()

    def _channel(self, address: str) -> Any:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._channels[address]


async def _result(call: Any, task: WorkerTask) -> Any:
    result = None
    async for output in call:
        kind = output.WhichOneof("output")
        if kind is None or result is not None:
            raise WorkerFailed("The worker sent a frame out of order.", "PROTOCOL_ERROR")
        if kind == "result":
            result = output.result
        else:
            task.on_frame(getattr(output, kind))
    if result is None:
        raise WorkerFailed("The worker sent no result.", "PROTOCOL_ERROR")
    return result


def _translated(error: grpc.aio.AioRpcError) -> WorkerFailed:
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # its code and message are not those of the call
        status = None
    for packed in status.details if status is not None else ():
        reported = pb.WorkerErrorResponse()
        if packed.Is(reported.DESCRIPTOR):
            packed.Unpack(reported)
            return WorkerFailed.from_worker(reported)
    code = error.code()
    detail = f"The worker could not be called: {code.name}: {error.details()}"
    return WorkerFailed(detail, code.name, grpc_status=code.value[0])
