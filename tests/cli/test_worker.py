from __future__ import annotations

import asyncio
import re
import signal
import time

from dex_agents.testing import wait_until
from tests.cli.agent import FLOW_TYPE, gate, log


def _hold_a_call(cli):
    cli("start", "s1", "file report", "--flow-type", FLOW_TYPE)
    asyncio.run(gate(cli.folder).wait_until_reached())


def test_sigterm_lets_a_running_call_finish(cli):
    """After SIGTERM a worker ends only when its running call has, and records the result."""
    worker = cli.worker("--grace", "20")
    _hold_a_call(cli)
    worker.send_signal(signal.SIGTERM)
    assert "lets running calls finish" in worker.stdout.readline()
    assert log(cli.folder).count("file_paper") == 0
    gate(cli.folder).release()
    assert worker.wait(10) == 0
    assert log(cli.folder).count("file_paper") == 1
    (call,) = cli.json("show", "s1")["snapshot"]["tool_calls"]
    assert call["status"] == "succeeded"


def test_the_grace_period_ends(cli):
    """A call that outlives the grace period is cut off; another worker runs it again."""
    worker = cli.worker("--grace", "0.2")
    _hold_a_call(cli)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(10) == 0
    gate(cli.folder).release()
    cli.worker()
    assert cli.until_answered("s1").messages[-1].text == "done: succeeded"
    attempts = [
        each["final_attempt"]
        for each in cli.json("history", "s1")
        if each["step_execution_id"] == "CallTool-1"
    ]
    assert attempts == [1, 2]


def test_a_second_signal_stops_at_once(cli):
    """A second SIGTERM does not wait for the grace period."""
    worker = cli.worker("--grace", "600")
    _hold_a_call(cli)
    worker.send_signal(signal.SIGTERM)
    assert "finish" in worker.stdout.readline()
    begun = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 5


def test_what_a_runner_raises_is_told_in_full(cli):
    """The worker prints where it was raised; the history has its message, too."""
    worker = cli.worker()
    cli("start", "s-1", "fail now", "--flow-type", "Clerk")
    cli.until("s-1", lambda seen: seen.state and seen.state.last_turn_error)
    assert "KeyError: 'now'" in cli("history", "s-1").stdout
    assert re.search(
        r"^Last turn +failed: KeyError: 'now'$", cli("show", "s-1").stdout, re.MULTILINE
    )
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=10)
    assert "error_type=KeyError" in errors
    assert errors.count("Traceback:\n") == 3
    assert "in _answer" in errors
    assert "KeyError (for its message: dex-agents history s-1)" in errors
    assert "'now'" not in errors


def test_a_call_that_is_tried_again_is_shown_as_such(cli):
    """While a model call is retried, show tells the attempt and how the last one failed."""
    cli.worker()
    cli("start", "s1", "fail now", "--flow-type", FLOW_TYPE)

    def shown():
        return re.search(r"^Retrying +(.*)$", cli("show", "s1").stdout, re.MULTILINE)

    line = asyncio.run(wait_until("a retry", lambda: asyncio.to_thread(shown)))[1]
    assert re.fullmatch(
        r"RunModel-1, attempt (2; attempt 1|3; attempt 2) failed: KeyError: 'now'", line
    )
    cli.until_answered("s1")
    assert shown() is None


def test_verbose_logs_every_step_to_stderr(cli):
    """-v logs Steps on standard error, tagged with session and attempt."""
    worker = cli.worker("-v")
    cli("start", "s1", "hello", "--flow-type", FLOW_TYPE)
    cli.until_answered("s1")
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=10)
    assert "event=dex_agents.step.completed" in errors
    assert "session_id=s1" in errors


def test_a_worker_whose_store_is_lost_ends_with_a_code(cli):
    """It says once what happened and what helps, and does not wait for a result it cannot keep."""
    worker = cli.worker("--grace", "600")
    _hold_a_call(cli)
    cli.path.unlink()
    _, errors = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert errors.count("Error: ") == 1
    assert f"Error: The store {cli.path} cannot be used" in errors
    assert "End every process" in errors
    assert "Traceback" not in errors


def test_a_signal_is_no_stop_and_no_success(cli):
    """A single-attempt call that a signal cuts off is of unknown outcome; the session goes on."""
    worker = cli.worker("--grace", "0")
    cli("start", "s1", "stamp report", "--flow-type", FLOW_TYPE)
    asyncio.run(gate(cli.folder).wait_until_reached())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert cli.json("sessions")[0]["status"] == "running"
    gate(cli.folder).release()
    cli.worker()
    assert cli.until_answered("s1").messages[-1].text == "done: outcome_unknown"
    assert log(cli.folder).count("stamp_paper") == 0
