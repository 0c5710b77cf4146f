"""The flow of ``replay``: recorded conversations in place of a model and its tools."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dex_agents.cli.errors import CommandError
from dex_agents.records import ToolEffect
from dex_agents.runner import DeferredToolExecution, ToolPolicy
from dex_agents.session import AgentSessionOptions, session_table
from dex_agents.table import FlowTable
from dex_agents.testing import InvocationLog, RecordedRunner, Recording

__all__ = ("FLOW_TYPE", "flow", "read_recordings", "recorded_flow", "tool_names")

FLOW_TYPE = "RecordedConversation"
FILE_VARIABLE = "DEX_AGENTS_REPLAY_FILE"
READS_VARIABLE = "DEX_AGENTS_REPLAY_READS"
LOG_VARIABLE = "DEX_AGENTS_REPLAY_LOG"


def flow() -> FlowTable:
    """Return the flow for ``dex-agents worker dex_agents.cli.replay:flow``.

    The recordings, the tools that only read, and the log of calls are named by
    environment variables.

    Raises:
        CommandError: They name no file.
    """
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        raise CommandError(f"Name the recordings in {FILE_VARIABLE}.")
    log = os.environ.get(LOG_VARIABLE)
    return recorded_flow(
        read_recordings(Path(path)),
        tool_names(os.environ.get(READS_VARIABLE, "")),
        Path(log) if log else None,
    )


def recorded_flow(
    recordings: Sequence[Recording], reads: Iterable[str], log: Path | None = None
) -> FlowTable:
    """Return a flow that replays these recordings.

    Args:
        recordings: Each becomes the session of its ID.
        reads: The tools that only read. All others are once-only writes that
            need no approval.
        log: Where every real tool call is noted, or None.
    """
    calls = InvocationLog(log) if log is not None else None

    def note(call: DeferredToolExecution) -> None:
        if calls is not None:
            record = call.tool_call
            calls.record(
                record.tool_name, key=call.idempotency_key, effect=record.effect, pid=os.getpid()
            )

    policies = {
        name: ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
        for name in _called_tools(recordings)
    }
    policies.update((name, ToolPolicy(ToolEffect.READ)) for name in reads)
    return session_table(
        RecordedRunner(recordings, on_tool_call=note),
        flow_type=FLOW_TYPE,
        options=AgentSessionOptions(tool_policies=policies),
    )


def read_recordings(file: Path) -> list[Recording]:
    """Return the recordings of a file.

    Raises:
        BrokenLineError: A line cannot be read.
        CommandError: There are none.
    """
    recordings = Recording.read_file(file)
    if not recordings:
        raise CommandError(f"There are no recordings in {file}.")
    return recordings


def tool_names(text: str) -> list[str]:
    """Return the names in a list that commas part."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _called_tools(recordings: Iterable[Recording]) -> set[str]:
    return {
        call["name"]
        for recording in recordings
        for message in recording.messages
        for call in message.get("tool_calls") or ()
    }
