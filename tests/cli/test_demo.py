from __future__ import annotations

import os
import pty
import re

import pytest

from dex_agents.cli.observatory import Observatory


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Keep the demo's folders within the test's."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_the_demo_keeps_its_promises(cli, temporary):
    """demo --yes kills a real worker, and each promise is kept; its store can be looked into."""
    process = cli.process("demo", "--yes")
    shown, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    pid = int(re.search(r"kill -9 +(\d+)", shown)[1])
    assert f"Worker {pid} was ended by SIGKILL" in shown
    assert "CallTool-4" in shown
    assert re.findall(r"^(yes|NO) ", shown, re.MULTILINE) == ["yes"] * 6
    assert "docs/runners.md" in shown
    (folder,) = temporary.iterdir()
    observatory = Observatory(folder)
    first, second = observatory.calls.entries("move_observation")
    assert first["pid"] == pid != second["pid"]
    assert first["key"] == second["key"]
    assert observatory.effects.count("move_observation") == 1
    assert observatory.effects.count("text_visitors") == 1
    assert "All 14 visitors" in cli("show", "night-1").stdout
    told = shown.split("You ")[1].split("Look around")[0]
    assert max(map(len, told.splitlines())) <= 100
    # Its worker has ended, too.
    last = int(re.findall(r"^Worker +(\d+) starts", shown, re.MULTILINE)[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_the_demo_asks_on_a_terminal(cli, temporary):
    """On a terminal the person decides; after a no the tool never runs, and that is as promised."""
    here, there = pty.openpty()
    process = cli.process("demo", stdin=there, stdout=there, stderr=there)
    os.close(there)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(here, 4096)
    os.write(here, b"n\n")
    shown += _rest(here)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert process.wait(20) == 0, text
    assert "so I did not" in cli("show", "night-1").stdout.replace("\n", " ")
    (folder,) = temporary.iterdir()
    assert Observatory(folder).calls.count("text_visitors") == 0
    assert "NO " not in text


def _rest(terminal):
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side has closed
            part = b""
        if not part:
            os.close(terminal)
            return shown
        shown += part


def test_a_demo_needs_a_store_that_lasts(cli, temporary):
    """A store that lives in one process cannot show a crash."""
    result = cli("demo", "--yes", "--store", "memory:", status=1)
    assert "lives in one process only" in result.stderr
