"""The worker child of the gated flow."""

from __future__ import annotations

from dex_agents.testing import run_agent_worker
from tests.dex.gated_agent import build_flow

if __name__ == "__main__":
    run_agent_worker([build_flow()])
