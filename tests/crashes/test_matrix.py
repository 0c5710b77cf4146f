"""Every cell of docs/crash-matrix.md is what happens."""

from __future__ import annotations

import pytest

from tests.crashes.__main__ import PAGE
from tests.crashes.matrix import ENGINES, ROWS, cells, page


def documented(engine: str) -> list[str]:
    """Return the lines of an engine's table in the document."""
    _, _, rest = PAGE.read_text().partition(f"## {engine}\n")
    return [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.step}-{row.phase}-{row.scenario}")
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_killed_worker_leaves_what_the_table_says(tmp_path, engine, row):
    """Another worker finishes: at most the running call repeats, and no write is doubled."""
    found = page({engine: {row: await cells(engine, row, tmp_path)}})
    (line,) = [each for each in found.splitlines() if each.startswith("| `")]
    assert line == documented(engine)[ROWS.index(row)], "remake it: python -m tests.crashes"
