"""Follows a session's events, and lets go of them in time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import cast

from dex_agents.client import AgentSessionClient, FollowedEvent

__all__ = ("followed_events",)


@asynccontextmanager
async def followed_events(
    client: AgentSessionClient, session: str, position: str | None = None, *, follow: bool = True
) -> AsyncIterator[AsyncIterator[FollowedEvent]]:
    """Yield a session's events as an iterator that is closed when the block ends."""
    source = client.follow_events(session, position=position, follow=follow)
    async with aclosing(cast("AsyncGenerator[FollowedEvent, None]", source)) as events:
        yield events
