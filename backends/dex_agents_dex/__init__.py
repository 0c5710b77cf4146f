"""What dex-agents has for Dex so far: a loopback emulator of its wire protocol.

The compiler of flow tables to Dex Flows is not written yet.
"""

from __future__ import annotations
