"""Streams: best-effort logs beside the flows, the oldest messages trimmed first."""

from __future__ import annotations

import time
from collections import deque
from typing import TypeAlias

from dex.dexpb import dex_pb2 as pb
from msgspec import Struct

from dex_agents.executor import ChangeSignal
from dex_agents_dex.emulator.errors import invalid, long_poll_timeout
from dex_agents_dex.emulator.history import timestamp

__all__ = ("Key", "Streams")

Key: TypeAlias = tuple[str, str, str]
"""Flow type, Stream and flow ID."""

_MESSAGE_BYTES = 100 * 1024
_PAGE_MESSAGES = 1000


class _Entry(Struct, frozen=True):
    number: int
    message: pb.StreamMessage
    size: int


class _Part:
    """One flow's messages, and who waits for more."""

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        self.changed = ChangeSignal()

    def after(self, number: int) -> _Entry | None:
        """Return the next entry; readers are mostly near the end, so it is looked for there."""
        found = None
        for each in reversed(self.entries):
            if each.number <= number:
                break
            found = each
        return found


class _Log:
    """The messages of one Stream of one flow type; its flows share the capacity."""

    def __init__(self) -> None:
        self.next_number = 1
        self._oldest: deque[_Part] = deque()  # whose message is the next to be trimmed
        self._parts: dict[str, _Part] = {}
        self._size = 0

    def of(self, flow_id: str) -> _Part:
        return self._parts.setdefault(flow_id, _Part())

    def append(self, flow_id: str, value: pb.Value, source: str, capacity: int) -> None:
        message = pb.StreamMessage(
            value=value,
            resume_token=str(self.next_number),
            created_time=timestamp(time.time()),
            source=source,
        )
        part = self.of(flow_id)
        part.entries.append(_Entry(self.next_number, message, value.ByteSize()))
        self.next_number += 1
        self._oldest.append(part)
        self._size += part.entries[-1].size
        while self._size > capacity and len(self._oldest) > 1:
            self._size -= self._oldest.popleft().entries.popleft().size
        part.changed.notify()


class Streams:
    """Every Stream, in memory for the life of the emulator."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], _Log] = {}

    def append(self, key: Key, value: pb.Value, source: str, capacity: int) -> bool:
        """Append a message; return False, and drop it, when it is too large."""
        if value.ByteSize() > _MESSAGE_BYTES:
            return False
        self._log(key).append(key[2], value, source, capacity)
        return True

    def write(self, request: pb.WriteStreamRequest) -> None:
        """Append a client's message.

        Raises:
            ServiceError: It is too large, or has no source.
        """
        if not request.source:
            raise invalid("WriteStream needs a source.")
        key = (request.flow_type, request.stream_name, request.flow_id)
        if not self.append(key, request.value, request.source, request.stream_capacity_bytes):
            raise invalid(f"A Stream message may have {_MESSAGE_BYTES} bytes.")

    async def read(self, request: pb.ReadStreamRequest, longest: float) -> pb.ReadStreamResponse:
        """Return the next message behind a token, as soon as there is one."""
        log = self._log((request.flow_type, request.stream_name, request.flow_id))
        part = log.of(request.flow_id)
        after = _number(request.resume_token)
        end = time.monotonic() + (request.wait_time_seconds or longest)
        while True:
            found = part.after(after)
            if found is not None:
                return pb.ReadStreamResponse(message=found.message)
            if not await part.changed.wait(end - time.monotonic()):
                raise long_poll_timeout(f"Stream {request.stream_name!r}")

    def page(self, request: pb.ListStreamMessagesRequest) -> pb.ListStreamMessagesResponse:
        """Return messages before a token, newest first."""
        if request.page_size < 1:
            raise invalid("page_size must be positive.")
        log = self._log((request.flow_type, request.stream_name, request.flow_id))
        before = _number(request.before_page_token) or log.next_number
        entries = log.of(request.flow_id).entries
        older = [each for each in reversed(entries) if each.number < before]
        page = older[: min(request.page_size, _PAGE_MESSAGES)]
        return pb.ListStreamMessagesResponse(
            messages=[each.message for each in page],
            next_page_token=str(page[-1].number) if len(page) < len(older) else "",
        )

    def _log(self, key: Key) -> _Log:
        return self._logs.setdefault(key[:2], _Log())


def _number(token: str) -> int:
    if not token:
        return 0
    if not token.isdecimal():
        raise invalid(f"{token!r} is no token of a Stream.")
    return int(token)
