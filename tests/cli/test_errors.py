from __future__ import annotations

import subprocess
import sys

import pytest

from dex_agents.errors import StaleAttemptError
from tests.cli.agent import FLOW_TYPE

READING = [
    ["sessions"],
    ["show", "s1"],
    ["events", "s1"],
    ["history", "s1"],
    ["send", "s1", "hello"],
    ["approve", "s1"],
    ["reject", "s1"],
    ["stop", "s1"],
]


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_looking_creates_no_store(cli, arguments):
    """A store that is not there is a clear error, and is still not there afterwards."""
    assert f"There is no store at {cli.path}" in cli.fails(*arguments)
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("arguments", READING[1:], ids=lambda arguments: arguments[0])
def test_an_unknown_session_is_named(cli, arguments):
    """Each tool names the session that is not there."""
    cli("start", "other", "--flow-type", FLOW_TYPE)
    assert cli.fails(*arguments).startswith("Error: There is no session 's1'.")


def test_a_blank_message_is_refused(cli):
    """send says that nothing was sent, and nothing was."""
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    assert "blank" in cli.fails("send", "s1", " \n")
    assert cli.json("show", "s1")["snapshot"]["queued_message_count"] == 0


def test_a_session_starts_once(cli):
    """A second start of one ID is an error."""
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    assert "already started" in cli.fails("start", "s1", "--flow-type", FLOW_TYPE)


def test_nothing_to_approve(cli):
    """approve and reject say when nothing waits."""
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    for tool in ("approve", "reject"):
        assert "Nothing waits for approval" in cli.fails(tool, "s1")


def test_an_answered_question_is_not_open_any_more(cli):
    """Answering twice, or after the session's end, says what was answered and where to look."""
    cli.worker()
    cli("start", "s1", "shred a b", "--flow-type", FLOW_TYPE)
    first, second = cli.until("s1", lambda snapshot: snapshot.pending_interrupts)
    cli("approve", "s1", first.interrupt_id)
    cli("reject", "s1", second.interrupt_id)
    cli.until_answered("s1")
    look = f"dex-agents --store {cli.store} show s1"
    for arguments, answer in (
        (["approve", "s1", first.interrupt_id], "shred_paper is already approved"),
        (["approve", "s1", second.interrupt_id], "shred_paper is already rejected"),
        (["reject", "s1"], "Nothing waits for approval in session 's1'; shred_paper is already"),
        (["reject", "s1", "nonsense"], "'nonsense' is not pending. Nothing waits."),
    ):
        errors = cli.fails(*arguments)
        assert answer in errors
        assert look in errors
    cli("stop", "s1")
    errors = cli.fails("approve", "s1", first.interrupt_id)
    assert "is stopped: none of its tool calls will run" in errors
    assert look in errors


def test_an_answer_of_which_no_worker_knows_yet_is_one(cli):
    """A question that was answered while no worker ran is known to be answered."""
    worker = cli.worker()
    cli("start", "s1", "shred a", "--flow-type", FLOW_TYPE)
    cli.until("s1", lambda snapshot: snapshot.pending_interrupts)
    worker.terminate()
    worker.wait(10)
    assert "No worker has taken it up so far." in cli("approve", "s1").stdout
    assert "shred_paper is already approved or rejected" in cli.fails("approve", "s1")


