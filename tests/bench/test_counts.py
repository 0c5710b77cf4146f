"""What a Step does is counted, and no count grows: the guard of the speed, without a clock."""

from __future__ import annotations

from dataclasses import replace as replace_table

import apsw
import pytest
from msgspec.structs import replace

from bench.counts import LIMITS, Counter, grown, measure
from bench.workload import Sizes, pause, serving
from dex_agents.session.persistence import FRAMEWORK_RUN_STATE

_TRIES = 5
"""Timers of a slow machine can only add to a count: the least of several is what the code costs."""


async def test_no_count_grows():
    """Commits, rows, bytes and handler calls of a Step stay within what was committed here."""
    least = dict.fromkeys(LIMITS, float("inf"))
    for _ in range(_TRIES):
        measured = await measure(Sizes(far=300))
        least = {name: min(least[name], measured[name]) for name in LIMITS}
        if not grown(least):
            break
    assert grown(least) == {}


def test_a_count_over_its_limit_has_grown():
    """A count at its limit passes, and one above it is named with its value."""
    assert grown(LIMITS) == {}
    assert grown({**LIMITS, "rows_per_step": 99.0}) == {"rows_per_step": 99.0}


@pytest.fixture
def counter():
    """Counts every connection that the test opens."""
    counter = Counter()
    apsw.connection_hooks.append(counter.watch)
    yield counter
    apsw.connection_hooks.remove(counter.watch)


def test_what_a_connection_does_is_counted(counter, tmp_path):
    """Each commit, each row inserted, changed or deleted, and the bytes of what is new in it."""
    connection = apsw.Connection(str(tmp_path / "counted.db"))
    connection.execute("CREATE TABLE t (number INTEGER PRIMARY KEY, payload BLOB) STRICT")
    before = counter.now()
    with connection:
        connection.execute("INSERT INTO t VALUES (1, ?), (2, ?)", (b"x" * 100, b"y" * 10))
    connection.execute("UPDATE t SET payload = ? WHERE number = 2", (b"z" * 20,))
    connection.execute("DELETE FROM t WHERE number = 1")
    after = counter.now()
    assert after.commits - before.commits == 3
    assert after.rows - before.rows == 4
    assert after.bytes - before.bytes == 101 + 11 + 21
    assert counter.stored_bytes() >= 21
    connection.close()


async def test_a_step_that_writes_more_is_noticed(counter):
    """A handler that writes a larger Attribute shows in the bytes of a Step."""

    async def one_turn(wrap):
        async with serving("sqlite", wrap=wrap, lease_seconds=300.0) as bench:
            session = await bench.paused("counted", [pause(), pause()])
            before = counter.now()
            await session.to_next_pause()
            after = counter.now()
            await session.stop()
        return after.bytes - before.bytes, after.handler_calls - before.handler_calls

    def writing_more(table):
        def wrap(step):
            async def execute(context, given):
                context.set(FRAMEWORK_RUN_STATE, context.step_execution_id * 1000)
                return await step.execute(context, given)

            return replace(step, execute=execute) if step.name == "CallTool" else step

        return counter.wrap(replace_table(table, steps=tuple(map(wrap, table.steps))))

    written, calls = await one_turn(counter.wrap)
    more_written, more_calls = await one_turn(writing_more)
    assert calls == more_calls == 9
    assert more_written - written > 3 * len("CallTool-1") * 1000 * 0.9
