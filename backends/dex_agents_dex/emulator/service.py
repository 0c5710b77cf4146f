"""FlowService: which call goes where. What has no method here answers UNIMPLEMENTED."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import empty_pb2
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from dex_agents.errors import FlowNotActiveError
from dex_agents.machine import TimerSkipped
from dex_agents_dex.emulator.conditions import timer_position
from dex_agents_dex.emulator.dispatch import MESSAGE_LIMIT
from dex_agents_dex.emulator.envelope import pack, unpack
from dex_agents_dex.emulator.errors import ServiceError, invalid, not_exists, oversized, unsupported
from dex_agents_dex.emulator.flows import Flows
from dex_agents_dex.emulator.history import history_page, timestamp
from dex_agents_dex.emulator.rpc import Rpcs
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.snapshot import messages_of
from dex_agents_dex.emulator.streams import Streams
from dex_agents_dex.emulator.waits import Waits

__all__ = ("LEFT_OUT", "FlowService", "flow_service_handler")

_SERVICE = pb.DESCRIPTOR.services_by_name["FlowService"]


class FlowService:
    """The calls that the emulator answers, each named as on the wire but in snake case."""

    def __init__(self, flows: Flows, rpcs: Rpcs, streams: Streams, longest: float) -> None:
        self._flows = flows
        self._rpcs = rpcs
        self._streams = streams
        self._waits = Waits(flows, longest)
        self._longest = longest

    # The server

    async def get_server_info(self, _wire: empty_pb2.Empty) -> pb.ServerInfo:
        """Return the protocol versions."""
        return pb.ServerInfo(
            server_version="dex-agents-emulator",
            minimum_supported_protocol_version=1,
            current_protocol_version=3,
            server_engine=pb.SERVER_ENGINE_ZD,
        )

    async def health_check(self, _wire: empty_pb2.Empty) -> pb.HealthInfo:
        """Return that the server is there."""
        return pb.HealthInfo(condition="OK", hostname="localhost")

    async def sync_attribute_indexes(
        self, _wire: pb.SyncAttributeIndexRequest
    ) -> pb.SyncAttributeIndexResponse:
        """Accept the indexes; there is no search to use them."""
        return pb.SyncAttributeIndexResponse()

    # Flows

    async def start_flow(self, wire: pb.StartFlowRequest) -> pb.StartFlowResponse:
        """Start a flow."""
        return pb.StartFlowResponse(run_id=await self._flows.start(wire))

    async def stop_flow(self, wire: pb.StopFlowRequest) -> empty_pb2.Empty:
        """Stop a flow."""
        run = self._flows.running(wire.flow_id, wire.run_id)
        result = pb.FlowResult(flow_status=pb.FLOW_STATUS_CANCELED)
        if wire.stop_type == pb.STOP_TYPE_TERMINATE:
            result.flow_status = pb.FLOW_STATUS_TERMINATED
        elif wire.stop_type == pb.STOP_TYPE_FAIL:
            result.flow_status = pb.FLOW_STATUS_FAILED
            result.error_type = pb.FLOW_ERROR_TYPE_CLIENT_API_FAILING_FLOW
            result.error_message = wire.reason or "fail by client"
        self._flows.close(run, result)
        await self._flows.settled()
        return empty_pb2.Empty()

    async def get_flow_summary(self, wire: pb.GetFlowSummaryRequest) -> pb.GetFlowSummaryResponse:
        """Return how a flow stands."""
        run = self._flows.latest(wire.flow_id, wire.run_id)
        header, record = run.state.header, run.record
        return pb.GetFlowSummaryResponse(
            flow_execution_id=pb.FlowExecutionID(flow_id=record.flow_id, run_id=record.run_id),
            first_run_id=self._flows.first_run_id(record.flow_id),
            request_id=record.request_id,
            flow_type=record.flow_type,
            flow_status=run.status,
            start_time=timestamp(header.started_at),
            close_time=timestamp(header.closed_at) if header.closed_at else None,
            run_attempt=1,
        )

    async def search_flows(self, wire: pb.SearchFlowsRequest) -> pb.SearchFlowsResponse:
        """Return a page of all flows, newest first; there is no index to query."""
        if wire.query:
            raise unsupported("queries of SearchFlows; only an empty one is answered")
        found = self._flows.newest_first()
        start = int(wire.next_page_token or 0)
        end = start + (wire.page_size or len(found))
        return pb.SearchFlowsResponse(
            flow_runs=[_entry(run) for run in found[start:end]],
            next_page_token=str(end) if end < len(found) else "",
        )

    async def get_history_events(
        self, wire: pb.GetHistoryEventsRequest
    ) -> pb.GetHistoryEventsResponse:
        """Return a page of a run's history."""
        return history_page(self._flows.latest(wire.flow_id, wire.run_id), wire)

    async def update_flow_config(self, wire: pb.UpdateFlowConfigRequest) -> empty_pb2.Empty:
        """Change where a flow's worker is, and whatever else its configuration says."""
        run = self._flows.running(wire.flow_id, wire.run_id)
        config = unpack(run.record.config, pb.FlowConfig)
        if wire.flow_config.HasField("worker_target"):
            config.ClearField("worker_target")
        config.MergeFrom(wire.flow_config)
        run.record.config = pack(config)
        self._flows.advance(run)
        await self._flows.settled()
        return empty_pb2.Empty()

    async def skip_timer(self, wire: pb.SkipTimerRequest) -> empty_pb2.Empty:
        """End a Timer early."""
        run = self._flows.running(wire.flow_id, wire.run_id)
        execution = run.state.executions.get(wire.step_execution_id)
        note = run.notes.get(wire.step_execution_id)
        index = wire.timer_condition_index if wire.HasField("timer_condition_index") else None
        position = None
        if execution is not None and execution.phase == "waiting" and note and note.condition:
            condition = unpack(note.condition, pb.WaitingCondition)
            position = timer_position(condition, wire.timer_condition_id, index)
        if position is None:
            raise invalid(f"{wire.step_execution_id!r} does not wait for that Timer.")
        self._flows.apply(run, TimerSkipped(wire.step_execution_id, position))
        await self._flows.settled()
        return empty_pb2.Empty()

    # Waiting

    async def wait_for_flow(self, wire: pb.WaitForFlowRequest) -> pb.FlowResult:
        """Return how a flow ended, once it has."""
        return await self._waits.flow(wire)

    async def wait_for_step_completion(
        self, wire: pb.WaitForStepCompletionRequest
    ) -> pb.WaitForStepCompletionResponse:
        """Return once a Step execution has ended."""
        return await self._waits.step(wire)

    async def wait_for_attribute(
        self, wire: pb.WaitForAttributeRequest
    ) -> pb.WaitForAttributeResponse:
        """Return an Attribute's value once it matches."""
        return await self._waits.attribute(wire)

    # RPCs, Channels and Attributes

    async def invoke_rpc(self, wire: pb.InvokeRPCRequest) -> pb.InvokeRPCResponse:
        """Call a flow's RPC."""
        return await self._rpcs.invoke(wire)

    async def publish_to_channel(self, wire: pb.PublishToChannelRequest) -> empty_pb2.Empty:
        """Queue messages."""
        await self._rpcs.publish(wire)
        return empty_pb2.Empty()

    async def get_channel_messages(
        self, wire: pb.GetChannelMessagesRequest
    ) -> pb.GetChannelMessagesResponse:
        """Return the queued messages of a Channel."""
        run = self._flows.latest(wire.flow_id, wire.run_id)
        return pb.GetChannelMessagesResponse(messages=messages_of(run, wire.channel_name))

    async def get_attributes(self, wire: pb.GetAttributesRequest) -> pb.GetAttributesResponse:
        """Return Attributes."""
        run = self._flows.latest(wire.flow_id, wire.run_id)
        keys = sorted(run.attributes) if wire.all_keys else wire.keys
        found = [(key, run.attributes[key]) for key in keys if key in run.attributes]
        return pb.GetAttributesResponse(
            attributes=[pb.KV(key=key, value=value) for key, value in found]
        )

    async def set_attributes(self, wire: pb.SetAttributesRequest) -> empty_pb2.Empty:
        """Write Attributes."""
        await self._rpcs.set_attributes(wire)
        return empty_pb2.Empty()

    # Streams

    async def write_stream(self, wire: pb.WriteStreamRequest) -> empty_pb2.Empty:
        """Append a message to a Stream."""
        self._streams.write(wire)
        return empty_pb2.Empty()

    async def read_stream(self, wire: pb.ReadStreamRequest) -> pb.ReadStreamResponse:
        """Return the next message of a Stream."""
        return await self._streams.read(wire, self._longest)

    async def list_stream_messages(
        self, wire: pb.ListStreamMessagesRequest
    ) -> pb.ListStreamMessagesResponse:
        """Return a page of a Stream, newest first."""
        return self._streams.page(wire)


