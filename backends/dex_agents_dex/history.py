"""The history of a flow as Dex keeps it: one entry for each Step method that ended."""

from __future__ import annotations

from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents.backend import StepHistoryEntry

__all__ = ("read_flow_history",)

_PATIENCE_SECONDS = 60.0
_NAMES = {"flow_started_or_continued": "flow_started"}


async def read_flow_history(service: Any, flow_id: str, run_id: str) -> list[StepHistoryEntry]:
    """Return a run's history, oldest first.

    Args:
        service: A stub of the SDK's ``FlowService``.
        flow_id: The flow.
        run_id: Its run.
    """
    entries: list[StepHistoryEntry] = []
    request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
    while True:
        page = await service.GetHistoryEvents(request, timeout=_PATIENCE_SECONDS)
        entries += [_entry(event) for event in page.events]
        if not page.next_page_token:
            return entries
        request.next_page_token = page.next_page_token


def _entry(event: pb.FlowHistoryEvent) -> StepHistoryEntry:
    kind = event.WhichOneof("payload") or "unknown"  # of a server that knows more
    payload: Any = getattr(event, kind, None)
    name = _NAMES.get(kind, kind)
    if not kind.startswith("step_"):
        return StepHistoryEntry(name, getattr(payload, "rpc_name", ""), "", 0, at=_seconds(event))
    context = payload.context
    error, error_type = _failure(kind, payload)
    return StepHistoryEntry(
        event_type=name,
        step_type=context.step_type,
        step_execution_id=context.step_execution_id,
        final_attempt=context.final_attempt,
        at=_seconds(event),
        begun_at=context.started_time.ToNanoseconds() / 1e9,
        origin=context.from_step_execution_id,
        error=error,
        error_type=error_type,
    )


def _seconds(event: pb.FlowHistoryEvent) -> float:
    return float(event.event_time.ToNanoseconds() / 1e9)


def _failure(kind: str, payload: Any) -> tuple[str | None, str | None]:
    if not kind.endswith("_failed"):
        return None, None
    details = payload.output.failure.details
    return details.original_worker_error_detail, details.original_worker_error_type
