"""What goes wrong with the processes that a test starts."""

from __future__ import annotations

from pathlib import Path

from dex_agents.errors import DexAgentsError

__all__ = ("BinaryMissingError", "ChildExitedError", "ChildNotReadyError", "WorkerSettingError")


class BinaryMissingError(DexAgentsError, FileNotFoundError):
    """A program that the engine consists of is not there."""

    def __init__(self, program: str, looked_for: str, way_out: str) -> None:
        super().__init__(f"{program} is no program at {looked_for}. {way_out}")
        self.program = program


class ChildExitedError(DexAgentsError, RuntimeError):
    """A process ended that should have gone on, or failed at its task."""

    def __init__(self, name: str, status: int, output: str, log_path: Path | None = None) -> None:
        end = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        super().__init__(f"{name} {end}. {_quoted(output, log_path)}")
        self.status = status


class ChildNotReadyError(DexAgentsError, TimeoutError):
    """A process did not become ready in time; it has been killed."""

    def __init__(self, name: str, seconds: float, output: str, log_path: Path) -> None:
        super().__init__(f"{name} was not ready after {seconds:g} s. {_quoted(output, log_path)}")


class WorkerSettingError(DexAgentsError, LookupError):
    """A worker child was not told where and how to serve."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"{variable} is not set. run_agent_worker is the main of a process that "
            "AgentTestStack.start_worker starts."
        )
        self.variable = variable


def _quoted(output: str, log_path: Path | None) -> str:
    where = f" (in {log_path})" if log_path is not None else ""
    return f"Its output{where}:\n{output}" if output.strip() else f"It wrote nothing{where}."
