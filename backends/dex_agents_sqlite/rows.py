"""Rows to records and back: what a commit writes, and how a flow is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
from msgspec import Raw
from msgspec.structs import replace

from dex_agents.encoding import decode, encode
from dex_agents.machine import Changes, Execution, FlowHeader, FlowState, HistoryEntry
from dex_agents_sqlite.connection import DRIVER_ERRORS, translated
from dex_agents_sqlite.sql import QUERIES

__all__ = ("SqliteAttributes", "load_state", "read_header", "read_history", "write_changes")


class SqliteAttributes:
    """Reads the committed Attributes of one flow through a connection."""

    def __init__(self, connection: apsw.Connection, flow_id: str) -> None:
        self._connection = connection
        self._flow_id = flow_id

    def get(self, name: str) -> Raw | None:
        """Return the value of a physical name."""
        try:
            rows = self._connection.execute(QUERIES["get_attribute"], (self._flow_id, name))
            value = rows.get
        except DRIVER_ERRORS as error:
            raise translated(self._connection.filename, error) from error
        return None if value is None else Raw(value)

    def scan(self, prefix: str) -> Mapping[str, Raw]:
        """Return every value whose physical name begins so, in the order of names."""
        bounds = (self._flow_id, prefix, prefix[:-1] + "0")
        try:
            rows = self._connection.execute(QUERIES["scan_attributes"], bounds)
            return {name: Raw(value) for name, value in rows}
        except DRIVER_ERRORS as error:
            raise translated(self._connection.filename, error) from error


def read_header(header: bytes, version: int) -> FlowHeader:
    """Return a stored header with its row's version."""
    return replace(decode(header, FlowHeader, "flow header"), version=version)


def load_state(connection: apsw.Connection, flow_id: str) -> FlowState | None:
    """Return a flow's state; call it inside a transaction."""
    for header, version in connection.execute(QUERIES["load_flow"], (flow_id,)):
        executions = [
            decode(row[0], Execution, "execution")
            for row in connection.execute(QUERIES["load_executions"], (flow_id,))
        ]
        messages = [
            (channel, number, Raw(payload))
            for channel, number, payload in connection.execute(QUERIES["load_messages"], (flow_id,))
        ]
        return FlowState(read_header(header, version), executions, messages)
    return None


def read_history(connection: apsw.Connection, flow_id: str) -> list[HistoryEntry]:
    """Return a flow's history."""
    rows = connection.execute(QUERIES["load_history"], (flow_id,))
    return [decode(row[0], HistoryEntry, "history entry") for row in rows]


def write_changes(
    connection: apsw.Connection, transitions: Sequence[Changes], owner: str | None
) -> bool:
    """Write what transitions changed; return False, and nothing is written, when it is too late.

    Args:
        connection: Inside a write transaction.
        transitions: What each of them changed; a row is written once, as the last one left it.
        owner: The worker that must own the flow, or None for a change by a client.
    """
    stored_version = transitions[0].header.version - 1
    if not _write_header(connection, transitions[-1].header, stored_version, owner):
        return False
    changes = transitions[0] if len(transitions) == 1 else _together(transitions)
    flow_id = changes.header.flow_id
    execute = connection.execute
    for execution_id, execution in changes.executions.items():
        if execution is None:
            execute(QUERIES["delete_execution"], (flow_id, execution_id))
        else:
            execute(QUERIES["put_execution"], (flow_id, execution_id, encode(execution)))
    for name, value in changes.attributes.items():
        if value is None:
            execute(QUERIES["delete_attribute"], (flow_id, name))
        else:
            execute(QUERIES["put_attribute"], (flow_id, name, bytes(value)))
    for (channel, number), payload in changes.messages.items():
        if payload is None:
            execute(QUERIES["delete_message"], (flow_id, number))
        else:
            execute(QUERIES["put_message"], (flow_id, channel, number, bytes(payload)))
    for entry in changes.history:
        execute(QUERIES["append_history"], (flow_id, entry.seq, encode(entry)))
    return True


def _together(transitions: Sequence[Changes]) -> Changes:
    """Return what transitions changed in all."""
    all_ = Changes(transitions[-1].header)
    for changes in transitions:
        all_.executions.update(changes.executions)
        all_.attributes.update(changes.attributes)
        for key, payload in changes.messages.items():
            if payload is None and key in all_.messages:
                del all_.messages[key]  # it came and went
            else:
                all_.messages[key] = payload
        all_.history += changes.history
    return all_


def _write_header(
    connection: apsw.Connection, header: FlowHeader, stored_version: int, owner: str | None
) -> bool:
    values: tuple[Any, ...]
    if not stored_version:
        query = "insert_flow"
        values = (
            header.flow_id,
            header.flow_type,
            str(header.status),
            header.version,
            header.wake_at,
            owner,
            header.started_at,
            encode(header),
        )
    else:
        query = "update_flow" if owner is None else "update_owned_flow"
        values = (
            str(header.status),
            header.version,
            header.wake_at,
            encode(header),
            header.flow_id,
            stored_version,
        )
        values = values if owner is None else (*values, owner)
    connection.execute(QUERIES[query], values)
    return connection.changes() == 1
