"""The testing kit: what tests of an agent session need, without any engine of their own."""

from __future__ import annotations

from dex_agents.testing.comparison import compare_recording
from dex_agents.testing.errors import (
    BrokenLineError,
    ProbeTimeoutError,
    RecordingError,
    ScriptError,
)
from dex_agents.testing.gates import FileGate
from dex_agents.testing.invocations import InvocationLog
from dex_agents.testing.recorded import RecordedRunner
from dex_agents.testing.recording import Recording
from dex_agents.testing.scripted import ScriptedRunner, ToolRequest
from dex_agents.testing.stack import AgentMemoryStack
from dex_agents.testing.waiting import wait_for_agent_snapshot, wait_until

__all__ = (
    "AgentMemoryStack",
    "BrokenLineError",
    "FileGate",
    "InvocationLog",
    "ProbeTimeoutError",
    "RecordedRunner",
    "Recording",
    "RecordingError",
    "ScriptError",
    "ScriptedRunner",
    "ToolRequest",
    "compare_recording",
    "wait_for_agent_snapshot",
    "wait_until",
)
