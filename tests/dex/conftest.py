"""A stack of the gated flow, its gates, and what its workers really did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from dex_agents import AgentSnapshot
from dex_agents.testing import AgentTestStack, FileGate, InvocationLog, wait_for_agent_snapshot
from tests.dex.gated_agent import build_flow

ROOT = Path(__file__).resolve().parents[2]
MODES = ("pull", "listening")


class Gated:
    """A stack of the gated flow, and a few words for tests."""

    def __init__(self, folder: Path, mode: str, *emulator_arguments: str) -> None:
        self.folder = folder
        self.flow = build_flow()
        self.log = InvocationLog(folder / "invocations.jsonl")
        self.stack = AgentTestStack(
            folder,
            [self.flow],
            "tests.dex.gated_worker",
            worker_cwd=ROOT,
            worker_env={"DEX_TEST_STATE": str(folder)},
            mode=mode,
            # A replacement takes seconds to start; no single-attempt tool may lose its attempt.
            emulator_arguments=("--dispatch-wait", "60", *emulator_arguments),
        )

    async def __aenter__(self) -> Self:
        await self.stack.__aenter__()
        self.sessions = self.stack.sessions(self.flow)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stack.__aexit__(*exc_info)

    def close_gate(self, name: str) -> FileGate:
        """Put up a gate at which children stop."""
        (self.folder / f"{name}.closed").touch()
        return FileGate(self.folder, name)

    def open_gate(self, name: str) -> None:
        """Take a gate away for whoever comes next."""
        (self.folder / f"{name}.closed").unlink()

    def effects(self, tool: str) -> list[dict[str, Any]]:
        """Return what a tool has really done."""
        return [entry for entry in self.log.entries("effect") if entry["tool"] == tool]

    async def settled(self, session_id: str, turns: int = 1, seconds: float = 30) -> AgentSnapshot:
        """Return a session's snapshot once it has ended so many turns."""

        def look(snapshot: AgentSnapshot) -> AgentSnapshot | None:
            state = snapshot.state
            is_idle = (
                state is not None
                and state.turn_number == turns
                and state.status == "waiting_for_user_message"
                and not snapshot.queued_message_count
            )
            return snapshot if is_idle else None

        description = f"the end of turn {turns} of {session_id}"
        return await wait_for_agent_snapshot(
            self.sessions, session_id, look, description=description, timeout=seconds
        )

    async def finals(self, session_id: str) -> dict[str, int]:
        """Return the last attempt of every Step execution that ended."""
        history = await self.stack.read_step_history(session_id)
        return {
            entry.step_execution_id: entry.final_attempt
            for entry in history
            if entry.event_type in ("step_execute_completed", "step_execute_failed")
        }


def told(snapshot: AgentSnapshot) -> list[str]:
    """Return what the model was told of every tool call."""
    return [m.framework_item["content"] for m in snapshot.messages if m.role == "tool"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """How workers are reached."""
    return str(request.param)


@pytest.fixture
async def open_gated(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens a stack of the gated flow in a mode, with arguments for the emulator."""
    async with AsyncExitStack() as exits:

        async def open_with(mode: str, *emulator_arguments: str) -> Gated:
            return await exits.enter_async_context(Gated(tmp_path, mode, *emulator_arguments))

        yield open_with


@pytest.fixture
async def gated(open_gated: Callable[..., Any], mode: str) -> Gated:
    """A stack of the gated flow; it has no worker yet."""
    return await open_gated(mode)
