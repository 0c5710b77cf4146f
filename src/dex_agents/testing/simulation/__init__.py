"""Runs real sessions in a simulated world where everything goes wrong, and checks what must hold.

Real are the session's table, the machine, the executor and the client. Simulated
are the event loops of some processes, the disk that they share, the time, the
model and its tools, and the users. All of it happens in one thread, in an order
that a seed decides, so that whatever goes wrong once goes wrong again.

``python -m dex_agents.testing.simulate`` runs it; ``docs/simulation.md`` explains it.
"""

from __future__ import annotations

from dex_agents.testing.simulation.invariants import INVARIANTS, Invariant
from dex_agents.testing.simulation.plan import FAULTS, Plan
from dex_agents.testing.simulation.run import Outcome, shrink, simulate
from dex_agents.testing.simulation.world import Violation

__all__ = (
    "FAULTS",
    "INVARIANTS",
    "Invariant",
    "Outcome",
    "Plan",
    "Violation",
    "shrink",
    "simulate",
)
