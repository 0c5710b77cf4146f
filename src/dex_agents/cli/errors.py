"""What the command line itself has to refuse."""

from __future__ import annotations

from dex_agents.errors import DexAgentsError, StoreError

__all__ = ("CommandError", "StoreMissingError")


class CommandError(DexAgentsError):
    """A command cannot do what it was asked to; the message says why and what helps."""


class StoreMissingError(StoreError):
    """There is no store where a command was told to look."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"There is no store at {path}; "
            "start one with 'dex-agents start' or 'dex-agents demo', or name another with --store."
        )
