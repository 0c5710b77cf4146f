"""``trace`` and ``history --html``: what an operator sees of a turn, from the store alone."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.agent import FLOW_TYPE, gate


def _asking(cli):
    """A session of two turns: one ended, one that waits for two approvals."""
    cli.worker()
    cli("start", "s-1", "hello", "--flow-type", FLOW_TYPE)
    cli.until_answered("s-1")
    cli("send", "s-1", "shred a b")
    return cli.until("s-1", lambda snapshot: snapshot.pending_interrupts)


def test_the_last_turn_is_shown(cli):
    """With what it waits for; once it has ended, with who decided."""
    first, second = _asking(cli)
    open_turn = cli("trace", "s-1").stdout
    assert "Turn         2, waits for approval" in open_turn
    assert "AwaitToolApproval-2" in open_turn
    cli("approve", "s-1", first.interrupt_id)
    cli("reject", "s-1", second.interrupt_id, "--message", "keep it")
    cli.until_answered("s-1", 2)
    ended = cli("trace", "s-1").stdout
    assert "Turn         2, ended" in ended
    assert "approved by a person" in ended
    assert "rejected by a person: keep it" in " ".join(ended.split())
    assert "shred_paper, succeeded" in ended
    assert "W1 is worker" in ended
    assert "Model calls  2 (" in ended


def test_a_turn_is_chosen_by_its_number(cli):
    """One of them, or all; as JSON for a machine."""
    _asking(cli)
    assert "Turn         1, ended" in cli("trace", "s-1", "--turn", "1").stdout
    every = cli("trace", "s-1", "--all").stdout
    assert every.index("Turn         1") < every.index("Turn         2")
    (turn,) = cli.json("trace", "s-1", "--turn", "1")
    assert (turn["number"], turn["is_open"]) == (1, False)
    assert {lane["step_execution_id"] for lane in turn["lanes"]} == {
        "StartAgentSession-1",
        "RunModel-1",
    }
    assert all(span["worker"] for lane in turn["lanes"] for span in lane["spans"])


def test_a_killed_worker_is_named(cli):
    """Its attempt failed, and another worker ran the next."""
    worker = cli.worker("--lease", "1")
    cli("start", "s-1", "file a", "--flow-type", FLOW_TYPE)
    cli.until("s-1", lambda s: s.tool_calls and gate(cli.folder).is_reached)
    worker.kill()
    worker.wait()
    gate(cli.folder).release()
    cli.worker()
    cli.until_answered("s-1")
    shown = cli("trace", "s-1").stdout
    assert "attempt 1 on W1 failed" in shown
    assert "attempt 2 on W2" in shown
    assert "W2 is worker" in shown


def test_what_cannot_be_shown_is_said(cli):
    """Which session, which turn, and how many there are."""
    assert "no store at" in cli.fails("trace", "s-1")
    cli.worker()
    cli("start", "s-1", "--flow-type", FLOW_TYPE)
    cli.until("s-1", lambda snapshot: snapshot.state)
    assert "Session s-1 has had no turn so far." in cli.fails("trace", "s-1")
    cli("send", "s-1", "hello")
    cli.until_answered("s-1")
    assert "has had 1 turn so far" in cli.fails("trace", "s-1", "--turn", "2")
    assert "not both" in cli.fails("trace", "s-1", "--turn", "1", "--all", status=2)
    assert "nobody" in cli.fails("trace", "nobody")


def test_a_stopped_session_is_shown_to_its_end(cli):
    """What was open then ended then."""
    _asking(cli)
    cli("stop", "s-1", "--reason", "enough")
    assert "Turn         2, stopped" in cli("trace", "s-1").stdout


def test_a_page_is_written_whole_or_not_at_all(cli):
    """It replaces what was there; a folder that is not there is named."""
    _asking(cli)
    page = cli.folder / "page.html"
    page.write_text("old")
    assert "Wrote 2 turns of s-1" in cli("history", "s-1", "--html", str(page)).stdout
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "AwaitToolApproval-2" in text
    lost = cli.folder / "nowhere" / "page.html"
    assert f"Cannot write {lost}: No such file" in cli.fails("history", "s-1", "--html", str(lost))
    assert sorted(each.name for each in cli.folder.glob("tmp*")) == []


def test_a_page_runs_nothing_that_a_session_said(cli):
    """Markup in messages, arguments and errors stays text; no script, no address to load from."""
    cli.worker()
    hostile = "fail <script>alert(1)</script>"
    cli("start", "s-1", hostile, "--flow-type", FLOW_TYPE)
    cli.until("s-1", lambda snapshot: snapshot.state and snapshot.state.last_turn_error)
    page = cli.folder / "page.html"
    cli("history", "s-1", "--html", str(page))
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.timeout(120)
def test_a_page_is_drawn_by_a_browser(cli, tmp_path):
    """A headless Chromium shows both turns, with a bar for each Step, and more than blank paper."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    _asking(cli)
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    cli("history", "s-1", "--html", str(page))
    browser = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/b",
    ]
    shown = subprocess.run(
        [*browser, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    ).stdout
    assert shown.count("<svg") == 2
    assert shown.count("<rect") >= 8
    subprocess.run(
        [*browser, f"--screenshot={picture}", "--window-size=1200,800", page.as_uri()],
        capture_output=True,
        check=True,
        timeout=90,
    )
    blank = 6_000  # bytes of a picture of this size without anything on it
    assert picture.stat().st_size > blank
