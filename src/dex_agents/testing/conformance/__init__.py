"""The rules that every backend keeps, as tests that anybody can run over a backend of theirs."""

from __future__ import annotations

from dex_agents.testing.conformance.contract import BackendContract
from dex_agents.testing.conformance.report import ConformanceTable
from dex_agents.testing.conformance.rules import RULES, rule

__all__ = ("RULES", "BackendContract", "ConformanceTable", "rule")
