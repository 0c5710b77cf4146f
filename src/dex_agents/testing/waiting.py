"""Waits for what a test expects by asking again, with a deadline; a test never just sleeps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from dex_agents.records import AgentSnapshot
from dex_agents.testing.errors import ProbeTimeoutError

__all__ = ("wait_for_agent_snapshot", "wait_until")

T = TypeVar("T")

_POLL_SECONDS = 0.005


class SnapshotReader(Protocol):
    """Whatever can read a session's snapshot: the session client of any engine."""

    async def get_agent_snapshot(self, session_id: str, /) -> AgentSnapshot:
        """Return the snapshot of a session."""
        ...


async def wait_until(
    description: str,
    probe: Callable[[], T | Awaitable[T | None] | None],
    *,
    timeout: float = 10.0,  # noqa: ASYNC109 - the error must name what was last seen
    interval: float = _POLL_SECONDS,
) -> T:
    """Return the first truthy value that the probe gives.

    Args:
        description: What is waited for, for the error message.
        probe: Asked again and again; may be async. An exception of its own ends the wait.
        timeout: How many real seconds to wait.
        interval: How many seconds lie between two questions.

    Raises:
        TimeoutError: Nothing truthy came in time; it names the description and the last value.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    last: T | None = None
    while True:
        patience = asyncio.timeout_at(deadline)
        try:
            async with patience:
                value = probe()
                last = await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not patience.expired():
                raise
        if last:
            return last
        if asyncio.get_running_loop().time() >= deadline:
            raise ProbeTimeoutError(description, timeout, last)
        await asyncio.sleep(interval)


async def wait_for_agent_snapshot(
    sessions: SnapshotReader,
    session_id: str,
    predicate: Callable[[AgentSnapshot], T | None],
    *,
    description: str,
    timeout: float = 10.0,  # noqa: ASYNC109 - as in wait_until
) -> T:
    """Return the first truthy value that the predicate gives for a session's snapshot.

    Args:
        sessions: A session client.
        session_id: The session.
        predicate: Looks at one snapshot.
        description: What is waited for, for the error message.
        timeout: How many real seconds to wait.

    Raises:
        TimeoutError: It names the description and the last snapshot, of whose
            messages it shows only the last.
    """
    seen: AgentSnapshot | None = None

    async def probe() -> T | None:
        nonlocal seen
        seen = await sessions.get_agent_snapshot(session_id)
        return predicate(seen)

    try:
        return await wait_until(description, probe, timeout=timeout)
    except ProbeTimeoutError:
        shown = None if seen is None else replace(seen, messages=seen.messages[-1:])
        raise ProbeTimeoutError(description, timeout, shown) from None
