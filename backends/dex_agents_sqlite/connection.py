"""Opens the store's file, or says why it cannot be; translates the driver's errors."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import apsw

from dex_agents.errors import (
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreNewerError,
    StoreUnavailableError,
)
from dex_agents_sqlite.sql import SCHEMA

__all__ = ("SCHEMA_VERSION", "connect", "prepare", "translated")

APPLICATION_ID = 0x44455841  # "DEXA"
SCHEMA_VERSION = 1

_MAGIC = b"SQLite format 3\0"
_OPEN_PATIENCE_MS = 5000


def prepare(path: Path) -> None:
    """Make sure that the file is a store that this version can use, creating it if need be.

    A file that is something else is judged by its first bytes, and left untouched.

    Raises:
        StoreForeignError: It is a folder, or another program's file.
        StoreNewerError: A newer version wrote it.
        StoreCorruptError: It is damaged.
        StoreUnavailableError: It cannot be created or opened.
    """
    if path.is_dir():
        raise StoreForeignError(str(path), "it is a folder")
    try:
        # SQLite gives the files beside it the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
    if head:
        _check_head(path, head)
    else:
        _create(path)


def _check_head(path: Path, head: bytes) -> None:
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise StoreForeignError(str(path), "it is no SQLite database")
    (version,) = struct.unpack(">I", head[60:64])
    (application,) = struct.unpack(">I", head[68:72])
    if (application, version) == (0, 0) and _is_empty(path):
        _create(path)  # another process has opened it and not yet written the schema
    elif application != APPLICATION_ID:
        raise StoreForeignError(str(path), "it is another program's database")
    elif version > SCHEMA_VERSION:
        raise StoreNewerError(str(path), version, SCHEMA_VERSION)


def _is_empty(path: Path) -> bool:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return not connection.execute("SELECT count(*) FROM sqlite_schema").get
    finally:
        connection.close()


def _create(path: Path) -> None:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(_OPEN_PATIENCE_MS)
        connection.execute("BEGIN EXCLUSIVE")
        if connection.pragma("user_version") == 0:
            connection.execute(SCHEMA)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
        connection.execute("COMMIT")
        connection.pragma("journal_mode", "wal")
    except apsw.Error as error:
        raise translated(path, error) from error
    finally:
        connection.close()


def connect(path: Path) -> apsw.Connection:
    """Return a connection to a prepared store; waiting for locks is the caller's.

    Raises:
        StoreError: The file cannot be used.
    """
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(_OPEN_PATIENCE_MS)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.execute("SELECT count(*) FROM flow WHERE flow_id = ''").fetchall()
        connection.set_busy_timeout(0)
    except apsw.Error as error:
        raise translated(path, error) from error
    return connection


def translated(path: Path, error: BaseException) -> StoreError:
    """Return a driver's error as one of ours."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.SQLError):
        return StoreCorruptError(str(path), str(error))
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailableError(str(path), "another program keeps it locked")
    return StoreUnavailableError(str(path), str(error) or type(error).__name__)
