"""A table of rule by backend, from what a run of the contract has shown."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from dex_agents.testing.conformance.rules import RULES

__all__ = ("ConformanceTable",)

_KEY = "dex_agents_conformance"
_PREAMBLE = (
    "# Rules by backend",
    "",
    "How many tests of each rule of [Semantics](semantics.md) each backend kept when this page",
    "was made. A test that needs more than a backend declares is counted as such. Dex means the",
    "[emulator](dex-emulator.md), with the SDK's own worker pulling or listening.",
    "",
    "`python -m pytest tests/conformance --table docs/conformance.md` makes it again.",
    "",
)


class ConformanceTable:
    """A pytest plugin that counts what each backend's class of tests kept of each rule.

    Args:
        path: Where to write the table as Markdown as well, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._backends: dict[str, None] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which rule and which backend a test is about."""
        number = getattr(getattr(item, "function", None), "dex_agents_rule", None)
        if number is not None:
            name = item.cls.__name__.removeprefix("Test")  # type: ignore[attr-defined]
            item.user_properties.append((_KEY, (number, name)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's outcome once."""
        if report.when != "call" and report.passed:
            return
        for key, value in report.user_properties:
            if key == _KEY and isinstance(value, tuple):
                number, backend = value
                self._backends[backend] = None
                self._counts[number, backend][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        if not self._backends:
            return
        terminalreporter.section("rules by backend")
        for line in self.lines():
            terminalreporter.write_line(line)
        if self._path is not None:
            self._path.write_text("\n".join([*_PREAMBLE, *self.lines()]) + "\n")

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown."""
        names = list(self._backends)
        rows = ["| rule | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
        for number, title in RULES.items():
            label = f"{number}. {title}" if number.isdigit() else title
            cells = (_cell(self._counts[number, name]) for name in names)
            rows.append(f"| {label} | " + " | ".join(cells) + " |")
        return rows


def _cell(counts: Counter[str]) -> str:
    if not counts:
        return "not run"
    words = [f"{counts['passed']} kept"] if counts["passed"] else []
    words += [f"{counts['failed']} broken"] if counts["failed"] else []
    words += [f"{counts['skipped']} need more"] if counts["skipped"] else []
    return ", ".join(words)
