"""One turn over five processes, one of them killed, seen by a collector as one trace."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from dex_agents import signals
from dex_agents.testing import wait_for_agent_snapshot, wait_until
from tests.processes.collector import Collector, Span, collecting
from tests.processes.conftest import ROOT, WorkerProcess, Workshop

pytestmark = pytest.mark.timeout(120)

SESSION = "journey-1"


class Company:
    """Processes that all export to one collector."""

    def __init__(self, shop: Workshop, collector: Collector) -> None:
        self._shop = shop
        self._collector = collector

    async def run(self, act: str, hours: float = 0) -> WorkerProcess:
        """Start a process."""
        state = {"DEX_TEST_STATE": str(self._shop.folder), "OTLP": self._collector.address}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.processes.traced", act, str(self._shop.path), SESSION),
            cwd=ROOT,
            env={**os.environ, **state, "HOURS": str(hours)},
            stdout=asyncio.subprocess.PIPE,
        )
        child = WorkerProcess(process)
        self._shop.workers.append(child)
        if act == "serve":
            assert process.stdout is not None
            assert (await process.stdout.readline()).startswith(b"serving")
        else:
            assert await child.wait() == 0
        return child


def _lines(shop: Workshop) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shop.folder / "log.jsonl").read_text().splitlines()]


def _named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


async def _journey(shop: Workshop, collector: Collector) -> tuple[int, int, int]:
    """Play the turn; return the three workers' process IDs."""
    company = Company(shop, collector)
    gate = shop.close_gate("after-keyed_write")
    first = await company.run("serve")
    await company.run("start")
    await gate.wait_until_reached(timeout=30)
    await first.kill()
    shop.open_gate("after-keyed_write")

    second = await company.run("serve")
    await wait_for_agent_snapshot(
        shop.sessions, SESSION, lambda s: s.pending_interrupts, description="a question", timeout=30
    )
    await wait_until(
        "the second worker to rest",
        lambda: (
            {span.pid for span in collector.spans if "invoke" in span.name} >= {second.process.pid}
        ),
        timeout=30,
    )
    second.signal(15)
    assert await second.wait() == 0

    third = await company.run("serve", hours=24)
    await company.run("approve", hours=24)
    await shop.settled(SESSION)
    await wait_until(
        "the end of the turn",
        lambda: (
            {span.pid for span in collector.spans if "invoke" in span.name} >= {third.process.pid}
        ),
        timeout=30,
    )
    return first.process.pid, second.process.pid, third.process.pid


async def test_a_turn_over_five_processes_is_one_trace(workshop: Workshop):
    """Killed in a tool, a day of waiting, approved by another process."""
    with collecting() as collector:
        first, second, third = await _journey(workshop, collector)
    spans = collector.spans
    assert len({span.span_id for span in spans}) == len(spans)  # none is doubled

    (request,) = _named(spans, "POST /sessions")
    (approval,) = _named(spans, "POST /approvals")
    turn = [span for span in spans if span.trace_id == request.trace_id]
    assert [span for span in spans if span not in turn] == [approval]

    # What each worker did, and nothing twice; the first was killed in the middle of its tool,
    # which takes that attempt and the stretch that it was in with it.
    did = {
        pid: sorted(
            (span.attributes[signals.STEP_ID], span.attributes[signals.STEP_PHASE])
            for span in turn
            if span.pid == pid and signals.STEP_ID in span.attributes
        )
        for pid in (first, second, third)
    }
    assert did == {
        first: [
            ("ResumeTurn-1", "wait_for"),
            ("RunModel-1", "execute"),
            ("StartAgentSession-1", "execute"),
        ],
        second: [
            ("AwaitToolApproval-1", "wait_for"),
            ("CallTool-1", "execute"),
            ("ResumeTurn-1", "execute"),
            ("ResumeTurn-2", "wait_for"),
            ("RunModel-2", "execute"),
        ],
        third: [
            ("AwaitToolApproval-1", "execute"),
            ("AwaitUserMessage-1", "wait_for"),
            ("CallSingleAttemptTool-1", "execute"),
            ("ResumeTurn-2", "execute"),
            ("RunModel-3", "execute"),
        ],
    }
    (repeated,) = _named(turn, "execute_tool keyed_write")
    assert repeated.attributes[signals.STEP_ATTEMPT] == 2

    # Parents and links.
    stretches = {span.pid: span for span in turn if span.name == "invoke_agent Gated"}
    assert {*stretches} == {second, third}
    for pid, stretch in stretches.items():
        assert stretch.parent_id == request.span_id
        own = [span for span in turn if span.pid == pid and span is not stretch]
        assert {span.parent_id for span in own} == {stretch.span_id}
    (lost,) = {span.parent_id for span in turn if span.pid == first}
    assert stretches[second].links == [lost]
    assert sorted(stretches[third].links) == sorted([stretches[second].span_id, approval.span_id])
    outcomes = [stretches[pid].attributes[signals.TURN_OUTCOME] for pid in (second, third)]
    assert outcomes == ["suspended", "completed"]
    assert not any(span.is_error for span in spans)


async def test_log_lines_are_found_by_their_span(workshop: Workshop):
    """Each attempt's line names its trace, its span, its Step and its worker."""
    with collecting() as collector:
        await _journey(workshop, collector)
    lines = _lines(workshop)
    attempts = [span for span in collector.spans if signals.STEP_ID in span.attributes]
    for span in attempts:
        (line,) = [
            each
            for each in lines
            if each.get("span_id") == span.span_id and each["event"] == signals.STEP_COMPLETED.name
        ]
        assert line["trace_id"] == span.trace_id
        assert line["session_id"] == SESSION
        assert line["step_id"] == span.attributes[signals.STEP_ID]
        assert line["attempt"] == span.attributes[signals.STEP_ATTEMPT]
        assert line["worker"] == span.attributes[signals.WORKER_ID]
        assert line["worker"].startswith(f"{span.pid}-")
    assert [line["event"] for line in lines].count(signals.SESSION_TAKEN_OVER.name) == 1
    (ended,) = [line for line in lines if line["event"] == signals.TURN_COMPLETED.name]
    assert ended["wall_duration"] > 86_000
