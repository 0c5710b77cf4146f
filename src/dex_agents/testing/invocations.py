"""Counts what really ran, across workers and their deaths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from dex_agents.encoding import encode
from dex_agents.testing.errors import BrokenLineError

__all__ = ("InvocationLog",)

_decoder = msgspec.json.Decoder(dict[str, Any])


class InvocationLog:
    """A file to which every process adds one line for each real call.

    A line is on disk when `record` returns, so a call that was counted stays
    counted when its process is killed right behind it.

    Args:
        path: The file; its directory is made when missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def record(self, name: str, **data: Any) -> None:
        """Add one call.

        Args:
            name: What was called.
            data: Whatever a test wants to know of it, as JSON values.

        Raises:
            OSError: The line could not be written as a whole.
        """
        line = encode({"name": name, **data}, "invocation") + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(file, line) != len(line):
                raise OSError(f"Only a part of the line was written to {self.path}.")
            os.fsync(file)
        finally:
            os.close(file)

    def count(self, name: str) -> int:
        """Return how often this was called."""
        return len(self.entries(name))

    def entries(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the calls in the order in which they were written.

        A last line without its end is one that a process did not finish, and is left out.

        Args:
            name: Only calls of this, or None for all.

        Raises:
            BrokenLineError: A whole line is not one that `record` wrote.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        entries = [self._entry(number, line) for number, line in enumerate(lines, start=1)]
        return [entry for entry in entries if name is None or entry["name"] == name]

    def _entry(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry = _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BrokenLineError(self.path, number, str(error)) from error
        if "name" not in entry:
            raise BrokenLineError(self.path, number, "it names no call")
        return entry
