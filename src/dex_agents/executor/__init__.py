"""The async shell that drives the flow machine over a store: handlers, timers, leases."""

from __future__ import annotations

from dex_agents.executor.clock import Alarm, Clock, StepWatch, SystemClock, VirtualClock
from dex_agents.executor.executor import Executor
from dex_agents.executor.local import LocalBackend
from dex_agents.executor.store import (
    LONGEST_LEASE_SECONDS,
    AttributeReader,
    ChangeSignal,
    Commit,
    CommitConflict,
    Done,
    Lineage,
    Store,
    StoredEvent,
    StreamAppend,
    Transact,
)

__all__ = (
    "LONGEST_LEASE_SECONDS",
    "Alarm",
    "AttributeReader",
    "ChangeSignal",
    "Clock",
    "Commit",
    "CommitConflict",
    "Done",
    "Executor",
    "Lineage",
    "LocalBackend",
    "StepWatch",
    "Store",
    "StoredEvent",
    "StreamAppend",
    "SystemClock",
    "Transact",
    "VirtualClock",
)
