"""The command line ``dex-agents``. It needs the extra ``cli``."""

from __future__ import annotations
