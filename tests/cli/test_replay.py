from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from dex_agents.cli.app import app
from dex_agents.testing import InvocationLog, wait_until

READS = "look"
SETTINGS = {"DEX_AGENTS_REPLAY_READS": READS}


def _call(number, name):
    return {"id": f"call-{number}", "name": name, "arguments": "{}"}


def _conversation(name, turns):
    messages = []
    for turn in range(turns):
        messages += [
            {"role": "user", "content": f"{name}: question {turn}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call(1, "look"), _call(2, "book")],
            },
            {"role": "tool", "tool_call_id": "call-1", "content": f"seen {turn}"},
            {"role": "tool", "tool_call_id": "call-2", "content": f"booked {turn}"},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return {"id": name, "messages": messages}


def _file(folder, lengths):
    file = folder / "recordings.jsonl"
    told = [_conversation(f"talk-{n}", turns) for n, turns in enumerate(lengths)]
    file.write_bytes(b"\n".join(msgspec.json.encode(each) for each in told))
    return str(file)


@pytest.fixture
def recordings(tmp_path):
    """A file of four conversations, 14 turns in all."""
    return _file(tmp_path, [2, 3, 4, 5])


@pytest.fixture
def long_recordings(tmp_path):
    """A file of two conversations that take a while, 80 turns in all."""
    return _file(tmp_path, [40, 40])


EXPECTED = {"sessions": 4, "turns": 14, "tool_calls": 28, "messages": 70, "differences": []}
EXPECTED_LONG = {"sessions": 2, "turns": 80, "tool_calls": 160, "messages": 400, "differences": []}


def _summary(shown):
    summary = msgspec.json.decode(shown)
    assert summary.pop("seconds") > 0
    return summary


RECORDED = Path(__file__).parents[3] / "shared" / "data" / "airline-trajectories.jsonl"
PLACES = {
    "memory": ["--backend", "memory"],
    "sqlite": [],
    "dex-pull": ["--backend", "dex"],
    "dex-listening": ["--backend", "dex", "--listening"],
}


@pytest.mark.parametrize("place", PLACES)
def test_recordings_are_replayed_to_the_letter(cli, recordings, place):
    """Every turn is played, and what was stored equals what was recorded."""
    shown = cli("replay", recordings, "--reads", READS, "--json", *PLACES[place]).stdout
    assert _summary(shown) == {**EXPECTED, "backend": place.partition("-")[0]}
    assert cli.path.exists() == (place == "sqlite")


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded conversations are not here")
@pytest.mark.parametrize("place", PLACES)
def test_sixty_recorded_conversations(cli, place):
    """What was really said and done is stored to the letter, on every backend."""
    shown = cli("replay", str(RECORDED), "--json", *PLACES[place]).stdout
    summary = _summary(shown)
    assert (summary["sessions"], summary["turns"], summary["tool_calls"]) == (60, 395, 386)
    assert summary["differences"] == []


def test_a_person_reads_a_sentence(cli, recordings):
    """Without --json the summary is one sentence."""
    shown = cli("replay", recordings, "--backend", "memory").stdout
    assert shown.startswith("4 sessions, 14 turns, 28 tool calls and 70 messages on memory in ")
    assert shown.endswith(": no differences.\n")


def test_a_replay_goes_on_where_it_stands(cli, recordings):
    """A second replay of one store runs nothing again."""
    log = cli.folder / "calls.jsonl"
    for _ in range(2):
        cli("replay", recordings, "--reads", READS, "--json", "--log", str(log))
    assert len(InvocationLog(log).entries()) == EXPECTED["tool_calls"]


def test_a_killed_replay_goes_on(cli, long_recordings):
    """A replay that was killed is run again to its end; no once-only tool runs twice."""
    log = cli.folder / "calls.jsonl"
    options = ["--reads", READS, "--json", "--log", str(log), "--lease", "0.3", "--allow-unknown"]
    killed = cli.process("replay", long_recordings, *options, "--concurrency", "2")
    asyncio.run(wait_until("the first tool call", log.exists))
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    shown = cli("replay", long_recordings, *options).stdout
    assert _summary(shown) == {**EXPECTED_LONG, "backend": "sqlite"}
    keys = [each["key"] for each in InvocationLog(log).entries("book")]
    assert len(keys) == len(set(keys)) <= EXPECTED_LONG["tool_calls"] // 2


def test_a_worker_of_its_own_may_die(cli, long_recordings):
    """With --no-worker the driver lives on while workers are killed and replaced."""
    log = cli.folder / "calls.jsonl"
    settings = {
        "DEX_AGENTS_REPLAY_FILE": long_recordings,
        "DEX_AGENTS_REPLAY_LOG": str(log),
        **SETTINGS,
    }
    options = ["--reads", READS, "--json", "--no-worker", "--allow-unknown"]
    driver = cli.process("replay", long_recordings, *options)
    worker = ["worker", "dex_agents.cli.replay:flow", "--lease", "0.3", "--concurrency", "2"]
    first = cli.process(*worker, env=settings)
    asyncio.run(wait_until("the first tool call", log.exists))
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    cli.process(*worker, env=settings)
    shown, errors = driver.communicate(timeout=30)
    assert "dex-agents worker dex_agents.cli.replay:flow" in errors
    assert _summary(shown) == {**EXPECTED_LONG, "backend": "sqlite"}


def test_a_session_that_went_another_way_is_a_difference(cli, recordings):
    """A session that another message has driven is told apart, and the exit code is 1."""
    cli("replay", recordings, "--reads", READS)
    cli("send", "talk-0", "something else entirely")
    result = cli("replay", recordings, "--reads", READS, "--json", status=1)
    differences = msgspec.json.decode(result.stdout)["differences"]
    assert {each["session_id"] for each in differences} == {"talk-0"}
    assert "turn 3 failed" in differences[0]["difference"]
    shown = cli("replay", recordings, "--reads", READS, status=1).stdout
    assert "talk-0: turn 3 failed" in shown


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "another flow type"])
def test_a_session_that_cannot_go_on_is_a_difference(cli, recordings, is_stopped):
    """A session that is closed, or of another flow, does not keep the replay waiting."""
    cli("start", "talk-1", "--flow-type", "RecordedConversation" if is_stopped else "Other")
    if is_stopped:
        cli("stop", "talk-1")
    result = cli("replay", recordings, "--json", status=1)
    first = msgspec.json.decode(result.stdout)["differences"][0]
    assert first["session_id"] == "talk-1"
    assert ("is stopped" if is_stopped else "of flow type Other") in first["difference"]


