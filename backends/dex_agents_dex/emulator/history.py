"""The wire's history: one event for each logical call, not for each attempt."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from dex_agents.machine import Changes, HistoryEntry, HistoryEvent
from dex_agents_dex.emulator.run import Run

__all__ = ("history_page", "record_history", "step_input_of", "timestamp")

_SILENT = (HistoryEvent.ATTEMPT_FAILED, HistoryEvent.CANCELED)
_FAILED = (HistoryEvent.WAIT_FOR_FAILED, HistoryEvent.EXECUTE_FAILED)
_PAGE_BYTES = 1024 * 1024


def record_history(
    run: Run, changes: Changes, payload: pb.FlowHistoryEvent | None
) -> list[pb.FlowHistoryEvent]:
    """Append what a transition did to a run's history, and return it.

    Args:
        run: The run.
        changes: What the transition changed.
        payload: The event of the call that led to it, without what the machine knows.
    """
    events = []
    for entry in changes.history:
        event = pb.FlowHistoryEvent()
        if entry.event_type in _SILENT:
            continue
        if entry.event_type in _FAILED:
            _fill_failure(run, event, entry)
        elif entry.event_type is HistoryEvent.FLOW_CLOSED:
            result = run.result()
            event.flow_closed.flow_status = result.flow_status
            event.flow_closed.results.extend(result.results)
            event.flow_closed.error_type = result.error_type
            event.flow_closed.error_message = result.error_message
        elif payload is not None:
            event.CopyFrom(payload)
            if entry.step_execution_id:
                _fill_context(_context(event), entry)
        else:
            continue
        event.event_id = len(run.history) + 1
        event.run_attempt = 1
        event.event_time.CopyFrom(timestamp(entry.at))
        run.history.append(event)
        events.append(event)
    return events


def history_page(run: Run, request: pb.GetHistoryEventsRequest) -> pb.GetHistoryEventsResponse:
    """Return the events from a number on; the page's size is counted in bytes."""
    start = int(request.next_page_token or 0) or max(request.start_internal_event_id, 1)
    page = pb.GetHistoryEventsResponse()
    limit, size = request.estimate_page_size or _PAGE_BYTES, 0
    for event in run.history[start - 1 :]:
        size += event.ByteSize()
        if page.events and size > limit:
            break
        page.events.append(event)
    after = start + len(page.events)
    page.next_internal_event_id = after
    if after <= len(run.history):
        page.next_page_token = str(after).encode()
    return page


def step_input_of(request: pb.InvokeExecuteMethodRequest) -> pb.StepMethodEventInput:
    """Return what a handler was given, as the history tells it."""
    given = pb.StepMethodEventInput(step_input=request.step_input, attributes=request.attributes)
    if isinstance(request, pb.InvokeExecuteMethodRequest):
        given.step_execution_locals.extend(request.step_exe_locals)
        if request.HasField("condition_results"):
            given.condition_results.CopyFrom(request.condition_results)
    return given


def timestamp(seconds: float) -> Timestamp:
    """Return a time as the wire has it."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1_000_000) * 1000)
    return stamp


def _context(event: pb.FlowHistoryEvent) -> pb.StepMethodEventContext:
    payload = getattr(event, str(event.WhichOneof("payload")))
    context: pb.StepMethodEventContext = payload.context
    return context


def _fill_context(context: pb.StepMethodEventContext, entry: HistoryEntry) -> None:
    context.step_execution_id = entry.step_execution_id
    context.from_step_execution_id = entry.origin
    context.step_type = entry.step_type
    context.durability = pb.STEP_DURABILITY_SYNC
    context.final_attempt = entry.final_attempt
    context.started_time.CopyFrom(timestamp(entry.begun_at))
    context.duration.FromNanoseconds(int(max(entry.at - entry.begun_at, 0.0) * 1e9))


def _fill_failure(run: Run, event: pb.FlowHistoryEvent, entry: HistoryEntry) -> None:
    is_wait = entry.event_type is HistoryEvent.WAIT_FOR_FAILED
    payload = event.step_wait_for_failed if is_wait else event.step_execute_failed
    _fill_context(payload.context, entry)
    request = run.snapshots.get(entry.step_execution_id)
    if request is not None:
        payload.input.CopyFrom(step_input_of(request))
    failure = payload.output.failure
    failure.attempt = entry.final_attempt
    failure.details.sub_status = pb.ERROR_SUB_STATUS_WORKER_API_ERROR
    if entry.failure is not None:
        failure.details.original_worker_error_detail = entry.failure.detail
        failure.details.original_worker_error_type = entry.failure.error_type
