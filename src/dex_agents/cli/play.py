"""Plays the demo: starts a worker process, kills it at the worst moment, starts another."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from dex_agents.cli import observatory
from dex_agents.cli.errors import CommandError
from dex_agents.cli.observatory import FLOW_TYPE, FOLDER_VARIABLE, MOVE, USER_MESSAGE, Observatory
from dex_agents.cli.proof import Evidence
from dex_agents.cli.stores import open_session, open_store
from dex_agents.cli.story import Story
from dex_agents.client import AgentSessionClient
from dex_agents.records import AgentEventType, AgentInterrupt, AgentSnapshot, AgentStatus
from dex_agents.testing import wait_until

__all__ = ("FLOW", "Play")

T = TypeVar("T")

FLOW = f"{observatory.__name__}:{observatory.flow.__name__}"
"""What the worker serves."""

_PATIENCE_SECONDS = 30.0
_TELLING_SECONDS = 2.0
"""How long to wait for the story once the session itself has gone on."""
_POLL_SECONDS = 0.01
_LEASE_SECONDS = 1.0
_ENDS = frozenset({AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED})
_ASKS = frozenset({AgentEventType.INTERRUPT_RAISED}) | _ENDS


class Play:
    """One run of the demo.

    Args:
        store: The URL of the store.
        folder: For the observatory's files and the worker's log.
    """

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.session = ""
        self.story = Story()
        self._observatory = Observatory(folder)
        self._killed: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None

    async def until_approval(self) -> AgentInterrupt:
        """Play until the model asks for the write that needs an approval."""
        async with open_store(self.store, creates=True) as backend:
            client = AgentSessionClient(backend, FLOW_TYPE)
            await self._start_session(client, {each.flow_id for each in await backend.list_flows()})
            telling = asyncio.create_task(self.story.follow(client, self.session, _ASKS))
            self._start_worker()
            await self._until(f"{MOVE} to begin", self._reached_gate)
            await _in_time(wait_until("its event", self._has_told_of_gate))
            self._kill_worker()
            self._observatory.gate.release()
            self._start_worker()
            interrupt = await self._until(
                "a pending approval", lambda: self._pending_interrupt(client)
            )
            await _in_time(telling)
        return interrupt

    async def until_answer(self, interrupt: AgentInterrupt, *, is_approved: bool) -> Evidence:
        """Give the person's answer to the session, and play until the model's."""
        async with open_session(self.store, self.session) as client:
            telling = asyncio.create_task(self.story.follow(client, self.session, _ENDS))
            await client.resolve_interrupt(
                self.session, interrupt.interrupt_id, approved=is_approved
            )
            snapshot = await self._until("the answer", lambda: self._ended_turn(client))
            await _in_time(telling)
            assert self._killed is not None  # the first half has killed it
            return Evidence(
                killed_pid=self._killed.pid,
                exit_status=self._killed.returncode,
                is_approved=is_approved,
                observatory=self._observatory,
                history=await client.read_history(self.session),
                events=self.story.events,
                snapshot=snapshot,
            )

    def end_worker(self) -> None:
        """End the worker that is left, if one is."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._worker.wait(_TELLING_SECONDS)
            if self._worker.poll() is None:
                self._worker.kill()
                self._worker.wait()

    async def _start_session(self, client: AgentSessionClient, taken: set[str]) -> None:
        number = 1
        while f"night-{number}" in taken:
            number += 1
        self.session = f"night-{number}"
        await client.start_session(self.session, USER_MESSAGE)
        self.story.tell("You", USER_MESSAGE)

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "dex_agents.cli", "--store", self.store, "worker", FLOW]
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, "--lease", str(_LEASE_SECONDS)],
                env={**os.environ, FOLDER_VARIABLE: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which then ends that one
            )
        self.story.tell("Worker", f"{self._worker.pid} starts", "dim")

    def _kill_worker(self) -> None:
        assert self._worker is not None  # it has just come to the gate
        self.story.tell("Tool", f"{MOVE} has taken effect, but has not yet said so")
        self._worker.send_signal(signal.SIGKILL)
        self._worker.wait()
        self.story.tell(
            "kill -9", f"{self._worker.pid}, the worker, at the worst moment", "bold red"
        )
        self._killed = self._worker

    @property
    def _log(self) -> Path:
        return self.folder / "worker.log"

    async def _until(self, description: str, probe: Callable[[], Awaitable[T | None]]) -> T:
        """Wait for something, as long as the worker lives that must bring it about."""

        async def watched() -> T | None:
            if self._worker is not None and self._worker.poll() is not None:
                told = self._log.read_text(errors="replace").strip().splitlines()
                raise CommandError(f"The worker has ended: {told[-1] if told else 'no word'}")
            return await probe()

        found: T | None = await wait_until(
            description, watched, timeout=_PATIENCE_SECONDS, interval=_POLL_SECONDS
        )
        assert found is not None  # wait_until returns nothing falsy
        return found

    async def _reached_gate(self) -> bool:
        return self._observatory.gate.is_reached

    def _has_told_of_gate(self) -> bool:
        return any(
            each.type == AgentEventType.TOOL_CALL_STARTED and each.payload["tool_name"] == MOVE
            for each in self.story.events
        )

    async def _pending_interrupt(self, client: AgentSessionClient) -> AgentInterrupt | None:
        snapshot = await self._ended_or_asking(client)
        if snapshot is None:
            return None
        if not snapshot.pending_interrupts:
            error = snapshot.state.last_turn_error if snapshot.state else None
            raise CommandError(f"The turn ended before the approval: {error}")
        return snapshot.pending_interrupts[0]

    async def _ended_or_asking(self, client: AgentSessionClient) -> AgentSnapshot | None:
        snapshot = await client.get_agent_snapshot(self.session)
        return snapshot if snapshot.pending_interrupts or _has_ended(snapshot) else None

    async def _ended_turn(self, client: AgentSessionClient) -> AgentSnapshot | None:
        snapshot = await client.get_agent_snapshot(self.session)
        return snapshot if _has_ended(snapshot) else None


def _has_ended(snapshot: AgentSnapshot) -> bool:
    state = snapshot.state
    return state is not None and state.status is AgentStatus.WAITING_FOR_USER_MESSAGE


async def _in_time(telling: Awaitable[object]) -> None:
    """Let the story catch up; it is told from a Stream, which is best effort."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_TELLING_SECONDS):
            await telling
