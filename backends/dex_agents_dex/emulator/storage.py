"""Where runs outlive the emulator's process: a SQLite store, one flow of it for each run.

The machine's rows are stored as they are. What the wire keeps beside them goes
into the same commit, as Attributes of reserved names: ``/a/`` the flow's own
Attributes, ``/h/`` its history, ``/n/`` notes, ``/e/`` ended executions and
``/run`` the record. Streams are best effort and are not kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from dex.dexpb import dex_pb2 as pb
from msgspec import Raw, json

from dex_agents.errors import StoreForeignError
from dex_agents.executor import Commit, SystemClock
from dex_agents.machine import AttemptsLost, Changes, Failure, FlowState
from dex_agents_dex.emulator.envelope import unwrap, wrap
from dex_agents_dex.emulator.run import Note, Run, RunRecord
from dex_agents_sqlite.store import SqliteStore

__all__ = ("Storage",)

_log = logging.getLogger(__name__)

_SCHEME = "sqlite:///"
_OWNER = "dex-emulator"


class Storage:
    """Stores what transitions change, in their order.

    Args:
        url: ``sqlite:///PATH``.

    Raises:
        ValueError: It names no SQLite file.
    """

    lost_attempts = AttemptsLost(
        Failure("The Dex emulator was stopped during the call.", "WORKER_DISCONNECTED")
    )

    def __init__(self, url: str) -> None:
        if not url.startswith(_SCHEME) or not url[len(_SCHEME) :]:
            raise ValueError(f"{url!r} names no store; write sqlite:///PATH.")
        self._path = url[len(_SCHEME) :]
        self._store = SqliteStore(Path(self._path), SystemClock())
        self._last: asyncio.Future[None] | None = None

    async def open(self) -> list[Run]:
        """Return the runs of the file, oldest first."""
        await self._store.open()
        return [self._load(header.flow_id) for header in self._store.headers()]

    async def close(self) -> None:
        """Write what waits and close the file."""
        await self.settled()
        await self._store.close()

    def write(self, run: Run, changes: Changes, events: list[pb.FlowHistoryEvent]) -> None:
        """Queue what a transition changed."""
        rows: dict[str, Raw | None] = {f"/a/{k}": raw for k, raw in changes.attributes.items()}
        rows["/run"] = Raw(json.encode(run.record))
        for event in events:
            rows[f"/h/{event.event_id:09}"] = wrap(event)
        for execution_id, execution in changes.executions.items():
            note = run.notes.get(execution_id)
            rows[f"/n/{execution_id}"] = Raw(json.encode(note)) if note is not None else None
            if execution is None:
                rows[f"/e/{execution_id}"] = Raw(b"1")
        changes.attributes = rows
        durable = asyncio.get_running_loop().create_future()
        self._last = durable
        self._store.commit(
            Commit(
                run.record.run_id,
                _OWNER,
                [changes],
                run.lineage,
                lambda error: _end(durable, error),
            )
        )

    async def settled(self) -> None:
        """Return once everything that was queued is durable."""
        if self._last is not None:
            await asyncio.shield(self._last)

    def when_settled(self, perform: Callable[[], object]) -> None:
        """Call back once what was queued last is durable; never, when it cannot be stored."""
        assert self._last is not None
        self._last.add_done_callback(lambda last: None if last.exception() else perform())

    def _load(self, run_id: str) -> Run:
        rows = self._store.reader(run_id).scan("/")
        if "/run" not in rows:
            raise StoreForeignError(self._path, "its sessions are not the Dex emulator's")
        state = self._store.load(run_id) or FlowState.absent(run_id)
        run = Run(json.decode(rows["/run"], type=RunRecord), state)
        for name, raw in rows.items():
            kind, key = name[:3], name[3:]
            if kind == "/a/":
                run.attributes[key] = unwrap(raw, pb.Value)
            elif kind == "/h/":
                run.history.append(unwrap(raw, pb.FlowHistoryEvent))
            elif kind == "/n/":
                run.notes[key] = json.decode(raw, type=Note)
            elif kind == "/e/":
                run.ended.add(key)
        return run


def _end(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if durable.done():
        return
    if error is None:
        durable.set_result(None)
    else:
        _log.error("a commit failed, and its flow stands still: %s", error)
        durable.set_exception(error)
        durable.exception()  # whoever waits gets it; nobody need wait
