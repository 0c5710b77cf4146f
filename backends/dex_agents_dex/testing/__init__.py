"""The Dex half of the testing kit: an engine of one's own, and workers that a test may kill.

Import these names from `dex_agents.testing`.
"""

from __future__ import annotations

from dex_agents.backend import StepHistoryEntry
from dex_agents_dex.testing.dexcli import DexcliEngine
from dex_agents_dex.testing.engine import EmulatorEngine
from dex_agents_dex.testing.errors import (
    BinaryMissingError,
    ChildExitedError,
    ChildNotReadyError,
    WorkerSettingError,
)
from dex_agents_dex.testing.history import EXECUTE_COMPLETED_EVENT, read_step_history
from dex_agents_dex.testing.process import ChildProcess
from dex_agents_dex.testing.stack import AgentTestStack
from dex_agents_dex.testing.worker import run_agent_worker

__all__ = (
    "EXECUTE_COMPLETED_EVENT",
    "AgentTestStack",
    "BinaryMissingError",
    "ChildExitedError",
    "ChildNotReadyError",
    "ChildProcess",
    "DexcliEngine",
    "EmulatorEngine",
    "StepHistoryEntry",
    "WorkerSettingError",
    "read_step_history",
    "run_agent_worker",
)
