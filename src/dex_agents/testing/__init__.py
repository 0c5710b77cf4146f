"""The testing kit: what tests of an agent session need.

What runs on Dex, `AgentTestStack` and its companions, needs the extra ``dex``;
`BackendContract` needs pytest. Both are imported when they are first asked for.
"""

from __future__ import annotations

import importlib
import typing

import dex_agents.errors
from dex_agents.testing.comparison import compare_recording
from dex_agents.testing.errors import (
    BrokenLineError,
    ProbeTimeoutError,
    RecordingError,
    ScriptError,
    StillRunningError,
)
from dex_agents.testing.gates import FileGate
from dex_agents.testing.invocations import InvocationLog
from dex_agents.testing.provider import Call, Cut, Fault, ModelRequest, ProviderServer, Reply, Slow
from dex_agents.testing.recorded import RecordedRunner
from dex_agents.testing.recording import Recording
from dex_agents.testing.scripted import ScriptedRunner, ToolRequest
from dex_agents.testing.stack import AgentMemoryStack
from dex_agents.testing.waiting import wait_for_agent_snapshot, wait_until

if typing.TYPE_CHECKING:
    from dex_agents.testing.conformance import BackendContract as BackendContract
    from dex_agents_dex.testing import EXECUTE_COMPLETED_EVENT as EXECUTE_COMPLETED_EVENT
    from dex_agents_dex.testing import AgentTestStack as AgentTestStack
    from dex_agents_dex.testing import StepHistoryEntry as StepHistoryEntry
    from dex_agents_dex.testing import read_step_history as read_step_history
    from dex_agents_dex.testing import run_agent_worker as run_agent_worker

_DEX_NAMES = (
    "EXECUTE_COMPLETED_EVENT",
    "AgentTestStack",
    "StepHistoryEntry",
    "read_step_history",
    "run_agent_worker",
)

__all__ = (
    "AgentMemoryStack",
    "BrokenLineError",
    "Call",
    "Cut",
    "Fault",
    "FileGate",
    "InvocationLog",
    "ModelRequest",
    "ProbeTimeoutError",
    "ProviderServer",
    "RecordedRunner",
    "Recording",
    "RecordingError",
    "Reply",
    "ScriptError",
    "ScriptedRunner",
    "Slow",
    "StillRunningError",
    "ToolRequest",
    "compare_recording",
    "wait_for_agent_snapshot",
    "wait_until",
)


def __getattr__(name: str) -> typing.Any:
    """Import what needs pytest or the Dex SDK only when asked for it; ``import *`` does not."""
    if name == "BackendContract":
        return importlib.import_module("dex_agents.testing.conformance").BackendContract
    if name not in _DEX_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        dex_half = importlib.import_module("dex_agents_dex.testing")
    except dex_agents.errors.DexAgentsError:
        raise  # it says better what is wrong
    except ImportError as error:
        raise dex_agents.errors.MissingExtraError(name, "dex") from error
    return getattr(dex_half, name)
