"""What a handler returned, in the machine's terms."""

from __future__ import annotations

import uuid
from typing import Any

from dex.dexpb import dex_pb2 as pb
from msgspec import Raw, json

from dex_agents.machine import (
    Execution,
    ExecutionDecision,
    Phase,
    Published,
    ScheduledStep,
    Writes,
)
from dex_agents.table import CloseKind
from dex_agents_dex.emulator.envelope import unwrap, wrap
from dex_agents_dex.emulator.errors import message_not_found
from dex_agents_dex.emulator.options import execution_options
from dex_agents_dex.emulator.run import Run

__all__ = ("decision_of", "movements_of", "published", "writes_of")

_CLOSES = {
    pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE: CloseKind.GRACEFUL_COMPLETE,
    pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE: CloseKind.FORCE_COMPLETE,
    pb.CLOSE_DECISION_TYPE_FORCE_FAIL: CloseKind.FORCE_FAIL,
    pb.CLOSE_DECISION_TYPE_DEAD_END: CloseKind.DEAD_END,
}


def writes_of(run: Run, response: Any, *, must_find: bool = False) -> Writes:
    """Return the writes of any handler's response.

    Args:
        run: The run, whose queues hold the messages to delete.
        response: The response.
        must_find: Refuse the deletion of a message that is not queued.

    Raises:
        ServiceError: A message to delete is not queued.
    """
    attributes = {
        each.key: None if each.value.HasField("null_value") else wrap(each.value)
        for each in response.upsert_attributes
    }
    discarded = []
    for each in response.delete_from_channel:
        number = _find(run, each.channel_name, each.message_id)
        if number is not None:
            discarded.append((each.channel_name, number))
        elif must_find:
            raise message_not_found(each.channel_name, each.message_id)
    return Writes(attributes, published(response.publish_to_channel), tuple(discarded))


def published(messages: Any) -> tuple[Published, ...]:
    """Return messages as the machine queues them, each with an ID of its own."""
    return tuple(
        Published(
            each.channel_name,
            wrap(
                pb.ChannelMessage(
                    channel_name=each.channel_name, value=each.value, message_id=str(uuid.uuid4())
                )
            ),
        )
        for each in messages
    )


def movements_of(decision: pb.StepDecision, scale: float) -> tuple[ScheduledStep, ...]:
    """Return the Steps that a decision schedules."""
    return tuple(
        ScheduledStep(
            each.step_type, wrap(each.step_input), execution_options(each.step_options, scale)
        )
        for each in decision.next_steps
    )


def decision_of(
    run: Run, execution: Execution, response: pb.InvokeExecuteMethodResponse, scale: float
) -> ExecutionDecision:
    """Return the decision of an ``execute``; a conditional close is decided here."""
    wire = response.step_decision
    next_steps = movements_of(wire, scale)
    kind = wire.close_decision.close_decision_type
    close = _CLOSES.get(kind)
    if kind == pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY and not _has_messages(
        run, execution, response
    ):
        close, next_steps = CloseKind.FORCE_COMPLETE, ()
    return ExecutionDecision(
        next_steps=next_steps,
        close=close,
        output=_output(execution, wire.close_decision, close),
        cancel_steps=tuple(wire.cancel_step_types),
        cancel_sibling_steps=tuple(wire.cancel_sibling_step_types),
    )


def _output(execution: Execution, wire: pb.CloseDecision, close: CloseKind | None) -> Raw | None:
    if close is CloseKind.FORCE_FAIL:
        return Raw(json.encode(wire.close_input.string_value))
    is_output = close in (CloseKind.GRACEFUL_COMPLETE, CloseKind.FORCE_COMPLETE)
    value = wire.close_input
    if not is_output or value.WhichOneof("kind") in (None, "null_value"):
        return None
    return wrap(
        pb.StepCompletionOutput(
            completed_step_type=execution.step,
            completed_step_execution_id=execution.id,
            completed_step_output=value,
        )
    )


def _has_messages(run: Run, execution: Execution, response: pb.InvokeExecuteMethodResponse) -> bool:
    """Whether a named Channel has messages, queued or in the hands of another ``execute``."""
    writes = writes_of(run, response)
    discarded = set(writes.discarded)
    arriving = {each.channel for each in writes.published}
    held = {
        each.channel
        for other in run.state.executions.values()
        if other.id != execution.id and other.phase is Phase.EXECUTE
        for each in other.consumed
    }
    for name in response.step_decision.close_decision.conditional_channel_names:
        queued = {(name, number) for number in run.state.queues.get(name, {})}
        if name in arriving or name in held or queued - discarded:
            return True
    return False


def _find(run: Run, channel: str, message_id: str) -> int | None:
    for number, raw in run.state.queues.get(channel, {}).items():
        if unwrap(raw, pb.ChannelMessage).message_id == message_id:
            return number
    return None
