"""What one run of the simulation does."""

from __future__ import annotations

from random import Random

from msgspec import Struct

__all__ = ("FAULTS", "Plan")

FAULTS = {
    "crash": "a process is killed between any two callbacks",
    "crash_in_tool": "a worker is killed just before or just after a tool's effect",
    "restart": "a worker is told to stop, and another comes",
    "freeze": "a process stands still, perhaps longer than its lease, and goes on",
    "clock": "the machine's clock is set back or forward, by up to an hour",
    "refused": "the disk takes no writes of a process for a while",
    "untold": "a process is told that its write failed, and it did not",
    "slow": "commits take seconds for a while, and so come late",
    "wakes": "wake-ups come twice, late, in another order, or not at all",
}
"""What can go wrong, in words."""


class Plan(Struct, frozen=True):
    """What one run does.

    Attributes:
        seed: Everything is drawn from it.
        sessions: How many sessions there are.
        messages: How many messages a user sends to each, beside the first.
        faults: The kinds of fault that may happen.
        most_faults: After so many, nothing goes wrong any more.
    """

    seed: int
    sessions: int = 2
    messages: int = 3
    faults: tuple[str, ...] = tuple(FAULTS)
    most_faults: int = 12

    def chance(self, purpose: str) -> Random:
        """Return a row of random numbers for one purpose, which no other purpose disturbs."""
        return Random(f"{self.seed} {purpose}")  # noqa: S311 - it must be repeatable, not secret
