"""The worker child of the kit's example."""

from __future__ import annotations

from dex_agents.testing import run_agent_worker
from tests.dex.my_agent import build_flow

if __name__ == "__main__":
    run_agent_worker([build_flow()])
