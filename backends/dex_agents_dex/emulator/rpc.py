"""RPCs: a handler call outside the Steps, whose effects are applied at once or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents.executor import SystemClock
from dex_agents.machine import RpcReturned
from dex_agents_dex.emulator.calls import rpc_request
from dex_agents_dex.emulator.decisions import movements_of, writes_of
from dex_agents_dex.emulator.dispatch import Dispatcher, Outcome, WorkerFailed, WorkerTask
from dex_agents_dex.emulator.errors import (
    closing,
    lock_conflict,
    not_exists,
    request_timeout,
    worker_error,
)
from dex_agents_dex.emulator.flows import Flows
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.watch import Watch, watched

__all__ = ("Rpcs",)

_LONGEST_SECONDS = 60.0


class Rpcs:
    """Serves InvokeRPC, and the calls that change a flow without a handler.

    Args:
        flows: The flows.
        dispatcher: Chooses the dispatcher for a run.
    """

    def __init__(self, flows: Flows, dispatcher: Callable[[Run], Dispatcher]) -> None:
        self._flows = flows
        self._dispatcher = dispatcher

    async def invoke(self, wire: pb.InvokeRPCRequest) -> pb.InvokeRPCResponse:
        """Call a flow's RPC and apply what it decided."""
        is_exclusive = wire.is_transactional or bool(wire.lock_attribute_keys)
        if not is_exclusive:
            return await self._invoke(self._flows.latest(wire.flow_id, wire.run_id), wire)
        run = self._flows.running(wire.flow_id, wire.run_id)
        with self._locked(run, wire.rpc_name, tuple(wire.lock_attribute_keys)):
            return await self._invoke(run, wire, must_find=True)

    @contextmanager
    def _locked(self, run: Run, rpc: str, names: tuple[str, ...]) -> Iterator[None]:
        held = next((name for name in names if name in run.state.locks), None)
        if held is not None:
            raise lock_conflict(rpc, held)
        holder = f"__rpc/{uuid.uuid4()}"
        run.state.lock(holder, names)
        try:
            yield
        finally:
            run.state.unlock(holder)
            if names:
                self._flows.advance(run)

    async def _invoke(
        self, run: Run, wire: pb.InvokeRPCRequest, *, must_find: bool = False
    ) -> pb.InvokeRPCResponse:
        outcome = await self._call(run, wire)
        response = outcome.response
        if _has_effects(response):
            if not run.is_running:
                raise closing(wire.flow_id) if must_find else not_exists(wire.flow_id, "is closed")
            event = RpcReturned(
                wire.rpc_name,
                writes_of(run, response, must_find=must_find),
                movements_of(response.step_decision, self._flows.scale),
                tuple(response.step_decision.cancel_step_types),
            )
            self._flows.apply(run, event, _completed(wire, outcome))
            await self._flows.settled()
        return pb.InvokeRPCResponse(output=response.output)

    async def _call(self, run: Run, wire: pb.InvokeRPCRequest) -> Outcome:
        watch = Watch(
            SystemClock(),
            min(wire.timeout_seconds or _LONGEST_SECONDS, _LONGEST_SECONDS),
            float("inf"),
        )
        task = WorkerTask(
            kind="rpc",
            request=rpc_request(run, wire),
            flow_id=run.record.flow_id,
            flow_type=run.record.flow_type,
            address=run.target.address,
            sticky=run.record.sticky,
            on_begin=watch.begin,
            on_frame=lambda _frame: None,
        )
        try:
            return await watched(self._dispatcher(run), task, watch)
        except WorkerFailed as failure:
            if failure.error_type == "StartToClose":
                raise request_timeout(f"RPC {wire.rpc_name!r}") from failure
            raise worker_error(failure) from failure

    # Without a handler

    async def publish(self, wire: pb.PublishToChannelRequest) -> None:
        """Queue messages of a client."""
        payload = pb.FlowHistoryEvent()
        payload.channel_external_publish.messages.extend(wire.messages)
        writes = pb.InvokeWorkerRPCResponse(publish_to_channel=wire.messages)
        await self._write(self._flows.running(wire.flow_id, wire.run_id), writes, payload)

    async def set_attributes(self, wire: pb.SetAttributesRequest) -> None:
        """Write a client's Attributes."""
        payload = pb.FlowHistoryEvent()
        payload.rpc_execution_completed.is_set_attribute_api = True
        payload.rpc_execution_completed.upsert_attributes.extend(wire.attributes)
        writes = pb.InvokeWorkerRPCResponse(upsert_attributes=wire.attributes)
        await self._write(self._flows.running(wire.flow_id, wire.run_id), writes, payload)

    async def _write(self, run: Run, writes: Any, payload: pb.FlowHistoryEvent) -> None:
        self._flows.apply(run, RpcReturned("", writes_of(run, writes)), payload)
        await self._flows.settled()


def _has_effects(response: pb.InvokeWorkerRPCResponse) -> bool:
    decision = response.step_decision
    return bool(
        response.upsert_attributes
        or response.record_events
        or response.delete_from_channel
        or response.publish_to_channel
        or decision.next_steps
        or decision.cancel_step_types
    )


def _completed(wire: pb.InvokeRPCRequest, outcome: Outcome) -> pb.FlowHistoryEvent:
    response = outcome.response
    event = pb.FlowHistoryEvent()
    completed = event.rpc_execution_completed
    completed.rpc_name = wire.rpc_name
    completed.input.CopyFrom(wire.input)
    completed.output.CopyFrom(response.output)
    if response.HasField("step_decision"):
        completed.step_decision.CopyFrom(response.step_decision)
    completed.upsert_attributes.extend(response.upsert_attributes)
    completed.record_events.extend(response.record_events)
    completed.publish_to_channel.extend(response.publish_to_channel)
    completed.delete_from_channel.extend(response.delete_from_channel)
    completed.served_by_app_worker_id = outcome.served_by
    return event
