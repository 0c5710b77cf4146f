"""Reads the package's ``.sql`` files."""

from __future__ import annotations

import re
from importlib.resources import files

__all__ = ("QUERIES", "SCHEMA")

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _queries(text: str) -> dict[str, str]:
    parts = _NAME.split(text)[1:]
    return {name: _statement(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _statement(body: str) -> str:
    return "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))


_package = files("dex_agents_sqlite")

SCHEMA = (_package / "schema.sql").read_text()
QUERIES = _queries((_package / "queries.sql").read_text())
"""By the name that stands above each statement."""
