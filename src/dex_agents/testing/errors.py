"""What the testing kit raises when a test, a script or a recording is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from dex_agents.errors import DexAgentsError

__all__ = (
    "BrokenLineError",
    "ProbeTimeoutError",
    "RecordingError",
    "ScriptError",
    "StillRunningError",
)


class ProbeTimeoutError(DexAgentsError, TimeoutError):
    """What a test waited for did not come in time."""

    def __init__(self, description: str, timeout: float, last: object) -> None:
        super().__init__(f"Waited {timeout:g} s for {description}. Last seen: {last!r}.")
        self.description = description
        self.last = last


class StillRunningError(DexAgentsError, TimeoutError):
    """A handler waits for something that does not come, so a stack cannot settle."""

    def __init__(self, running: Mapping[str, float], patience: float) -> None:
        listed = "; ".join(f"{each} (for {seconds:.1f} s)" for each, seconds in running.items())
        super().__init__(
            f"Still running in real time: {listed}. Let it end, use wait_until for what the test "
            f"itself holds up, or give the stack more than {patience:g} s of patience."
        )
        self.running = dict(running)


class ScriptError(DexAgentsError, ValueError):
    """A script says nothing, or nothing usable, for a model call."""


class RecordingError(DexAgentsError, ValueError):
    """A recording is no conversation, or a session does not follow it."""

    def __init__(self, recording_id: str, problem: str) -> None:
        super().__init__(f"Recording {recording_id!r}: {problem}")
        self.recording_id = recording_id


class BrokenLineError(DexAgentsError, ValueError):
    """A line of a JSON lines file cannot be read."""

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.line = line
