"""Decides when something goes wrong, and what."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from dex_agents.testing.simulation.plan import Plan
from dex_agents.testing.simulation.store import Fate

if TYPE_CHECKING:
    from dex_agents.testing.simulation.process import Process
    from dex_agents.testing.simulation.world import World

__all__ = ("Faults",)

_CALLBACKS_BETWEEN = 120
_IN_TOOL = 0.15
_LONG = 3600.0


class Faults:
    """Strikes now and then, until the plan's number of faults is used up.

    Args:
        plan: Says which kinds may happen, and how many.
        world: Struck.

    Attributes:
        counts: How often each kind has struck.
    """

    def __init__(self, plan: Plan, world: World) -> None:
        self._world = world
        self._chance = plan.chance("faults")
        self._kinds = [kind for kind in plan.faults if kind != "crash_in_tool"]
        self._in_tools = "crash_in_tool" in plan.faults
        self._left = plan.most_faults if plan.faults else 0
        self._countdown = self._draw()
        self._slow_writes = 0
        self._odd_notices = 0
        self.counts: Counter[str] = Counter()

    def strike(self, callbacks: int) -> None:
        """Let something go wrong, if so many callbacks bring it about."""
        world = self._world
        if world.is_calm:
            return
        self._countdown -= callbacks
        if self._countdown > 0:
            return
        self._countdown = self._draw()
        if self._left <= 0:
            self._end()
            return
        if self._kinds and world.processes:
            kind = self._chance.choice(self._kinds)
            self._count(kind)
            getattr(self, f"_{kind}")(self._chance.choice(world.processes))
        else:
            self._left -= 1

    def strikes_in_tool(self) -> bool:
        """Return whether the process is to be killed where a tool runs now."""
        if self._world.is_calm or not self._in_tools or self._left <= 0:
            return False
        if self._chance.random() >= _IN_TOOL:
            return False
        self._count("crash_in_tool")
        return True

    def write_delay(self) -> float:
        """Return how long a group of writes takes, in seconds."""
        if self._slow_writes > 0:
            self._slow_writes -= 1
            return self._chance.choice((0.1, 2.0, 30.0))
        return 0.0001

    def notices(self) -> tuple[float, ...]:
        """Return after what delays a process notices a change: usually one, and a short one."""
        if self._odd_notices <= 0:
            return (0.003,)
        self._odd_notices -= 1
        return self._chance.choice(((), (0.0, 0.0), (1.0,), (5.0, 0.001), (0.02,)))

    def _draw(self) -> int:
        return int(self._chance.expovariate(1 / _CALLBACKS_BETWEEN)) + 1

    def _count(self, kind: str) -> None:
        self._left -= 1
        self.counts[kind] += 1
        self._world.note(f"fault: {kind}")

    def _end(self) -> None:
        self._slow_writes = self._odd_notices = 0
        self._world.skew = 0.0
        for process in self._world.processes:
            process.fates.clear()
            if process.frozen_until != math.inf:
                process.frozen_until = 0.0
        self._world.note("no more faults")
        self._world.calm()

    def _crash(self, process: Process) -> None:
        self._world.kill(process)

    def _restart(self, process: Process) -> None:
        process.stop()

    def _freeze(self, process: Process) -> None:
        lease = self._world.lease_seconds
        seconds = self._chance.choice((0.01, 1.0, lease * 0.5, lease * 1.1, lease * 3))
        process.frozen_until = max(process.frozen_until, self._world.now + seconds)

    def _clock(self, process: Process) -> None:  # noqa: ARG002 - the machine has one clock
        lease = self._world.lease_seconds
        self._world.skew = self._chance.choice(
            (0.0, 1.0, -1.0, lease, -lease, 2 * lease, _LONG, -_LONG)
        )

    def _refused(self, process: Process) -> None:
        process.fates += [Fate.REFUSED] * self._chance.choice((1, 1, 2, 5))

    def _untold(self, process: Process) -> None:
        process.fates += [Fate.UNTOLD] * self._chance.choice((1, 1, 2))

    def _slow(self, process: Process) -> None:  # noqa: ARG002 - the disk is everybody's
        self._slow_writes = self._chance.choice((1, 3, 10))

    def _wakes(self, process: Process) -> None:
        self._odd_notices = self._chance.choice((1, 5, 20))
        process.notice(0.0)
