"""StartFlow: what may start, and what a start consists of."""

from __future__ import annotations

import uuid

from dex.dexpb import dex_pb2 as pb

from dex_agents.machine import FlowStarted, FlowState, ScheduledStep
from dex_agents_dex.emulator.envelope import pack, unpack, wrap
from dex_agents_dex.emulator.errors import invalid, unsupported
from dex_agents_dex.emulator.options import execution_options
from dex_agents_dex.emulator.run import Run, RunRecord

__all__ = ("check_start", "may_reuse", "new_run", "started_event", "started_payload")

_FORBIDDEN = set("/$:")


def check_start(request: pb.StartFlowRequest) -> None:
    """Raise `ServiceError` for a start that makes no sense, or that the emulator leaves out."""
    for name in ("flow_id", "flow_type", "request_id"):
        if not getattr(request, name):
            raise invalid(f"StartFlow needs a {name}.")
    for name in (request.flow_id, request.start_step_type):
        if _FORBIDDEN & set(name):
            raise invalid(f"{name!r} contains one of / $ :")
    if request.flow_timeout_seconds < 0:
        raise invalid("flow_timeout_seconds is negative.")
    options = request.flow_start_options
    if options.flow_start_delay_seconds:
        raise unsupported("start delays")
    if options.HasField("retry_policy"):
        raise unsupported("retries of whole flows")


def started_event(request: pb.StartFlowRequest, scale: float) -> FlowStarted:
    """Return a start as the machine takes it."""
    start = None
    if request.start_step_type:
        start = ScheduledStep(
            request.start_step_type,
            wrap(request.step_input),
            execution_options(request.step_options, scale),
        )
    writes = request.flow_start_options.attributes
    attributes = {
        each.key: wrap(each.value) for each in writes if not each.value.HasField("null_value")
    }
    return FlowStarted(request.flow_type, start, dict(attributes))


def may_reuse(policy: pb.IdReusePolicy, last: Run) -> bool:
    """Return whether a flow ID may have another run after its last."""
    if policy == pb.ID_REUSE_POLICY_ALLOW_TERMINATE_IF_RUNNING:
        return True
    if last.is_running:
        return False
    if policy == pb.ID_REUSE_POLICY_ALLOW_IF_NO_RUNNING:
        return True
    is_abnormal = last.status != pb.FLOW_STATUS_COMPLETED
    return policy == pb.ID_REUSE_POLICY_ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY and is_abnormal


def new_run(request: pb.StartFlowRequest, scale: float, now: float) -> Run:
    """Return a run that has not started."""
    run_id = str(uuid.uuid4())
    seconds = request.flow_timeout_seconds
    record = RunRecord(
        flow_id=request.flow_id,
        run_id=run_id,
        request_id=request.request_id,
        flow_type=request.flow_type,
        config=pack(request.flow_start_options.flow_config_override),
        request=pack(request),
        timeout_at=now + seconds * scale if seconds else None,
    )
    return Run(record, FlowState.absent(run_id))


def started_payload(run: Run) -> pb.FlowHistoryEvent:
    """Return a start as the history tells it."""
    request = unpack(run.record.request, pb.StartFlowRequest)
    event = pb.FlowHistoryEvent()
    started = event.flow_started_or_continued
    started.flow_execution_id.flow_id = run.record.flow_id
    started.flow_execution_id.run_id = run.record.run_id
    started.flow_type = request.flow_type
    started.flow_config.CopyFrom(request.flow_start_options.flow_config_override)
    started.flow_timeout.seconds = request.flow_timeout_seconds
    started.flow_timeout_policy = request.flow_timeout_policy
    initial = started.initial_start
    initial.start_step_type = request.start_step_type
    initial.step_input.CopyFrom(request.step_input)
    initial.step_options.CopyFrom(request.step_options)
    for write in request.flow_start_options.attributes:
        initial.initial_attributes.add(key=write.key, value=write.value)
    return event
