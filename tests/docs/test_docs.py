"""The documents tell what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dex_agents.session import client_table

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_drawing_of_the_session_is_the_tables_own():
    """docs/session.md shows exactly what the table draws of itself."""
    (drawing,) = blocks(ROOT / "docs" / "session.md", "mermaid")

    assert drawing == client_table("Agent").to_mermaid()


@pytest.fixture
def guide(tmp_path):
    """The files that docs/runners.md tells one to write, in a folder."""
    runner, agent, test, serve, flow, worker, on_dex = blocks(
        ROOT / "docs" / "runners.md", "python"
    )
    for name, code in {
        "my_agent.py": runner + agent + flow,
        "test_my_agent.py": test,
        "serve.py": serve,
        "my_worker.py": worker,
        "test_on_dex.py": on_dex,
        "pytest.ini": "[pytest]\nasyncio_mode = auto\n",
    }.items():
        (tmp_path / name).write_text(code)
    return tmp_path


@pytest.mark.parametrize("test", ["test_my_agent.py", "test_on_dex.py"])
def test_the_tests_of_the_guide_pass(guide, test):
    """docs/runners.md can be pasted into files, and its tests pass."""
    command = [sys.executable, "-m", "pytest", "-q", test]
    done = subprocess.run(command, cwd=guide, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_program_of_the_guide_serves(guide):
    """Its session goes on where the command line left it."""
    command = [sys.executable, "-m", "dex_agents.cli", "--store", "sqlite:///sessions.db"]
    start = ["start", "order-7", "Please refund order 7", "--flow-type", "Shop"]
    subprocess.run([*command, *start], cwd=guide, check=True, capture_output=True)
    serving = subprocess.Popen(
        [sys.executable, "-u", "serve.py"], cwd=guide, stdout=subprocess.PIPE, text=True
    )
    with serving:
        assert serving.stdout is not None
        lines = iter(serving.stdout.readline, "")
        assert any(line.startswith("interrupt_raised") for line in lines)
        serving.kill()


async def test_the_readme_runs_a_session(tmp_path, monkeypatch, capsys):
    """The README's first program runs as it stands, and prints what the README says."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "README.md", "python")
    (printed,) = blocks(ROOT / "README.md", "text")
    scope: dict = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), scope)

    await scope["main"]()

    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(path):
    """Every relative link of a document names a file of the project."""
    for target in LINK.findall(path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target