def _entry(run: Run) -> pb.SearchFlowsResponseEntry:
    header, record = run.state.header, run.record
    return pb.SearchFlowsResponseEntry(
        flow_id=record.flow_id,
        run_id=record.run_id,
        flow_type=record.flow_type,
        flow_status=run.status,
        start_time=timestamp(header.started_at),
        close_time=timestamp(header.closed_at) if header.closed_at else None,
    )


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


LEFT_OUT = tuple(
    method.name for method in _SERVICE.methods if not hasattr(FlowService, _snake(method.name))
)
"""The calls of FlowService that answer UNIMPLEMENTED."""


def flow_service_handler(service: FlowService) -> grpc.GenericRpcHandler:
    """Return a service as gRPC takes it."""
    handlers = {}
    for method in _SERVICE.methods:
        answer = getattr(service, _snake(method.name), None) or _left_out(method.name)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _answered(answer),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)


def _left_out(name: str) -> Callable[[Any], Awaitable[Any]]:
    async def answer(_wire: Any) -> Any:
        raise unsupported(f"FlowService.{name}")

    return answer


def _answered(answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(wire: Any, context: Any) -> Any:
        try:
            _require_size("request", wire)
            reply = await answer(wire)
            _require_size("reply", reply)
            return reply
        except ServiceError as error:
            refusal = error
        except FlowNotActiveError:
            refusal = not_exists(getattr(wire, "flow_id", ""), "is closed")
        await context.abort_with_status(rpc_status.to_status(refusal.status()))
        return None

    return call


def _require_size(what: str, message: Any) -> None:
    if message.ByteSize() > MESSAGE_LIMIT:
        raise oversized(what, message.ByteSize(), MESSAGE_LIMIT)
