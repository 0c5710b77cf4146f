"""The table of cases names the tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (C\d\d) \|.*\|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def named() -> dict[str, list[str]]:
    """Return the tests that the table has for each case."""
    rows = ROW.findall((ROOT / "docs" / "cases.md").read_text())
    return {case: re.findall(r"`(\w+)`", tests) for case, tests in rows}


def written(folder: str) -> set[str]:
    """Return the names of all tests below a folder."""
    return {
        name
        for path in (ROOT / folder).rglob("test_*.py")
        for name in TEST.findall(path.read_text())
    }


def test_every_test_of_a_case_is_in_its_row_and_the_reverse():
    """A test under a case's name stands in that row, and each row has one at least."""
    cases = {name for name in written("tests/cases") if re.match(r"test_c\d\d_", name)}
    in_rows = {case: {t for t in tests if t in cases} for case, tests in named().items()}
    assert len(in_rows) == 20
    assert all(in_rows.values())
    for case, tests in in_rows.items():
        assert tests == {each for each in cases if each.startswith(f"test_{case.lower()}_")}
    assert set().union(*in_rows.values()) == cases


def test_every_test_that_the_table_names_exists():
    """The table also names tests elsewhere that prove a part."""
    assert {each for tests in named().values() for each in tests} <= written("tests")
