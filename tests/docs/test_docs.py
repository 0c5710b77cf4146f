"""The documents tell what the code does."""

from __future__ import annotations

import re
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


async def test_the_runner_of_the_guide_works():
    """docs/runners.md can be pasted into a file, and its test passes."""
    code = "\n".join(blocks(ROOT / "docs" / "runners.md", "python"))
    scope: dict = {"__name__": "guide"}
    exec(compile(code, "docs/runners.md", "exec"), scope)

    await scope["test_a_refund_waits_for_approval"]()


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
