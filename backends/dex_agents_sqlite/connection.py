"""Opens the store's file, or says why it cannot be; translates the driver's errors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from dex_agents.errors import (
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreNewerError,
    StoreUnavailableError,
)
from dex_agents_sqlite.files import OpenFiles, identity
from dex_agents_sqlite.sql import SCHEMA

__all__ = ("DRIVER_ERRORS", "SCHEMA_VERSION", "connect", "connect_twice", "prepare", "translated")

APPLICATION_ID = 0x44455841  # "DEXA"
SCHEMA_VERSION = 1

DRIVER_ERRORS = (apsw.Error, UnicodeDecodeError)
"""What the driver raises; the latter when a damaged file has noise where text was."""

_CREATION_LOOKS = 5
_CREATION_SECONDS = 0.02
_SMALLEST_DATABASE = 512
"""SQLite takes a smaller file for an empty one, and would overwrite it."""
_OPEN_PATIENCE_MS = 5000


def prepare(path: Path) -> None:
    """Make sure that the file is a store that this version can use, creating it if need be.

    A file that is something else is left untouched.

    Raises:
        StoreForeignError: It is a folder, or another program's file.
        StoreNewerError: A newer version wrote it.
        StoreCorruptError: It is damaged.
        StoreUnavailableError: It cannot be created or opened.
    """
    try:
        if path.is_dir():
            raise StoreForeignError(str(path), "it is a folder")
        # SQLite gives the files beside it the same mode. An existing file is never opened
        # by hand: closing it would drop the locks that this process holds on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
    if path.stat().st_size == 0:
        _create(path)
    else:
        _check(path)


def _check(path: Path) -> None:
    """Judge an existing file by its header, and wait for a process that is just creating it."""
    for _ in range(_CREATION_LOOKS):
        application, version = _marks(path)
        if (application, version) != (0, 0):
            break
        time.sleep(_CREATION_SECONDS)
    if application != APPLICATION_ID:
        raise StoreForeignError(str(path), "it is another program's database")
    if version > SCHEMA_VERSION:
        raise StoreNewerError(str(path), version, SCHEMA_VERSION)


def _marks(path: Path) -> tuple[int, int]:
    """Return a database's application ID and version, without a lock or a file beside it."""
    if path.stat().st_size < _SMALLEST_DATABASE:
        raise StoreForeignError(str(path), "it is no SQLite database")
    uri = f"{path.resolve().as_uri()}?immutable=1"
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(uri, flags=flags)
        try:
            return connection.pragma("application_id"), connection.pragma("user_version")
        finally:
            connection.close()
    except apsw.NotADBError as error:
        raise StoreForeignError(str(path), "it is no SQLite database") from error
    except apsw.Error as error:
        raise translated(path, error) from error


def _create(path: Path) -> None:
    with ExitStack() as undo, _translating(path):
        connection = apsw.Connection(str(path))
        undo.callback(connection.close)
        connection.set_busy_timeout(_OPEN_PATIENCE_MS)
        connection.execute("BEGIN EXCLUSIVE")
        if connection.pragma("user_version") == 0:
            connection.execute(SCHEMA)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
        connection.execute("COMMIT")
        connection.pragma("journal_mode", "wal")


def connect(path: Path) -> apsw.Connection:
    """Return a connection to a prepared store; waiting for locks is the caller's.

    Raises:
        StoreError: The file cannot be used.
    """
    with ExitStack() as undo, _translating(path):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        undo.callback(connection.close)
        connection.set_busy_timeout(_OPEN_PATIENCE_MS)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.pragma("cache_size", -32 * 1024)  # KiB: the pages of many sessions stay at hand
        connection.pragma("wal_autocheckpoint", 4000)  # 16 MiB: a page written often is copied once
        connection.execute("SELECT count(*) FROM flow WHERE flow_id = ''").fetchall()
        connection.set_busy_timeout(0)
        undo.pop_all()
    return connection


def connect_twice(path: Path) -> tuple[apsw.Connection, apsw.Connection, OpenFiles]:
    """Return two connections to one prepared store, and the watch over its files.

    Raises:
        StoreError: The file cannot be used, or was replaced meanwhile.
    """
    before = identity(str(path))
    with ExitStack() as undo:
        first = connect(path)
        undo.callback(first.close)
        second = connect(path)
        undo.callback(second.close)
        files = OpenFiles(path, first.filename)
        # The same before and after: then both connections opened this very file.
        if before is None or files.main != before:
            raise StoreUnavailableError(str(path), "it was replaced while it was being opened")
        undo.pop_all()
    return first, second, files


@contextmanager
def _translating(path: Path) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translated(path, error) from error


def translated(path: Path | str, error: BaseException) -> StoreError:
    """Return a driver's error as one of ours."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.SQLError | UnicodeDecodeError):
        return StoreCorruptError(str(path), str(error))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailableError(str(path), "another program keeps it locked")
    if isinstance(error, apsw.CantOpenError):
        reason = "it cannot be opened; see to its permissions and the limit of open files"
        return StoreUnavailableError(str(path), reason)
    if isinstance(error, apsw.IOError):
        code = apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0))
        return StoreUnavailableError(str(path), f"disk I/O error ({code or type(error).__name__})")
    return StoreUnavailableError(str(path), str(error) or type(error).__name__)
