"""An emulator of the Dex wire protocol, for tests and development. It is not the Dex server.

The SDK's unmodified ``AsyncWorker`` (listening and pull mode) and
``AsyncClient`` run on it. It listens on loopback only and asks nobody who they are.

These calls of FlowService answer UNIMPLEMENTED: DeleteChannelMessage, LoadBlobs,
WaitForHistoryEvent, GetFlowState, ResetFlow, TriggerContinueAsNew.
So do queries of SearchFlows (an empty one lists every flow), start delays and retries of
whole flows; SubFlow conditions fail their attempt.
"""

from __future__ import annotations

from dex_agents_dex.emulator.server import DexEmulator

__all__ = ("DexEmulator",)