def test_a_broken_file_is_named(cli):
    """A file that holds no recordings is an error that names the line."""
    file = cli.folder / "broken.jsonl"
    file.write_text('{"id": "a", "messages": []}\nnonsense\n')
    assert "line 2" in cli.fails("replay", str(file), "--backend", "memory")
    file.write_text("\n")
    assert "no recordings" in cli.fails("replay", str(file), "--backend", "memory")


@pytest.mark.parametrize("backend", ["memory", "dex"])
def test_no_worker_needs_a_store(cli, recordings, backend):
    """Nobody else could work on what ends with this process."""
    options = ["--backend", backend, "--no-worker"]
    assert "no-worker" in cli.fails("replay", recordings, *options, status=2)


def test_only_a_worker_of_dex_listens(cli, recordings):
    """--listening without Dex is refused."""
    assert "--backend dex" in cli.fails("replay", recordings, "--listening", status=2)


def test_the_flow_needs_its_file(monkeypatch):
    """The worker's flow says which variable names the recordings."""
    monkeypatch.delenv("DEX_AGENTS_REPLAY_FILE", raising=False)
    result = CliRunner().invoke(app, ["graph", "dex_agents.cli.replay:flow"])
    assert result.exit_code == 1
    assert "DEX_AGENTS_REPLAY_FILE" in result.stderr
