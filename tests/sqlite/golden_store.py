"""Makes the store that tests/sqlite/golden keeps: ``python -m tests.sqlite.golden_store``.

Run it once for each schema version, when that version is released, and never
again: what it wrote stands for the stores of people who have not upgraded.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec

from dex_agents import (
    AgentSessionClient,
    AgentSessionOptions,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
    session_table,
)
from dex_agents.testing import ScriptedRunner, ToolRequest, wait_for_agent_snapshot
from dex_agents_sqlite import SqliteBackend
from dex_agents_sqlite.connection import SCHEMA_VERSION

FOLDER = Path(__file__).parent / "golden"
SESSIONS = ("answered", "asking", "failed", "queued", "stopped")


def flow():
    """Return the agent whose sessions the store holds."""
    look = ToolRequest(
        "look", {"where": "snow ❄", "deep": [{"n": 1.5}, None]}, effect=ToolEffect.READ
    )

    def respond(turn):
        text = turn.messages[-1].text
        if text == "fail" and turn.is_resuming:
            raise RuntimeError("no answer")
        if turn.is_resuming:
            return "done"
        return [ToolRequest("pay", {"euro": 3})] if text == "pay" else [look, look]

    def tool(call):
        if call.tool_call.tool_call_id == "call-2":
            raise ToolExecutionError("nothing there")
        return {"seen": [call.tool_call.arguments]}

    options = AgentSessionOptions(
        tool_policies={"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
        interrupt_deadline=timedelta(days=365_000),
    )
    runner = ScriptedRunner(respond, {"look": tool, "pay": lambda _: "paid"}, stream=True)
    return session_table(runner, flow_type="Golden", options=options)


async def snapshots(sessions: AgentSessionClient) -> dict:
    """Return what is to be read of every session, as plain data."""
    found = {}
    for name in SESSIONS:
        summary = await sessions.describe_session(name)
        events = [each.event async for each in sessions.follow_events(name, follow=False)]
        history = await sessions.read_history(name)
        found[name] = {
            "summary": summary,
            "snapshot": await sessions.get_agent_snapshot(name),
            "events": events,
            "history": history,
        }
    return msgspec.to_builtins(found)


async def make(path: Path) -> dict:
    """Write the store, and return what is to be read of it."""
    async with SqliteBackend(path) as backend:
        table = flow()
        sessions = AgentSessionClient(backend, table)
        async with backend.worker([table]):
            for name, text in (("answered", "go"), ("asking", "pay"), ("failed", "fail")):
                await sessions.start_session(name, text)
            await sessions.start_session("stopped")
            for name in ("answered", "failed"):
                await wait_for_agent_snapshot(
                    sessions, name, _has_ended, description="the turn's end", timeout=20
                )
            await wait_for_agent_snapshot(
                sessions, "asking", lambda seen: seen.pending_interrupts, description="the question"
            )
            await sessions.stop_session("stopped", "enough")
        await sessions.start_session("queued", "go")
        await sessions.send_user_message("queued", "and again")
        return await snapshots(sessions)


def _has_ended(seen):
    return (
        seen.state
        and seen.state.turn_number == 1
        and seen.state.status == ("waiting_for_user_message")
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"schema-{SCHEMA_VERSION}.sqlite"
    expected = asyncio.run(make(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = delete")
        connection.execute("VACUUM")
    encoded = msgspec.json.format(msgspec.json.encode(expected))
    path.with_suffix(".json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    main()
