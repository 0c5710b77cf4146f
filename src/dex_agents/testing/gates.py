"""A gate between a worker process and a test, so that a test can act at an exact moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dex_agents.testing.waiting import wait_until

__all__ = ("FileGate",)

_POLL_SECONDS = 0.005


class FileGate:
    """Holds a worker at one place until the test lets it go on.

    The gate is two empty files, so it works across processes and outlives a
    worker that is killed. Once released it stays open: a replacement worker
    walks through.

    Args:
        state_dir: A directory that worker and test share; made when missing.
        name: Names the gate within the directory.

    Raises:
        ValueError: The name is no plain file name.
    """

    def __init__(self, state_dir: str | Path, name: str) -> None:
        if not name or Path(name).name != name:
            raise ValueError(f"A gate needs a plain file name, not {name!r}.")
        self.name = name
        self._reached = Path(state_dir) / f"{name}.reached"
        self._released = Path(state_dir) / f"{name}.released"

    @property
    def is_reached(self) -> bool:
        """Whether a worker has come to the gate."""
        return self._reached.exists()

    @property
    def is_released(self) -> bool:
        """Whether whoever comes to the gate may go on."""
        return self._released.exists()

    def mark_reached(self) -> None:
        """Say that the worker has come here. In the worker."""
        _create(self._reached)

    async def wait_for_release(self) -> None:
        """Say that the worker has come here, and wait until the test lets it go on."""
        self.mark_reached()
        while not self.is_released:  # noqa: ASYNC110 - another process opens the gate
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_until_reached(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - as in wait_until
        """Wait until a worker has come to the gate. In the test.

        Raises:
            TimeoutError: None came in time.
        """
        description = f"the gate {self.name!r} to be reached"
        await wait_until(
            description, lambda: self.is_reached, timeout=timeout, interval=_POLL_SECONDS
        )

    def release(self) -> None:
        """Let everyone who is or comes here go on. In the test."""
        _create(self._released)


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
