"""Three workers that are killed, frozen and stopped at random, and a client that sends on."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter

import pytest

SECONDS = 8.0
SESSIONS = 30
KINDS = ("keyed", "once", "reads", "chat")


async def disturb(workshop, chance: random.Random) -> None:
    """Kill, freeze or stop one of three workers again and again; a new one takes its place."""
    workers = [await workshop.start_worker() for _ in range(3)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        place = chance.randrange(3)
        kind = chance.choice(("kill", "kill", "stop", "freeze"))
        if kind == "freeze":
            workers[place].signal(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            workers[place].signal(signal.SIGCONT)
            continue
        workers[place].signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        await workers[place].wait()
        workers[place] = await workshop.start_worker()


async def talk(workshop, chance: random.Random) -> Counter[str]:
    """Start sessions and send to any of them; return how many messages each was sent."""
    sent: Counter[str] = Counter()
    for number in range(SESSIONS):
        name = f"{chance.choice(KINDS)}-{number}"
        await workshop.sessions.start_session(name, "m0")
        sent[name] = 1
        for target in chance.choices(list(sent), k=chance.randrange(3)):
            await workshop.sessions.send_user_message(target, f"m{sent[target]}")
            sent[target] += 1
        await asyncio.sleep(SECONDS / SESSIONS)
    return sent


@pytest.mark.timeout(120)
async def test_sessions_survive_a_bad_day(workshop):
    """No message is lost or doubled, no once-only effect repeats, every call has one result."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    _, sent = await asyncio.gather(
        disturb(workshop, random.Random(seed)), talk(workshop, random.Random(seed + 1))
    )

    for name, turns in sent.items():
        await workshop.settled(name, turns)
        messages = (await workshop.sessions.list_agent_messages(name, limit=200)).messages
        assert [m.sequence for m in messages] == list(range(1, len(messages) + 1))
        asked = [m.text for m in messages if m.role == "user" and not m.text.startswith("[Dex]")]
        assert asked == [f"m{n}" for n in range(turns)]
        calls = sum(len(m.framework_item.get("tool_calls") or ()) for m in messages)
        assert sum(m.role == "tool" for m in messages) == calls
        ended = [
            each.step_execution_id
            for each in await workshop.sessions.read_history(name)
            if each.event_type in ("step_execute_completed", "step_execute_failed")
        ]
        assert len(set(ended)) == len(ended)
    once = Counter(effect["key"] for effect in workshop.effects("once_write"))
    assert set(once.values()) <= {1}
