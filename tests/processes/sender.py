"""A client in a process of its own: sends so many messages to ``chat-1``, one after the other.

``python -m tests.processes.sender URL NAME COUNT``
"""

from __future__ import annotations

import asyncio
import sys

from dex_agents import AgentSessionClient
from dex_agents.backend import open_backend


async def send(url: str, name: str, count: str) -> None:
    async with open_backend(url) as backend:
        sessions = AgentSessionClient(backend, "Gated")
        for n in range(int(count)):
            assert await sessions.send_user_message("chat-1", f"{name}-{n}")


if __name__ == "__main__":
    asyncio.run(send(*sys.argv[1:]))
