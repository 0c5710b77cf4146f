"""Runs flow tables on Dex: a compiler to Flows of the SDK, and an emulator of the server."""

from __future__ import annotations

from dex_agents_dex.sdk import IncompatibleDexError, require_sdk

require_sdk()

from dex_agents_dex.backend import DexBackend  # noqa: E402 - only an SDK that fits is imported
from dex_agents_dex.compiler import CompiledFlow, compile_flow  # noqa: E402
from dex_agents_dex.errors import WorkerCallError  # noqa: E402
from dex_agents_dex.session import AgentSessionFlow  # noqa: E402

__all__ = (
    "AgentSessionFlow",
    "CompiledFlow",
    "DexBackend",
    "IncompatibleDexError",
    "WorkerCallError",
    "compile_flow",
)
