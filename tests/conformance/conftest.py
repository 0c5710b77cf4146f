"""Prints the rules by backend at the end of a run; ``--table FILE`` writes them as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from dex_agents.testing.conformance import ConformanceTable


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", type=Path, help="Write the rules by backend to this file.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ConformanceTable(config.getoption("--table", None)))
