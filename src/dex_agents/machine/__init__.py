"""The pure flow machine: a state and an event give changes to store and effects to perform."""

from __future__ import annotations

from dex_agents.machine.machine import Machine, Rules
from dex_agents.machine.records import *  # noqa: F403
from dex_agents.machine.records import __all__ as _records
from dex_agents.machine.rules import TableRules, execution_options
from dex_agents.machine.state import FlowState

__all__ = ("FlowState", "Machine", "Rules", "TableRules", "execution_options", *_records)  # noqa: PLE0604
