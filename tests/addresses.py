"""Where workers listen that come and go, but are always looked for in one place."""

from __future__ import annotations

import socket

__all__ = ("free_address",)


def free_address() -> str:
    """Return an address of this machine that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
