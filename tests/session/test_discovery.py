"""Backends by URL, public names, and what importing the package loads."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

import dex_agents
from dex_agents import AgentSessionClient, Capability, backend_names, open_backend
from dex_agents.errors import BackendNotFoundError, MissingExtraError, StoreForeignError
from dex_agents.testing import ScriptedRunner, wait_for_agent_snapshot
from dex_agents_memory import MemoryBackend
from dex_agents_sqlite import SqliteBackend
from tests.session.engine import agent_flow, texts

ROOTS = ("dex_agents", "dex_agents_memory", "dex_agents_sqlite")

RUN = """
import asyncio, sys

class NoSdk:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoSdk())  # as if it were not installed
from dex_agents import AgentSessionClient, open_backend, session_table
from dex_agents import FrameworkMessage, MessageRole, TurnCompleted

class Runner:
    def build_user_message(self, text):
        return FrameworkMessage(MessageRole.USER, text, text)
    async def run_model_step(self, turn):
        return TurnCompleted([FrameworkMessage(MessageRole.ASSISTANT, 1, "Hello.")])
    async def execute_deferred_tool_call(self, call):
        raise NotImplementedError

async def main():
    flow = session_table(Runner(), flow_type="Agent")
    async with open_backend(sys.argv[1]) as backend, backend.worker([flow]):
        sessions = AgentSessionClient(backend, flow)
        await sessions.start_session("s", "Hi")
        while len((await sessions.get_agent_snapshot("s")).messages) < 2:
            await asyncio.sleep(0.005)

asyncio.run(main())
loaded = {"dex", "grpc", "opentelemetry.sdk", "structlog", "pytest", "click"} & set(sys.modules)
print(sorted(loaded))
"""


# Backends by URL


def test_the_installed_backends_are_named_without_loading_them():
    """In order; memory and sqlite come with the package."""
    assert backend_names() == tuple(sorted(backend_names()))
    assert {"memory", "sqlite"} <= set(backend_names())


def test_the_entry_points_lead_to_the_backends():
    """Each loads, and makes a backend of its own name."""
    found = {entry.name: entry for entry in entry_points(group="dex_agents.backends")}
    assert found["memory"].load() is MemoryBackend
    assert found["sqlite"].load() is SqliteBackend


def test_memory_is_opened_by_its_scheme():
    """Each call gives a new one."""
    first, second = open_backend("memory:"), open_backend("memory:")
    assert isinstance(first, MemoryBackend)
    assert first is not second
    assert (first.name, first.capabilities) == ("memory", frozenset())


def test_sqlite_is_opened_by_its_path(tmp_path: Path):
    """Behind three slashes, relative or absolute; nothing is created yet."""
    path = tmp_path / "a b.db"
    backend = open_backend(f"sqlite:///{path}")
    assert isinstance(backend, SqliteBackend)
    assert backend.path == path
    assert open_backend("sqlite:///sub/x.db").path == Path("sub/x.db")
    assert backend.capabilities == {Capability.DURABLE, Capability.MULTI_PROCESS}
    assert not path.exists()


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://x.db", "sqlite:///"])
def test_a_sqlite_url_without_a_path_is_refused(url: str):
    """The error shows the form."""
    with pytest.raises(StoreForeignError, match="sqlite:///PATH"):
        open_backend(url)


@pytest.mark.parametrize("url", ["postgres://x", "", "nothing", "MEMORY:"])
def test_an_unknown_scheme_names_the_known_ones(url: str):
    """As a LookupError."""
    with pytest.raises(BackendNotFoundError, match=r"memory, .*sqlite") as caught:
        open_backend(url)
    assert isinstance(caught.value, LookupError)


def test_a_backend_that_lacks_its_dependency_says_which_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Listing it works; only opening it needs the dependency."""
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dex_agents.backends]\nbroken = broken_backend:Backend\n"
    )
    (tmp_path / "broken_backend.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "broken" in backend_names()
    with pytest.raises(MissingExtraError, match=r"dex-agents\[broken\]"):
        open_backend("broken:")


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_an_opened_backend_runs_sessions_on_the_systems_clock(scheme: str, tmp_path: Path):
    """Nothing else is needed."""
    url = "memory:" if scheme == "memory" else f"sqlite:///{tmp_path / 's.db'}"
    flow = agent_flow(ScriptedRunner([["Hello."]]))
    async with open_backend(url) as backend, backend.worker([flow]):
        sessions = AgentSessionClient(backend, flow)
        await sessions.start_session("s", "Hi")
        snapshot = await wait_for_agent_snapshot(
            sessions,
            "s",
            lambda seen: seen if len(seen.messages) == 2 else None,
            description="the answer",
        )
    assert texts(snapshot) == ["Hi", "Hello."]


# Packaging


def _packages() -> list[str]:
    found = []
    for root in ROOTS:
        module = importlib.import_module(root)
        found.append(root)
        inside = pkgutil.walk_packages(module.__path__, f"{root}.")
        found += [each.name for each in inside if each.ispkg and ".cli" not in each.name]
    return found


def _public(module: ModuleType) -> set[str]:
    """Return the public names of a package, submodules and imports of modules aside."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }


def _sort_key(name: str) -> tuple[int, list[int | str]]:
    """Return the order of names: constants, classes, functions; digits by number."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("name", ["dex_agents", "dex_agents.session", "dex_agents.testing"])
def test_a_public_packages_names_are_exactly_its_all(name: str):
    """Nothing public is left out by accident, and nothing is promised that is not there."""
    module = importlib.import_module(name)
    lazy = set(getattr(module, "_LAZY", ()))
    assert set(module.__all__) - lazy == _public(module) - lazy


@pytest.mark.parametrize("name", _packages())
def test_every_packages_all_is_a_tuple_of_names_that_exist(name: str):
    """Each once."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", ())
    assert isinstance(names, tuple)
    assert len(names) == len(set(names))
    assert [each for each in names if not hasattr(module, each)] == []


@pytest.mark.parametrize("name", sorted(set(_packages()) - {"dex_agents.machine"}))
def test_every_packages_all_is_in_order(name: str):
    """Constants first, then classes, then functions. The machine lists its records last."""
    names = getattr(importlib.import_module(name), "__all__", ())
    assert list(names) == sorted(names, key=_sort_key)


@pytest.mark.parametrize("name", ROOTS)
def test_every_distributed_package_is_typed(name: str):
    """``py.typed`` travels with it."""
    assert files(name).joinpath("py.typed").is_file()


def test_every_public_object_has_a_docstring():
    """Whatever ``dex_agents`` exports that can have one."""
    bare = [
        name
        for name in dex_agents.__all__
        if callable(value := getattr(dex_agents, name)) and not value.__doc__
    ]
    assert bare == []


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_local_session_loads_neither_dex_nor_grpc_nor_an_sdk(scheme: str, tmp_path: Path):
    """The core runs without its extras and without anything that only tools need."""
    url = "memory:" if scheme == "memory" else f"sqlite:///{tmp_path / 's.db'}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
