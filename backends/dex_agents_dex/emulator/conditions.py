"""Waits: from the wire's conditions to the machine's, and from what ended one to its results."""

from __future__ import annotations

import math

from dex.dexpb import dex_pb2 as pb

from dex_agents.machine import ChannelWait, Execution, StoredWait, TimerWait
from dex_agents.machine.matching import match
from dex_agents_dex.emulator.dispatch import WorkerFailed
from dex_agents_dex.emulator.envelope import unwrap

__all__ = ("condition_results", "stored_wait", "timer_position")


def stored_wait(wire: pb.WaitingCondition | None, now: float, scale: float) -> StoredWait:
    """Return a wait whose Timers count from now; None is over at once.

    Raises:
        WorkerFailed: It waits for a SubFlow, or a combination names no condition.
    """
    if wire is None:
        return StoredWait()
    if wire.sub_flow_conditions:
        raise WorkerFailed("The Dex emulator leaves out SubFlows.", "dex_agents_dex.Unsupported")
    timers = tuple(TimerWait(now + each.duration_seconds * scale) for each in wire.timer_conditions)
    conditions = timers + tuple(_channel_wait(each) for each in wire.channel_conditions)
    return StoredWait(conditions, _candidates(wire, len(conditions)))


def timer_position(wire: pb.WaitingCondition, condition_id: str, index: int | None) -> int | None:
    """Return the position of a Timer by its ID or, if that is empty, by its index."""
    if condition_id:
        ids = [each.condition_id for each in wire.timer_conditions]
        return ids.index(condition_id) if condition_id in ids else None
    is_there = index is not None and 0 <= index < len(wire.timer_conditions)
    return index if is_there else None


def condition_results(execution: Execution, wire: pb.WaitingCondition) -> pb.ConditionResults:
    """Return what ``execute`` learns of the conditions that its wait had, in their order."""
    results = pb.ConditionResults(wait_for_failed=execution.wait_failed)
    if execution.wait is None:
        return results
    for position, timer in enumerate(wire.timer_conditions):
        results.timer_results.add(
            condition_id=timer.condition_id, condition_status=_status(execution, position)
        )
    taken = _taken(execution)
    for number, channel in enumerate(wire.channel_conditions):
        position = number + len(wire.timer_conditions)
        results.channel_results.add(
            condition_id=channel.condition_id,
            condition_status=_status(execution, position),
            channel_name=channel.channel_name,
            values=taken.get(position, ()),
        )
    return results


def _candidates(wire: pb.WaitingCondition, count: int) -> tuple[tuple[int, ...], ...]:
    everything = tuple(range(count))
    if not everything:
        return ((),)
    if wire.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMPLETED:
        return tuple((position,) for position in everything)
    if wire.waiting_condition_type != pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED:
        return (everything,)
    ids = [each.condition_id for each in (*wire.timer_conditions, *wire.channel_conditions)]
    try:
        return tuple(
            tuple(sorted(ids.index(name) for name in each.condition_ids))
            for each in wire.condition_combinations
        )
    except ValueError as error:
        detail = f"A combination names a condition that there is not: {error}"
        raise WorkerFailed(detail, "dex_agents_dex.InvalidWait") from error


def _channel_wait(wire: pb.ChannelCondition) -> ChannelWait:
    has_least, has_most = wire.HasField("at_least"), wire.HasField("at_most")
    if not has_least and not has_most:
        return ChannelWait(wire.channel_name)
    least = wire.at_least if has_least else 0
    return ChannelWait(wire.channel_name, least, wire.at_most if has_most else None)


def _status(execution: Execution, position: int) -> pb.ConditionStatus:
    is_done = position in execution.chosen
    return pb.CONDITION_STATUS_COMPLETED if is_done else pb.CONDITION_STATUS_WAITING


def _taken(execution: Execution) -> dict[int, list[pb.Value]]:
    """Share out what was consumed: the same rule over the same messages gives the same shares."""
    if execution.wait is None:
        return {}
    queues: dict[str, list[pb.Value]] = {}
    for each in execution.consumed:
        message = unwrap(each.payload, pb.ChannelMessage)
        queues.setdefault(each.channel, []).append(message.value)
    conditions = execution.wait.conditions
    shares = match(StoredWait(conditions, (execution.chosen,)), queues, math.inf)
    channels = [p for p in execution.chosen if isinstance(conditions[p], ChannelWait)]
    taken = {}
    for position, (channel, count) in zip(channels, shares.takes if shares else (), strict=False):
        taken[position] = queues[channel][:count] if count else []
        if count:
            del queues[channel][:count]
    return taken
