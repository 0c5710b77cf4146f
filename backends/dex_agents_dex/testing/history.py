"""The Steps of a flow, as the engine's history lists them."""

from __future__ import annotations

import os

from dex_agents.backend import StepHistoryEntry
from dex_agents_dex.backend import DexBackend
from dex_agents_dex.testing.dexcli import DEXCLI_VARIABLE, read_dexcli_history

__all__ = ("EXECUTE_COMPLETED_EVENT", "read_step_history")

EXECUTE_COMPLETED_EVENT = "step_execute_completed"
"""The event type of a Step whose ``execute`` returned."""


async def read_step_history(server_address: str, flow_id: str) -> list[StepHistoryEntry]:
    """Return the Step methods of a flow that have ended, oldest first.

    With ``DEXCLI`` set, ``dexcli flow history`` is asked; otherwise the server.

    Args:
        server_address: ``host:port`` of the server.
        flow_id: The flow, which is the session.

    Raises:
        FlowNotFoundError: There is no such flow.
    """
    dexcli = os.environ.get(DEXCLI_VARIABLE)
    if dexcli:
        entries = await read_dexcli_history(dexcli, server_address, flow_id)
    else:
        async with DexBackend(server_address) as backend:
            entries = list(await backend.read_history(flow_id))
    return [entry for entry in entries if entry.event_type.startswith("step_")]
