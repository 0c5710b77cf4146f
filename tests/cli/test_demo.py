from __future__ import annotations

import os
import pty
import re
import signal

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
    """demo --yes kills a real worker, each promise is kept, and so is what can be looked into."""
    process = cli.process("demo", "--yes", store=None)
    shown, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    pid = int(re.search(r"kill -9 +(\d+)", shown)[1])
    assert f"Worker {pid} was ended by SIGKILL" in shown
    assert "CallTool-4" in shown
    assert re.findall(r"^(yes|NO) ", shown, re.MULTILINE) == ["yes"] * 6
    assert "docs/runners.md" in shown
    (folder,) = temporary.iterdir()
    assert f"rm -r {folder}\n" in shown
    observatory = Observatory(folder)
    first, second = observatory.calls.entries("move_observation")
    assert first["pid"] == pid != second["pid"]
    assert first["key"] == second["key"]
    assert observatory.effects.count("move_observation") == 1
    assert observatory.effects.count("text_visitors") == 1
    store = re.search(r"--store (\S+) show night-1", shown)[1]
    assert "All 14 visitors" in cli("show", "night-1", "--store", store).stdout
    told = shown.split("You ")[1].split("Look around")[0]
    assert max(map(len, told.splitlines())) <= 100
    # Its worker has ended, too.
    last = int(re.findall(r"^Worker +(\d+) starts", shown, re.MULTILINE)[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_the_demo_asks_on_a_terminal(cli, temporary):
    """On a terminal the person decides; after a no the tool never runs, and that is as promised."""
    here, there = pty.openpty()
    process = cli.process("demo", store=None, stdin=there, stdout=there, stderr=there)
    os.close(there)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(here, 4096)
    os.write(here, b"n\n")
    shown += _rest(here)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert process.wait(20) == 0, text
    (folder,) = temporary.iterdir()
    store = f"sqlite:///{folder / 'dex-agents.db'}"
    assert "so I did not" in cli("show", "night-1", "--store", store).stdout.replace("\n", " ")
    assert "text_visitors waited for approval, was rejected and never ran." in text
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


def test_a_demo_on_a_store_of_ones_own_leaves_only_that(cli, temporary):
    """With --store there is nothing else to look at: the folder is gone, the session is there."""
    process = cli.process("demo", "--yes")
    shown, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert list(temporary.iterdir()) == []
    assert "rm -r" not in shown
    assert "All 14 visitors" in cli("show", "night-1").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_cut_off_leaves_nothing(cli, temporary, number):
    """Whoever ends the demo early finds neither its folder nor its worker."""
    process = cli.process("demo", store=None)
    shown = ""
    while "starts" not in shown:
        shown = process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(re.search(r"(\d+) starts", shown)[1]), 0)


def test_a_demo_that_fails_says_where_its_files_are(cli, temporary):
    """When its worker dies of itself, the log that tells why is kept and named."""
    process = cli.process("demo", store=None)
    shown = ""
    while "starts" not in shown:
        shown = process.stdout.readline()
    os.kill(int(re.search(r"(\d+) starts", shown)[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    (folder,) = temporary.iterdir()
    assert "The worker has ended" in errors
    assert f"The files of the demo are in {folder}" in errors


def test_the_demo_tells_what_was_in_the_order_in_which_it_was(cli, temporary):
    """The kill follows the call that it hits; a Step took its waiting and all its attempts."""
    shown, _ = cli.process("demo", "--yes").communicate(timeout=30)
    lines = [line.partition(" ")[2].strip() for line in shown.splitlines()]
    asked = lines.index("asks for move_observation")
    assert lines[asked + 1] == "move_observation has taken effect, but has not yet said so"
    took = dict(re.findall(r"^(\S+-\d+) .* (\d+\.\d\d) s$", shown, re.MULTILINE))
    assert float(took["CallTool-4"]) > 0.5  # its worker's lease had to end first
    waited, answered = (
        each
        for each in cli.json("history", "night-1")
        if each["step_execution_id"] == "AwaitToolApproval-1"
    )
    length = answered["at"] - waited["scheduled_at"]
    assert float(took["AwaitToolApproval-1"]) == pytest.approx(length, abs=0.01)


def test_a_demo_needs_a_store_that_lasts(cli, temporary):
    """A store that lives in one process cannot show a crash."""
    result = cli("demo", "--yes", "--store", "memory:", status=1)
    assert "lives in one process only" in result.stderr
