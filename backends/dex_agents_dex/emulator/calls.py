"""The requests that workers get."""

from __future__ import annotations

from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents.machine import Execution, ExecutionOptions, Phase
from dex_agents_dex.emulator.conditions import condition_results
from dex_agents_dex.emulator.envelope import NULL, unpack, unwrap
from dex_agents_dex.emulator.options import TIMEOUT_HANDLER, wire_options
from dex_agents_dex.emulator.run import Run
from dex_agents_dex.emulator.snapshot import snapshot

__all__ = ("call_context", "rpc_request", "step_request")


def call_context(run: Run, execution: Execution) -> pb.Context:
    """Return what is new with every attempt."""
    context = pb.Context(
        flow_id=run.record.flow_id,
        run_id=run.record.run_id,
        flow_started_timestamp=int(run.state.header.started_at),
        step_execution_id=execution.id,
        first_attempt_timestamp=int(execution.first_attempt_at),
        attempt=execution.attempt,
        from_step_execution_id=execution.origin,
        run_attempt=1,
    )
    if execution.recovery is not None:
        context.recovery_error.detail = execution.recovery.detail
        context.recovery_error.error_type = execution.recovery.error_type
    note = run.notes.get(execution.id)
    if note is not None and note.heartbeat:
        context.last_heartbeat_value.CopyFrom(unpack(note.heartbeat, pb.Value))
    return context


def step_request(run: Run, execution: Execution, options: ExecutionOptions) -> Any:
    """Return the request of a Step method; retries get what the first attempt saw."""
    request = run.snapshots.get(execution.id)
    if request is None:
        is_wait = execution.phase is Phase.WAIT_FOR
        build = _wait_for_request if is_wait else _execute_request
        request = run.snapshots[execution.id] = build(run, execution, wire_options(options))
    copy = type(request)()
    copy.CopyFrom(request)
    return copy


def rpc_request(run: Run, wire: pb.InvokeRPCRequest) -> pb.InvokeWorkerRPCRequest:
    """Return the request of an RPC's handler."""
    return pb.InvokeWorkerRPCRequest(
        context=pb.Context(
            flow_id=run.record.flow_id,
            run_id=run.record.run_id,
            flow_started_timestamp=int(run.state.header.started_at),
        ),
        flow_type=run.record.flow_type,
        rpc_name=wire.rpc_name,
        input=wire.input if wire.input.WhichOneof("kind") else NULL,
        **snapshot(
            run,
            wire.load_attribute_map_instances,
            wire.load_channel_names,
            wire.load_channel_map_instances,
        ),
    )


def _wait_for_request(
    run: Run, execution: Execution, wire: pb.StepOptions
) -> pb.InvokeWaitForMethodRequest:
    return pb.InvokeWaitForMethodRequest(
        flow_type=run.record.flow_type,
        step_type=execution.step,
        step_input=unwrap(execution.input, pb.Value),
        **snapshot(
            run,
            wire.wait_for_load_attribute_map_instances,
            wire.wait_for_load_channel_names,
            wire.wait_for_load_channel_map_instances,
        ),
    )


def _execute_request(
    run: Run, execution: Execution, wire: pb.StepOptions
) -> pb.InvokeExecuteMethodRequest:
    note = run.note(execution.id)
    request = pb.InvokeExecuteMethodRequest(
        flow_type=run.record.flow_type,
        step_type=execution.step,
        step_exe_locals=[
            pb.KV(key=name, value=unpack(text, pb.Value))
            for name, text in sorted(note.local_values.items())
        ],
        **snapshot(
            run,
            wire.execute_load_attribute_map_instances,
            wire.execute_load_channel_names,
            wire.execute_load_channel_map_instances,
        ),
    )
    if execution.step != TIMEOUT_HANDLER:
        request.step_input.CopyFrom(unwrap(execution.input, pb.Value))
    if execution.wait is not None or execution.wait_failed:
        condition = pb.WaitingCondition()
        if note.condition:
            condition = unpack(note.condition, pb.WaitingCondition)
        request.condition_results.CopyFrom(condition_results(execution, condition))
    return request
