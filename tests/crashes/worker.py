"""A worker that may carry a bomb: at one point of one Step it kills itself, with SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dex_agents.backend import open_backend
from dex_agents.executor import Commit
from dex_agents.machine import HistoryEvent, Phase
from dex_agents.table import FlowTable, Step
from tests.crashes.scenarios import crash_table

__all__ = ("LEASE_SECONDS", "POINTS", "Bomb", "serve")

LEASE_SECONDS = 0.5
POINTS = (
    "before the hand-out",
    "after the start marker",
    "in the handler",
    "after the effect",
    "before the commit",
    "after the commit",
    "before the next Step",
)
_ENDED = (HistoryEvent.EXECUTE_COMPLETED, HistoryEvent.WAIT_FOR_COMPLETED)


class Bomb(Struct):
    """Goes off at one point of one Step.

    Attributes:
        step: The Step.
        phase: ``execute`` or ``wait_for``.
        point: One of `POINTS`.
        then: The handler that is called next, because of the Step's commit.
        is_in_step: Whether the Step's handler is running.
    """

    step: str
    phase: Phase
    point: str
    then: tuple[str, Phase]
    is_in_step: bool = False

    def at(self, point: str) -> None:
        """Go off, if this is the point."""
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def runner_at(self, point: str) -> None:
        """Go off in a runner's call, if the Step is the one that makes it."""
        if self.is_in_step:
            self.at(point)


def serve(url: str, folder: Path, bomb: Bomb | None) -> None:
    """Serve until killed. A process of its own runs this."""
    asyncio.run(_serve(url, folder, bomb))


async def _serve(url: str, folder: Path, bomb: Bomb | None) -> None:
    table = crash_table(folder, bomb.runner_at) if bomb else crash_table(folder)
    async with open_backend(url) as backend:
        if bomb is not None:
            table = _watched(table, bomb)
            if backend.name == "sqlite":
                _watch_commits(backend, bomb)
        async with backend.worker([table], lease_seconds=LEASE_SECONDS):
            await asyncio.Event().wait()


def _watched(table: FlowTable, bomb: Bomb) -> FlowTable:
    rows = tuple(_watched_row(row, bomb) for row in table.steps)
    return FlowTable(table.flow_type, rows, table.rpcs, table.persistence, table.facts)


def _watched_row(row: Step[Any], bomb: Bomb) -> Step[Any]:
    has_runner = row.name in ("RunModel", "CallTool", "CallSingleAttemptTool")

    def around(handler: Any, phase: Phase) -> Any:
        is_it = (row.name, phase) == (bomb.step, bomb.phase)

        async def watched(context: Any, given: Any) -> Any:
            if (row.name, phase) == bomb.then:
                bomb.at("before the next Step")
            if not is_it:
                return await handler(context, given)
            if not has_runner:
                bomb.at("in the handler")
            bomb.is_in_step = True
            result = await handler(context, given)
            bomb.is_in_step = False
            bomb.at("before the commit")
            return result

        return watched

    wait_for = around(row.wait_for, Phase.WAIT_FOR) if row.wait_for else None
    return replace(row, execute=around(row.execute, Phase.EXECUTE), wait_for=wait_for)


def _watch_commits(backend: Any, bomb: Bomb) -> None:
    """Let the bomb see what the worker writes, and when it is durable."""
    store = backend._store
    write = store.commit

    def commit(given: Commit) -> None:
        hands_out = any(
            after is not None
            and after.is_running
            and (after.step, after.phase) == (bomb.step, bomb.phase)
            for changes in given.changes
            for after in changes.executions.values()
        )
        ends = any(
            entry.event_type in _ENDED
            and entry.step_type == bomb.step
            and (entry.event_type is HistoryEvent.EXECUTE_COMPLETED)
            == (bomb.phase is Phase.EXECUTE)
            for changes in given.changes
            for entry in changes.history
        )
        if hands_out:
            bomb.at("before the hand-out")
        write(replace(given, done=_told(given.done, bomb, hands_out=hands_out, ends=ends)))

    store.commit = commit


def _told(done: Callable[..., None], bomb: Bomb, *, hands_out: bool, ends: bool) -> Any:
    def durable(error: BaseException | None) -> None:
        if error is None and hands_out:
            bomb.at("after the start marker")
        if error is None and ends:
            bomb.at("after the commit")
        done(error)

    return durable