def test_several_approvals_want_a_name(cli):
    """Without an ID that fits, approve and reject list what waits."""
    cli.worker()
    cli("start", "s1", "shred a b", "--flow-type", FLOW_TYPE)
    pending = cli.until("s1", lambda snapshot: snapshot.pending_interrupts)
    for arguments in (["approve", "s1"], ["reject", "s1", "nonsense"]):
        errors = cli.fails(*arguments)
        for interrupt in pending:
            assert f"{interrupt.interrupt_id}  shred_paper" in errors


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("memory:", "lives in one process only"),
        ("here.db", "Write it as a URL: --store sqlite:///here.db"),
        ("oracle:///x", "There is no backend 'oracle'"),
        ("sqlite:here", "a store is named sqlite:///PATH"),
        ("sqlite:///.", "it is a folder"),
        ("sqlite:///notes.txt", "it is no SQLite database"),
        ("sqlite:///no/such/folder/x.db", "cannot be used"),
    ],
)
def test_a_store_that_is_none(cli, store, sentence):
    """Whatever --store names, a wrong one is a sentence and not a traceback."""
    (cli.folder / "notes.txt").write_text("buy milk")
    errors = cli.fails("start", "s1", "--flow-type", FLOW_TYPE, "--store", store)
    assert errors.startswith("Error: ")
    assert sentence in errors
    assert (cli.folder / "notes.txt").read_text() == "buy milk"


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        ("no_such_module:flow", "No module named 'no_such_module'"),
        ("my_agent.py:flow", "name what is in it: my_agent:flow"),
        ("tests.cli.agent:nothing", "has no attribute 'nothing'"),
        ("tests.cli.agent:NOT_A_FLOW", "is int, not a FlowTable"),
        ("tests.cli.agent:broken", "RuntimeError: the cupboard is bare"),
    ],
)
def test_a_flow_that_is_none(cli, flow, sentence):
    """worker and graph say what is wrong with MODULE:FLOW, and create no store."""
    for command in ("worker", "graph"):
        assert sentence in cli.fails(command, flow)
    assert not cli.path.exists()


def test_a_module_that_is_not_there_was_looked_for_somewhere(cli):
    """The error names the folder in which the module would have been found."""
    assert f"It was looked for in {cli.folder} and" in cli.fails("worker", "no_such_module:flow")


def test_the_place_of_a_mistake_is_named(cli):
    """When the module itself fails, the error names its file and line."""
    (cli.folder / "typing_error_here.py").write_text("x = 1\ny = x + 'a'\n")
    errors = cli.fails("worker", "typing_error_here:flow")
    assert "TypeError" in errors
    assert "typing_error_here.py, line 2" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker", "module_only"],
        ["worker"],
        ["start", "s1"],
        ["graph", "a:b", "--session"],
        ["worker", "a:b", "--lease", "0"],
        ["replay", "no-such-file"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_code_2(cli, arguments):
    """click says how a command is used."""
    assert "Usage:" in cli.fails(*arguments, status=2)


def test_control_characters_never_reach_the_terminal(cli):
    """What a user or a model wrote is shown with its escapes made visible."""
    cli.worker()
    cli("start", "s1", "red \x1b[31m alert", "--flow-type", FLOW_TYPE)
    cli.until_answered("s1")
    for tool in ("show", "events"):
        shown = cli(tool, "s1").stdout
        assert "\x1b" not in shown
        assert "\\x1b[31m alert" in shown


def test_no_text_turns_the_direction_of_what_is_shown(cli):
    """Characters by which a text looks like another are made visible, also in JSON."""
    cli("start", "s1", "--flow-type", FLOW_TYPE)
    cli("stop", "s1", "--reason", "txt\u202egpj \x9b31m")
    for arguments in (["show", "s1"], ["show", "s1", "--json"]):
        assert r"txt\u202egpj \u009b31m" in cli(*arguments).stdout
    assert cli.json("show", "s1")["session"]["failure"] == "txt\u202egpj \x9b31m"


def test_a_refused_result_without_a_number_has_none():
    """The error names the attempt only where it is known."""
    assert "An attempt of RunModel-1 is" in str(StaleAttemptError("RunModel-1"))
    assert "Attempt 2 of RunModel-1 is" in str(StaleAttemptError("RunModel-1", 2))


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_the_missing_extra_is_named(missing):
    """Without click or rich, the command line says what to install."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from dex_agents.cli.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr == f"Error: the command line needs {missing}: pip install 'dex-agents[cli]'\n"
    )
