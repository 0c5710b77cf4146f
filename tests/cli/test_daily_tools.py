from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from click.testing import CliRunner

from dex_agents.cli.app import app
from tests.cli.agent import FLOW_TYPE, gate, log


def test_a_session_is_started_talked_to_and_stopped(cli):
    """Every daily tool does its part over a worker in another process."""
    cli.worker()
    assert "Session s1 has started." in cli("start", "s1", "hello", "--flow-type", FLOW_TYPE).stdout
    cli.until_answered("s1")
    cli("send", "s1", "shred a")
    cli.until("s1", lambda snapshot: snapshot.pending_interrupts)
    shown = cli("show", "s1").stdout
    assert "you said hello" in shown
    assert 'Waits for approval: shred_paper {"paper":"a"}' in shown
    assert 'Approved: shred_paper {"paper":"a"}' in cli("approve", "s1").stdout
    assert cli.until_answered("s1", 2).messages[-1].text == "done: succeeded"
    assert log(cli.folder).count("shred_paper") == 1
    assert "CallSingleAttemptTool-1" in cli("history", "s1").stdout
    cli("stop", "s1", "--reason", "all is done")
    shown = cli("show", "s1").stdout
    assert "stopped" in shown
    assert "all is done" in shown
    assert "is stopped" in cli.fails("send", "s1", "more")


def test_json_is_for_machines(cli):
    """With --json every tool prints one JSON value, or one a line where there may be many."""
    cli.worker()
    assert cli.json("start", "s1", "shred a b", "--flow-type", FLOW_TYPE) == {"session_id": "s1"}
    first, second = cli.until("s1", lambda snapshot: snapshot.pending_interrupts)
    (summary,) = cli.json("sessions")
    assert (summary["flow_id"], summary["status"]) == ("s1", "running")
    shown = cli.json("show", "s1")
    assert [each["tool_name"] for each in shown["snapshot"]["tool_calls"]] == ["shred_paper"] * 2
    assert cli.json("approve", "s1", second.interrupt_id) == {
        "session_id": "s1",
        "interrupt_id": second.interrupt_id,
        "approved": True,
    }
    rejected = cli.json("reject", "s1", "--message", "keep it")  # only one is left
    assert (rejected["interrupt_id"], rejected["approved"]) == (first.interrupt_id, False)
    answered = cli.until_answered("s1")
    assert answered.messages[-1].text == "done: rejected, succeeded"
    assert answered.messages[2].text == "keep it"
    assert cli.json("send", "s1", "bye") == {"session_id": "s1", "sent": True}
    history = cli.json("history", "s1")
    assert history[0]["event_type"] == "flow_started"
    assert cli.json("stop", "s1") == {"session_id": "s1"}


def test_events_are_read_from_a_position_on(cli):
    """events prints all, and with --from only those behind a position."""
    cli.worker()
    cli("start", "s1", "hello", "--flow-type", FLOW_TYPE)
    cli.until_answered("s1")
    every = [
        msgspec.json.decode(line) for line in cli("events", "s1", "--json").stdout.split("\n")[:-1]
    ]
    assert every[0]["event"]["type"] == "turn_started"
    assert every[-1]["event"]["type"] == "turn_completed"
    position = every[1]["position"]
    later = cli("events", "s1", "--from", position, "--json").stdout.split("\n")[:-1]
    assert [msgspec.json.decode(line) for line in later] == every[2:]
    shown = cli("events", "s1").stdout
    assert "text_delta  you said hello\n" in shown  # pieces of one text stand on one line
    assert "no position" in cli.fails("events", "s1", "--from", "yesterday")


def test_following_events_ends_when_the_session_is_closed(cli):
    """events --follow prints what comes, until there will be nothing more."""
    cli.worker()
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    following = cli.process("events", "s1", "--follow", "--json")
    cli("send", "s1", "hello")
    cli.until_answered("s1")
    assert following.stdout is not None
    assert msgspec.json.decode(following.stdout.readline())["event"]["type"] == "turn_started"
    cli("stop", "s1")
    assert "turn_completed" in following.stdout.read()
    assert following.wait(10) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_ctrl_c_is_quiet(cli):
    """Ctrl-C ends a command with exit code 130 and no word."""
    cli.worker()
    cli("start", "s1", "hello", "--flow-type", FLOW_TYPE)
    following = cli.process("events", "s1", "--follow", "--json")
    assert following.stdout is not None
    following.stdout.readline()
    following.send_signal(2)
    assert following.wait(10) == 130
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_a_reader_that_goes_away_is_no_error(cli):
    """A broken pipe ends a command without a traceback."""
    cli("start", "s1", "hello", "--flow-type", FLOW_TYPE)
    read, write = os.pipe()
    os.close(read)
    process = cli.process("show", "s1", "--json", stdout=write)
    os.close(write)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(10) == 128 + signal.SIGPIPE


def test_an_empty_store_lists_nothing(cli):
    """sessions on a store without any says so, and --json prints an empty list."""
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    assert "s1" in cli("sessions").stdout
    cli.path.unlink()
    subprocess.run(["touch", cli.path], check=True)
    assert "no sessions" in cli("sessions").stdout
    assert cli.json("sessions") == []


