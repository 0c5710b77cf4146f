"""How long until something happens? The import, and the first Step of the demo."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.workload import Sizes
from dex_agents.errors import DexAgentsError
from dex_agents_sqlite import SqliteBackend

__all__ = ("measure",)

_IMPORTS = 5
_PATIENCE_SECONDS = 60.0
_IMPORT = """
import time
begun = time.process_time()
import dex_agents
print(time.process_time() - begun)
"""


async def measure(sizes: Sizes) -> dict[str, float]:  # noqa: ARG001 - there is but one size
    """Return ``import_cpu`` in milliseconds and ``demo_first_step`` in seconds."""
    return {
        "import_cpu": 1000 * median([await _import_seconds() for _ in range(_IMPORTS)]),
        "demo_first_step": await _demo_seconds(),
    }


async def _import_seconds() -> float:
    command = [sys.executable, "-c", _IMPORT]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    return float(done.stdout)


async def _demo_seconds() -> float:
    """Return the seconds from the command to the first Step that is stored as completed."""
    with tempfile.TemporaryDirectory(prefix="dex-agents-bench-") as folder:
        file = Path(folder) / "demo.db"
        command = [sys.executable, "-m", "dex_agents.cli", "demo", "--yes"]
        begun = time.time()
        demo = subprocess.Popen(  # noqa: ASYNC220 - waited for below
            [*command, "--store", f"sqlite:///{file}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return await _first_step(file, demo) - begun
        finally:
            demo.terminate()
            demo.wait()


async def _first_step(file: Path, demo: subprocess.Popen[bytes]) -> float:
    deadline = time.time() + _PATIENCE_SECONDS
    while time.time() < deadline and demo.poll() is None:
        await asyncio.sleep(0.05)
        if not file.exists():  # noqa: ASYNC240 - nothing else runs here
            continue
        try:
            async with SqliteBackend(file) as backend:
                for flow in await backend.list_flows():
                    for entry in await backend.read_history(flow.flow_id):
                        if entry.event_type == "step_execute_completed":
                            return entry.at
        except DexAgentsError:
            continue  # it is just being created
    raise RuntimeError("the demo came to no Step")
