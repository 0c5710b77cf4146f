"""Promises of `dex_agents.machine.matching.match`, among them against a search of all answers."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dex_agents.machine import ChannelWait, StoredWait, TimerWait
from dex_agents.machine.matching import match

CHANNELS = ("a", "b", "c")
NOW = 10.0


def queues(**counts: int) -> dict[str, list[None]]:
    """Return Channels with so many messages; an empty one is absent, as in a flow's state."""
    return {name: [None] * count for name, count in counts.items() if count}


def any_of(*conditions: TimerWait | ChannelWait) -> StoredWait:
    """Return a wait of which any one condition is enough."""
    return StoredWait(conditions, tuple((i,) for i in range(len(conditions))))


def all_of(*conditions: TimerWait | ChannelWait) -> StoredWait:
    """Return a wait of which all conditions are needed."""
    return StoredWait(conditions, (tuple(range(len(conditions))),))


def searched(wait: StoredWait, counts: dict[str, int], now: float):
    """Return the right answer, found by trying every way to share out the messages.

    Of all ways that a group allows, the best gives its first condition the
    most, then its second, and so on.
    """
    for group in wait.candidates:
        conditions = [wait.conditions[position] for position in group]
        if not all(c.fire_at <= now for c in conditions if isinstance(c, TimerWait)):
            continue
        channels = [c for c in conditions if isinstance(c, ChannelWait)]
        ranges = [
            range(c.at_least, (counts[c.channel] if c.at_most is None else c.at_most) + 1)
            for c in channels
        ]
        ways = [
            amounts
            for amounts in itertools.product(*ranges)
            if all(
                sum(n for c, n in zip(channels, amounts, strict=True) if c.channel == name) <= have
                for name, have in counts.items()
            )
        ]
        if ways:
            best = max(ways)
            return group, tuple((c.channel, n) for c, n in zip(channels, best, strict=True))
    return None


@st.composite
def channel_waits(draw):
    at_least = draw(st.integers(0, 3))
    at_most = draw(st.none() | st.integers(at_least, 4))
    return ChannelWait(draw(st.sampled_from(CHANNELS)), at_least, at_most)


@st.composite
def waits(draw):
    timers = st.builds(TimerWait, st.sampled_from((NOW - 1, NOW, NOW + 1)))
    conditions = tuple(draw(st.lists(channel_waits() | channel_waits() | timers, max_size=4)))
    groups = st.sets(st.integers(0, 3)).map(
        lambda group: tuple(sorted(each for each in group if each < len(conditions)))
    )
    return StoredWait(conditions, tuple(draw(st.lists(groups, max_size=3))))


COUNTS = st.fixed_dictionaries({name: st.integers(0, 5) for name in CHANNELS})


@given(waits(), COUNTS)
@settings(max_examples=500)
@example(all_of(ChannelWait("a", 1, None), ChannelWait("a", 2, 3)), {"a": 4, "b": 0, "c": 0})
@example(all_of(ChannelWait("a", 0, 1), ChannelWait("a", 1, 1)), {"a": 1, "b": 0, "c": 0})
def test_match_agrees_with_a_search_of_every_answer(wait, counts):
    """The first ready group is found, with the messages each of its conditions takes."""
    found = match(wait, queues(**counts), NOW)
    expected = searched(wait, counts, NOW)
    assert (None if found is None else (found.chosen, found.takes)) == expected


@given(waits(), COUNTS, st.sampled_from(CHANNELS))
def test_more_messages_never_make_a_ready_wait_unready(wait, counts, channel):
    """What is ready stays ready as messages arrive."""
    more = {**counts, channel: counts[channel] + 1}
    if match(wait, queues(**counts), NOW) is not None:
        assert match(wait, queues(**more), NOW) is not None


@given(waits(), COUNTS)
def test_matching_changes_nothing(wait, counts):
    """The queues are only counted."""
    before = queues(**counts)
    match(wait, before, NOW)
    assert before == queues(**counts)


def test_a_timer_fires_at_its_time_and_not_before():
    """A Timer is ready from its time on, never early."""
    wait = any_of(TimerWait(NOW))
    assert match(wait, {}, 9.999999) is None
    assert match(wait, {}, NOW).chosen == (0,)
    assert match(wait, {}, 1e9).chosen == (0,)


def test_the_first_ready_candidate_wins():
    """Candidates are tried in their order."""
    wait = any_of(TimerWait(NOW), ChannelWait("a"), ChannelWait("b"))
    assert match(wait, queues(a=1, b=1), NOW - 1).chosen == (1,)
    assert match(wait, queues(b=1), NOW - 1).chosen == (2,)
    found = match(wait, queues(a=1, b=1), NOW)
    assert (found.chosen, found.takes) == ((0,), ())


def test_only_the_chosen_group_consumes():
    """A condition outside the chosen group takes nothing, though it is ready too."""
    wait = any_of(ChannelWait("a"), ChannelWait("b"))
    assert match(wait, queues(a=1, b=5), NOW).takes == (("a", 1),)


def test_all_minimums_must_be_there_at_once():
    """Two conditions on one Channel cannot count the same message."""
    wait = all_of(ChannelWait("a", 2, 2), ChannelWait("a", 1, 1))
    assert match(wait, queues(a=2), NOW) is None
    assert match(wait, queues(a=3), NOW).takes == (("a", 2), ("a", 1))


def test_a_greedy_condition_leaves_the_others_their_minimum():
    """What is over after all minimums goes to the conditions in order."""
    wait = all_of(ChannelWait("a", 1, None), ChannelWait("a", 2, None))
    assert match(wait, queues(a=5), NOW).takes == (("a", 3), ("a", 2))


def test_up_to_a_maximum_is_taken_without_waiting():
    """A minimum of 0 is ready at once and takes what there is."""
    wait = all_of(ChannelWait("a", 0, 3))
    assert match(wait, {}, NOW).takes == (("a", 0),)
    assert match(wait, queues(a=2), NOW).takes == (("a", 2),)
    assert match(wait, queues(a=9), NOW).takes == (("a", 3),)


def test_an_empty_group_is_ready_and_no_group_never_is():
    """Not waiting is a group without conditions; without any group a wait never ends."""
    assert match(StoredWait(), {}, NOW).chosen == ()
    assert match(StoredWait((), ()), queues(a=1), NOW) is None
