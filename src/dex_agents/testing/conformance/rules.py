"""The rules by number, as ``docs/semantics.md`` tells them, and how a test names its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from dex_agents.backend import Capability

__all__ = ("RULES", "needs", "rule")

Test = TypeVar("Test", bound=Callable[..., Any])

RULES = {
    "1": "Execution IDs",
    "2": "Wait, then execute",
    "3": "Choosing",
    "4": "Attempts",
    "5": "One commit",
    "6": "Fencing",
    "7": "Giving up",
    "8": "Fan-out",
    "9": "Loading",
    "10": "RPCs",
    "11": "Timers",
    "12": "Stopping",
    "13": "Declared targets",
    "session": "The agent session",
    "content": "Content",
}


def rule(number: str) -> Callable[[Test], Test]:
    """Say which rule a test is about."""
    if number not in RULES:
        raise KeyError(number)

    def name(test: Test) -> Test:
        test.__dict__["dex_agents_rule"] = number
        return test

    return name


def needs(capability: Capability) -> Callable[[Test], Test]:
    """Say that a test makes sense only on a backend with a capability."""

    def name(test: Test) -> Test:
        test.__dict__["dex_agents_needs"] = capability
        marked: Test = pytest.mark.usefixtures("capable")(test)
        return marked

    return name
