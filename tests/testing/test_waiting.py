"""Waiting for a probe, for a snapshot, for a gate; counting calls."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest

from dex_agents import AgentSnapshot, AgentState
from dex_agents.testing import (
    BrokenLineError,
    FileGate,
    InvocationLog,
    wait_for_agent_snapshot,
    wait_until,
)

# wait_until


async def test_wait_until_returns_the_first_truthy_value():
    """A plain probe is asked until it gives something."""
    values = iter([None, 0, "there", "late"])
    assert await wait_until("a value", lambda: next(values)) == "there"


async def test_wait_until_awaits_an_async_probe():
    """An async probe is awaited, and its value judged, not the coroutine."""
    values = iter([[], [7]])

    async def probe() -> list[int]:
        return next(values)

    assert await wait_until("a list", probe) == [7]


async def test_wait_until_names_description_and_last_value_on_timeout():
    """The error says what was waited for and what was seen."""
    with pytest.raises(TimeoutError, match=r"for a full list\. Last seen: \[\]"):
        await wait_until("a full list", list, timeout=0.02)


async def test_wait_until_ends_a_probe_that_hangs():
    """The deadline holds inside the probe too."""
    with pytest.raises(TimeoutError, match="an answer"):
        await wait_until("an answer", asyncio.Event().wait, timeout=0.02)


async def test_wait_until_passes_on_the_errors_of_its_probe():
    """An exception of the probe ends the wait at once, even a TimeoutError of its own."""

    def probe() -> bool:
        raise TimeoutError("the probe's own")

    with pytest.raises(TimeoutError, match="the probe's own"):
        await wait_until("anything", probe)


# wait_for_agent_snapshot


class _Snapshots:
    """Gives snapshots whose turn number counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        self.calls += 1
        return AgentSnapshot(state=AgentState(turn_number=self.calls))


async def test_wait_for_agent_snapshot_returns_what_the_predicate_gives():
    """The predicate's truthy value is the result, not the snapshot."""
    turn = await wait_for_agent_snapshot(
        _Snapshots(),
        "s",
        lambda seen: seen.state.turn_id if seen.state.turn_number == 3 else None,
        description="the third turn",
    )
    assert turn == "turn-3"


async def test_wait_for_agent_snapshot_shows_the_last_snapshot_on_timeout():
    """The error names the description and shows the session."""
    with pytest.raises(TimeoutError, match=r"for a miracle\. Last seen: AgentSnapshot\(state="):
        await wait_for_agent_snapshot(
            _Snapshots(), "s", lambda _: False, description="a miracle", timeout=0.02
        )


# FileGate


async def test_a_gate_holds_the_worker_until_it_is_released(tmp_path: Path):
    """The worker marks the gate and goes on only after the release."""
    worker, test = FileGate(tmp_path / "new", "refund"), FileGate(tmp_path / "new", "refund")
    assert not test.is_reached
    task = asyncio.create_task(worker.wait_for_release())
    await test.wait_until_reached()
    assert not task.done()
    test.release()
    await asyncio.wait_for(task, 5.0)


async def test_a_released_gate_stays_open(tmp_path: Path):
    """A replacement worker walks through, and marks the gate all the same."""
    FileGate(tmp_path, "refund").release()
    gate = FileGate(tmp_path, "refund")
    await asyncio.wait_for(gate.wait_for_release(), 5.0)
    assert gate.is_reached


async def test_a_gate_says_which_one_was_not_reached(tmp_path: Path):
    """A gate that nobody comes to ends the wait with its name; others do not count."""
    FileGate(tmp_path, "other").mark_reached()
    with pytest.raises(TimeoutError, match="'refund'"):
        await FileGate(tmp_path, "refund").wait_until_reached(timeout=0.02)


@pytest.mark.parametrize("name", ["", "a/b", "../up"])
def test_a_gate_needs_a_plain_name(tmp_path: Path, name: str):
    """A name cannot lead out of the directory."""
    with pytest.raises(ValueError, match="plain file name"):
        FileGate(tmp_path, name)


# InvocationLog


def test_a_log_counts_calls_by_name(tmp_path: Path):
    """Entries keep their data and their order."""
    log = InvocationLog(tmp_path / "new" / "calls")
    assert log.entries() == []
    log.record("refund", order=7)
    log.record("search")
    log.record("refund", order=8)
    assert log.count("refund") == 2
    assert log.count("nothing") == 0
    assert log.entries("refund") == [
        {"name": "refund", "order": 7},
        {"name": "refund", "order": 8},
    ]
    assert [entry["name"] for entry in log.entries()] == ["refund", "search", "refund"]


def _record_many(path: Path, name: str) -> None:
    for number in range(25):
        InvocationLog(path).record(name, number=number, text="x" * 5000)


def test_processes_share_a_log_without_losing_a_line(tmp_path: Path):
    """Lines of several processes never mix."""
    context = multiprocessing.get_context("forkserver")
    path = tmp_path / "calls"
    workers = [context.Process(target=_record_many, args=(path, name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0]
    for name in "ab":
        assert [entry["number"] for entry in InvocationLog(path).entries(name)] == [*range(25)]


def test_a_torn_last_line_is_ignored(tmp_path: Path):
    """What a killed process did not finish does not count, even where it reads as JSON."""
    log = InvocationLog(tmp_path / "calls")
    log.record("refund")
    with log.path.open("ab") as file:
        file.write(b'{"name":"refund"}')
    assert log.count("refund") == 1


def test_a_broken_whole_line_is_named(tmp_path: Path):
    """A file that is no log is not taken for an empty one."""
    log = InvocationLog(tmp_path / "calls")
    log.record("refund")
    with log.path.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(BrokenLineError, match="calls, line 2"):
        log.entries()
