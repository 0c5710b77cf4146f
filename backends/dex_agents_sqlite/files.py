"""Notices that an open store's files were deleted or replaced: SQLite itself would write on.

A deleted file lives on, nameless, for those who have it open, and its number is
not given to another file meanwhile. So the path leads to the opened file
exactly as long as device and number stay the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from dex_agents.errors import StoreLostError

__all__ = ("OpenFiles", "identity")

Identity: TypeAlias = tuple[int, int]


def identity(name: str) -> Identity | None:
    """Return what tells a file from every other that there is now; None when it is not there.

    Raises:
        OSError: It cannot be told.
    """
    try:
        found = os.stat(name)  # noqa: PTH116 - asked before and after every commit
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class OpenFiles:
    """The database that a process has open, and the two files that SQLite keeps beside it.

    Once one of them is lost, it stays lost: what happened to it meanwhile is unknown.

    Args:
        path: As it was named; made absolute, because a process may change its folder.
        database: SQLite's own name of it, links resolved. The other two are named after it.
    """

    def __init__(self, path: Path, database: str) -> None:
        self._path = path
        self._main = os.path.abspath(path)  # noqa: PTH100 - a link is not to be resolved
        names = (self._main, f"{database}-wal", f"{database}-shm")
        self._opened = {name: identity(name) for name in names}
        self._lost: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether a file was found lost."""
        return self._lost is not None

    @property
    def main(self) -> Identity | None:
        """The database's identity when it was opened."""
        return self._opened[self._main]

    def require(self) -> None:
        """Refuse once a file was found lost.

        Raises:
            StoreLostError: It says which file, and what to do.
        """
        if self._lost is not None:
            raise StoreLostError(str(self._path), self._lost)

    def look(self) -> None:
        """Look at the database alone, then `require`; a microsecond, for every commit."""
        self._compare(self._main)
        self.require()

    def look_at_all(self) -> None:
        """Look at the database and the files beside it, then `require`."""
        for name in self._opened:
            self._compare(name)
        self.require()

    def _compare(self, name: str) -> None:
        opened = self._opened[name]
        try:
            is_lost = opened is not None and identity(name) != opened
        except OSError:
            return  # a folder that may no longer be entered proves nothing
        if is_lost:
            self._lost = self._lost or name
