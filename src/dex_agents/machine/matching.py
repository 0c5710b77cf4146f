"""Which group of a wait's conditions is ready, and what it consumes."""

from __future__ import annotations

from collections.abc import Mapping, Sized

from msgspec import Struct

from dex_agents.machine.records import ChannelWait, StoredWait, TimerWait

__all__ = ("Match", "match")


class Match(Struct, frozen=True):
    """A wait that is over.

    Attributes:
        chosen: The positions of the conditions that ended it.
        takes: How many messages go from which Channel, in the order of the conditions.
    """

    chosen: tuple[int, ...]
    takes: tuple[tuple[str, int], ...]


def match(wait: StoredWait, queues: Mapping[str, Sized], now: float) -> Match | None:
    """Return the first group that is ready, or None.

    A group is ready when all its Timers have fired and its Channels hold every
    minimum at once. What is left then goes to its conditions in order, up to
    their maximum. Conditions outside the group consume nothing.
    """
    for candidate in wait.candidates:
        chosen = [wait.conditions[position] for position in candidate]
        if any(isinstance(each, TimerWait) and each.fire_at > now for each in chosen):
            continue
        channels = [each for each in chosen if isinstance(each, ChannelWait)]
        takes = _take(channels, queues)
        if takes is not None:
            return Match(candidate, takes)
    return None


def _take(
    conditions: list[ChannelWait], queues: Mapping[str, Sized]
) -> tuple[tuple[str, int], ...] | None:
    free = {each.channel: len(queues.get(each.channel, ())) for each in conditions}
    for each in conditions:
        free[each.channel] -= each.at_least
    if any(left < 0 for left in free.values()):
        return None
    takes = []
    for each in conditions:
        room = free[each.channel] if each.at_most is None else each.at_most - each.at_least
        extra = min(room, free[each.channel])
        free[each.channel] -= extra
        takes.append((each.channel, each.at_least + extra))
    return tuple(takes)
