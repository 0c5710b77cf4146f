"""Stream messages on their way to the file: they wait for a commit to ride along with."""

from __future__ import annotations

import asyncio

import apsw

from dex_agents.executor import StreamAppend
from dex_agents_sqlite.sql import QUERIES
from dex_agents_sqlite.writer import Operation, Writer

__all__ = ("StreamBuffer",)

_FOLLOW_SECONDS = 0.02
"""How long a message waits at most when no commit comes."""
_SLACK = 0.9
"""A full Stream is trimmed to this part of its capacity, so that it is not trimmed each time."""


class StreamBuffer:
    """Collects Stream messages and writes them in order.

    Args:
        writer: The process's writer.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._messages: list[tuple[str, StreamAppend]] = []
        self._sizes: dict[tuple[str, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def append(self, flow_id: str, message: StreamAppend) -> None:
        """Take a message of a flow."""
        self._messages.append((flow_id, message))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FOLLOW_SECONDS, self.flush)

    def flush(self) -> None:
        """Hand over what was taken; called before each commit, so that they go together."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._messages:
            messages, self._messages = self._messages, []
            self._writer.add(Operation(lambda c: self.write(c, messages), _lose))

    def write(self, connection: apsw.Connection, messages: list[tuple[str, StreamAppend]]) -> None:
        """Write messages of flows at once, inside a transaction."""
        rows = [(flow_id, message.stream, message.payload) for flow_id, message in messages]
        connection.executemany(QUERIES["append_stream"], rows)
        grown: dict[tuple[str, str], int] = {}
        for flow_id, stream, payload in rows:
            grown[flow_id, stream] = grown.get((flow_id, stream), 0) + len(payload)
        capacities = {(flow_id, each.stream): each.capacity_bytes for flow_id, each in messages}
        for key, capacity in capacities.items():
            known = self._sizes.get(key)
            total = self._measure(connection, key) if known is None else known + grown[key]
            self._sizes[key] = total
            if total > capacity:
                self._trim(connection, key, total, capacity * _SLACK)

    def _measure(self, connection: apsw.Connection, key: tuple[str, str]) -> int:
        return int(connection.execute(QUERIES["stream_size"], key).get)

    def _trim(
        self, connection: apsw.Connection, key: tuple[str, str], total: int, wanted: float
    ) -> None:
        newest = last = 0
        rows = list(connection.execute(QUERIES["oldest_stream_messages"], key))
        newest = rows[-1][0]
        for position, size in rows:
            # The newest message stays, so that positions never start anew.
            if total <= wanted or position == newest:
                break
            last, total = position, total - size
        connection.execute(QUERIES["trim_stream"], (*key, last))
        self._sizes[key] = total


def _lose(error: BaseException | None) -> None:
    """Streams are best effort: what the disk refuses is not written again."""