def test_a_session_without_a_worker_is_shown_as_such(cli):
    """Starting and sending need no worker, and say which is missing, as show does."""
    command = f"\n  dex-agents --store {cli.store} worker MODULE:FLOW\n"
    for arguments in (
        ["start", "s1", "hello", "--flow-type", FLOW_TYPE],
        ["send", "s1", "again"],
        ["show", "s1"],
    ):
        shown = cli(*arguments).stdout
        assert "No worker has taken it up so far." in shown
        assert f"If none serves the flow type {FLOW_TYPE}, start one:{command}" in shown
    assert re.search(r"^Queued +1 message$", shown, re.MULTILINE)
    cli.worker()
    cli.until_answered("s1", 2)
    for arguments in (["send", "s1", "bye"], ["show", "s1"]):
        assert "No worker" not in cli(*arguments).stdout


def test_a_message_comes_from_standard_input(cli):
    """With - as the message, send and start read it; a blank one is not sent, and said so."""
    result = CliRunner().invoke(
        app, ["--store", cli.store, "start", "s1", "-", "--flow-type", FLOW_TYPE], input=" \n"
    )
    assert "has started. The message is blank and was not sent." in result.stdout
    assert cli("start", "s2", "", "--flow-type", FLOW_TYPE).stdout.count("was not sent") == 1
    CliRunner().invoke(app, ["--store", cli.store, "send", "s1", "-"], input="two\nlines\n")
    cli.worker()
    assert cli.until_answered("s1").messages[0].text == "two\nlines"


def test_sessions_tells_what_each_does(cli):
    """The list says what a session waits for, and how it ended."""
    cli.worker()
    for session, message in {
        "asks": "shred a",
        "fails": "fail now",
        "greets": "hello",
        "works": "file a",
        "ends": "shred a",
    }.items():
        cli("start", session, message, "--flow-type", FLOW_TYPE)
    cli("start", "strange", "hello", "--flow-type", "Other")
    for session in ("asks", "ends"):
        cli.until(session, lambda snapshot: snapshot.pending_interrupts)
    cli("stop", "ends")
    for session in ("fails", "greets"):
        cli.until_answered(session)
    asyncio.run(gate(cli.folder).wait_until_reached())
    states = {each["flow_id"]: each["state"] for each in cli.json("sessions")}
    assert states == {
        "asks": "waits for approval",
        "fails": "waits for the user",
        "greets": "waits for the user",
        "works": "running tools",
        "ends": "stopped",
        "strange": "not begun",
    }
    shown = cli("sessions").stdout
    assert re.search(r"^fails .*waits for the user; its last turn failed", shown, re.MULTILINE)
    assert re.search(r"^State +stopped, turn 1$", cli("show", "ends").stdout, re.MULTILINE)
    assert "running" not in cli("show", "ends").stdout


def test_times_have_a_zone(cli, monkeypatch):
    """A time is local, with its offset."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        cli("start", "s1", "--flow-type", FLOW_TYPE)
        assert re.search(r"\d\d:\d\d:\d\d\+05:30$", cli("sessions").stdout, re.MULTILINE)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_help_names_every_command_in_full(cli):
    """No summary in the list of commands is cut off."""
    shown = cli("--help").stdout.partition("Commands:")[2]
    assert "..." not in shown
    assert "what it waits" in shown


def test_the_environment_may_name_the_store(cli, monkeypatch):
    """DEX_AGENTS_STORE is used where no --store is given; an option behind the command wins."""
    elsewhere = f"sqlite:///{cli.folder / 'other.db'}"
    cli("start", "s1", "--flow-type", FLOW_TYPE, "--store", elsewhere)
    assert not cli.path.exists()
    assert cli.json("sessions", "--store", elsewhere)[0]["flow_id"] == "s1"
    monkeypatch.setenv("DEX_AGENTS_STORE", elsewhere)
    done = subprocess.run(
        [sys.executable, "-m", "dex_agents.cli", "sessions", "--json"],
        capture_output=True,
        check=True,
    )
    assert msgspec.json.decode(done.stdout)[0]["flow_id"] == "s1"


@pytest.mark.parametrize("arguments", [["graph"], ["graph", "--session"]])
def test_the_session_draws_itself(cli, arguments):
    """graph without a flow prints the agent session's own drawing."""
    drawing = cli(*arguments).stdout
    assert drawing.startswith("flowchart TD\n")
    assert "RunModel -. used up .-> RecordTurnFailure" in drawing


def test_a_flow_of_ones_own_is_drawn(cli):
    """graph MODULE:FLOW prints the drawing of that flow; the current folder can be imported."""
    (cli.folder / "my_little_flow.py").write_text(
        "from dex_agents.table import Decision, FlowTable, Step\n"
        "async def only(context, _): return Decision.dead_end()\n"
        "flow = FlowTable('Little', (Step('Only', only),))\n"
    )
    assert "start([start]) --> Only" in cli("graph", "my_little_flow:flow").stdout
