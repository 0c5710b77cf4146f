"""One table, three ways to run it: in memory, and on Dex with listening and with pulling workers.

Each test states what every backend must show, so what passes in memory passes on Dex.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from dex_agents.errors import (
    EncodingError,
    FlowAlreadyStartedError,
    FlowNotActiveError,
    FlowNotFoundError,
    NotLoadedError,
    RpcLockConflictError,
    StreamPositionError,
    UndeclaredError,
    UndeclaredStepError,
)
from dex_agents.table import (
    Attribute,
    Channel,
    ChannelMap,
    CloseKind,
    Decision,
    FlowTable,
    Movement,
    RetryPolicy,
    Rpc,
    RpcResult,
    Step,
    StepOptions,
    Stream,
    Timer,
    Wait,
)
from dex_agents_dex.wire import Json
from tests.dex.running import (
    ANSWERS,
    BACKENDS,
    COUNT,
    INBOX,
    ITEMS,
    LOG,
    NOTE,
    NUMBERS,
    Runs,
    done,
    flow,
    publishing,
    running,
    step,
    until,
    waiting,
)


@pytest.fixture(params=BACKENDS)
async def runs(request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    """Every backend, open."""
    async with running(request.param) as found:
        yield found


def complete(_context: Any, _given: Any) -> Decision:
    """End the flow well."""
    return Decision.graceful_complete()


# Waits


SEND = (
    publishing("send", INBOX),
    publishing("count", NUMBERS),
    Rpc(
        "answer",
        lambda context, given: RpcResult(context.publish(ANSWERS[given[0]], given[1])),
        input=tuple[str, str],
    ),
)
SHARED = INBOX.for_one()


@pytest.mark.parametrize(
    ("wait", "sent", "taken"),
    [
        (Wait.skip_immediately(), [], ((), (), ())),
        (Wait.all_of(), [], ((), (), ())),
        (Wait.until(Timer(1)), [], ((), (), ())),
        (Wait.until(Timer(0)), [], ((), (), ())),
        (Wait.until(Timer(-3)), [], ((), (), ())),
        (Wait.until(INBOX.for_one()), ["a", "b"], (("a",), (), ())),
        (Wait.until(INBOX.for_n(2)), ["a", "b", "c"], (("a", "b"), (), ())),
        (Wait.until(INBOX.for_at_least(2)), ["a", "b"], (("a", "b"), (), ())),
        (Wait.until(INBOX.for_at_most(2)), [], ((), (), ())),
        (Wait.until(ANSWERS["k/".replace("/", " ")].for_one()), [("k ", "x")], ((), (), ("x",))),
        (Wait.until(ANSWERS.for_one("k ")), [("other", "no"), ("k ", "x")], ((), (), ("x",))),
        (Wait.all_of(INBOX.for_one(), NUMBERS.for_one()), ["a", 0], (("a",), (0,), ())),
        (Wait.all_of(INBOX.for_one(), Timer(1)), ["a"], (("a",), (), ())),
        (Wait.all_of(INBOX.for_one(), INBOX.for_one()), ["a", "b"], (("a", "b"), (), ())),
        (Wait.any_of(INBOX.for_one(), NUMBERS.for_one()), [7], ((), (7,), ())),
        (Wait.any_of(NUMBERS.for_one(), INBOX.for_one(), Timer(10_000)), ["a"], (("a",), (), ())),
        (Wait.any_of(INBOX.for_one(), Timer(1)), [], ((), (), ())),
        (
            Wait.any_combination_of((SHARED, NUMBERS.for_one()), (SHARED, Timer(1))),
            ["a"],
            (("a",), (), ()),
        ),
        (
            Wait.any_combination_of((Timer(10_000),), (NUMBERS.for_n(2), SHARED)),
            ["a", -1, 2**62],
            (("a",), (-1, 2**62), ()),
        ),
    ],
    ids=str,
)
async def test_a_wait_takes_what_it_waits_for(runs, wait, sent, taken):
    """Every form of wait is ready at the same time and takes the same messages."""
    seen = []

    async def execute(context: Any, _given: Any) -> Decision:
        results = (context.results(INBOX), context.results(NUMBERS))
        seen.append((*results, context.results(ANSWERS["k "])))
        return Decision.graceful_complete()

    table = flow(waiting(wait, execute), rpcs=SEND)
    async with runs.serving(table):
        flow_id = await runs.start(table)
        for message in sent:
            name = {str: "send", int: "count", tuple: "answer"}[type(message)]
            try:
                await runs.call(table, flow_id, name, message)
            except FlowNotActiveError:
                assert message == sent[-1]  # it was not waited for
        await runs.ended(flow_id)
    assert seen == [taken]


async def test_messages_that_were_not_taken_are_still_there(runs):
    """Each message goes to one execution, in order; the rest stay."""
    seen = []

    async def wait_for(_context: Any, _given: Any) -> Wait:
        return Wait.until(INBOX.for_n(2))

    async def execute(context: Any, _given: Any) -> Decision:
        seen.append((context.step_execution_id, context.results(INBOX)))
        return Decision.go_to("Wait") if len(seen) < 2 else Decision.graceful_complete()

    async def start(context: Any, _given: Any) -> Decision:
        for letter in "abcde":
            context.publish(INBOX, letter)
        return Decision.go_to("Wait")

    table = flow(step("Start", start, "Wait"), step("Wait", execute, "Wait", wait_for=wait_for))
    await runs.run(table)
    assert seen == [("Wait-1", ("a", "b")), ("Wait-2", ("c", "d"))]


async def test_what_a_wait_writes_is_seen_by_its_execute(runs):
    """``wait_for`` may write and publish too, in its own commit."""
    seen = []

    async def wait_for(context: Any, given: str) -> Wait:
        context.set(NOTE, f"waited for {given}")
        context.publish(INBOX, "from the wait")
        return Wait.until(INBOX.for_one())

    async def execute(context: Any, given: str) -> Decision:
        seen.append((given, context.get(NOTE), context.results(INBOX)))
        return Decision.graceful_complete()

    await runs.run(flow(step("Start", execute, tp=str, wait_for=wait_for)), "ä\0")
    assert seen == [("ä\0", "waited for ä\0", ("from the wait",))]


# Data


async def test_own_writes_are_seen_and_deletes_too(runs):
    """A handler sees what it wrote; another execution sees what was committed."""
    seen = []

    def look(context: Any) -> tuple[Any, ...]:
        items = context.entries(ITEMS)
        return (
            context.get(NOTE),
            context.get(COUNT),
            context.get(ITEMS["a"]),
            dict(items),
            len(items),
            "a" in items,
            sorted(items),
        )

    async def first(context: Any, _given: Any) -> Decision:
        seen.append(look(context))
        context.set(NOTE, "")
        context.set(COUNT, 0)
        context.set(ITEMS["a"], {"n": 1})
        context.set(ITEMS["b c"], {})
        context.delete(ITEMS["never"])
        seen.append(look(context))
        return Decision.go_to("Second")

    async def second(context: Any, _given: Any) -> Decision:
        seen.append(look(context))
        context.delete(NOTE)
        context.delete(ITEMS["a"])
        seen.append(look(context))
        context.set(ITEMS["a"], {"n": 2})
        context.delete(ITEMS["b c"])
        seen.append(look(context))
        return Decision.go_to("Third")

    async def third(context: Any, _given: Any) -> Decision:
        seen.append(look(context))
        return Decision.graceful_complete()

    table = flow(
        step("First", first, "Second", loads=(ITEMS,)),
        step("Second", second, "Third", loads=(ITEMS,)),
        step("Third", third, loads=(ITEMS,)),
    )
    assert (await runs.run(table)).status == "completed"
    both = ("", 0, {"n": 1}, {"a": {"n": 1}, "b c": {}}, 2, True, ["a", "b c"])
    last = (None, 0, {"n": 2}, {"a": {"n": 2}}, 1, True, ["a"])
    assert seen == [
        (None, None, None, {}, 0, False, []),
        both,
        both,
        (None, 0, None, {"b c": {}}, 1, False, ["b c"]),
        last,
        last,
    ]


async def test_only_what_is_loaded_is_seen(runs):
    """A map or instance that a row does not load is NotLoadedError, own writes or not."""
    seen: list[Any] = []

    def attempt(read: Any) -> Any:
        try:
            return read()
        except NotLoadedError as error:
            return str(error)

    async def start(context: Any, _given: Any) -> Decision:
        context.set(ITEMS["a"], {"n": 1})
        context.set(ITEMS["b"], {"n": 2})
        seen.append(attempt(lambda: context.get(ITEMS["a"])))
        return Decision.go_to_many(
            Movement("Look", options=StepOptions(loads=(ITEMS["a"],))),
        )

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(attempt(lambda: context.get(ITEMS["a"])))
        seen.append(attempt(lambda: context.get(ITEMS["b"])))
        seen.append(attempt(lambda: context.entries(ITEMS)))
        return Decision.graceful_complete()

    table = flow(step("Start", start, "Look"), step("Look", look, loads=(ITEMS,)))
    await runs.run(table)
    said = "read {}, which it does not load. Add it to the loads of its StepOptions or Rpc row."
    assert seen == [
        "Start-1 " + said.format("Items/a"),
        {"n": 1},
        "Look-1 " + said.format("Items/b"),
        "Look-1 " + said.format("Items"),
    ]


async def test_a_key_that_was_never_written_is_loaded_and_empty(runs):
    """Loading an instance that is not there gives None, not an error."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        seen.append(context.get(ITEMS["ä b%"]))
        context.set(ITEMS["ä b%"], {"n": 3})
        seen.append(context.get(ITEMS["ä b%"]))
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(dict(context.entries(ITEMS)))
        return Decision.graceful_complete()

    loads = (ITEMS["ä b%"],)
    table = flow(step("Start", start, "Look", loads=loads), step("Look", look, loads=(ITEMS,)))
    await runs.run(table)
    assert seen == [None, {"n": 3}, {"ä b%": {"n": 3}}]


STRANGERS = (
    lambda context: context.get(Attribute("Stranger", str)),
    lambda context: context.set(Attribute("Stranger", str), ""),
    lambda context: context.delete(Attribute("Stranger", str)),
    lambda context: context.publish(Channel("Stranger", str), ""),
    lambda context: context.queue_size(ChannelMap("Stranger", str)["a"]),
    lambda context: context.results(Channel("Stranger", str)),
    lambda context: context.write(Stream("Stranger", str, 1), ""),
    lambda context: context.get(Attribute("Note", int)),
)


async def test_only_what_is_declared_can_be_used(runs):
    """A row that the table does not declare is UndeclaredError, whatever is done with it."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        for use in STRANGERS:
            with pytest.raises(UndeclaredError) as caught:
                use(context)
            seen.append(str(caught.value).split(",")[0])
        return Decision.graceful_complete()

    await runs.run(flow(step("Start", start)))
    names = ["Stranger"] * 4 + ["Stranger/a"] + ["Stranger"] * 2 + ["Note"]
    assert seen == [f"Start-1 used {name}" for name in names]


async def test_an_equal_row_is_the_same_row(runs):
    """Rows are compared by value: a copy of one is as good."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        context.set(Attribute("Note", str), "copied")
        context.publish(Channel("Inbox", str), "copied")
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append((context.get(NOTE), context.queue_size(Channel("Inbox", str))))
        return Decision.graceful_complete()

    await runs.run(flow(step("Start", start, "Look"), step("Look", look)))
    assert seen == [("copied", 1)]


async def test_a_queue_has_the_size_of_when_the_handler_began(runs):
    """A handler's own messages are not counted; those it consumed are no longer there."""
    seen = []

    def sizes(context: Any) -> tuple[int, ...]:
        return tuple(map(context.queue_size, (INBOX, NUMBERS, ANSWERS["a"], ANSWERS["b"])))

    async def start(context: Any, _given: Any) -> Decision:
        context.publish(INBOX, "a")
        context.publish(INBOX, "b")
        context.publish(ANSWERS["a"], "c")
        seen.append(sizes(context))
        return Decision.go_to("Look")

    async def wait_for(context: Any, _given: Any) -> Wait:
        seen.append(sizes(context))
        return Wait.until(INBOX.for_one())

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(sizes(context))
        return Decision.graceful_complete()

    await runs.run(flow(step("Start", start, "Look"), step("Look", look, wait_for=wait_for)))
    assert seen == [(0, 0, 0, 0), (2, 0, 1, 0), (1, 0, 1, 0)]


# Failures


class OddError(Exception):
    """An error of our own."""


class BrokenError(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def quoting(error: BaseException, text: str) -> BaseException:
    """Return an error that another one caused."""
    error.__cause__ = ValueError(text)
    return error


def noted(error: Exception, text: str) -> Exception:
    """Return an error with a note."""
    error.add_note(text)
    return error


MODULE = OddError.__module__
CANCELLED = "asyncio.exceptions.CancelledError"
FAILURES: list[tuple[Any, tuple[str, str]]] = [
    (lambda: TypeError("a type"), ("a type", "TypeError")),
    (lambda: ValueError("a value"), ("a value", "ValueError")),
    (lambda: KeyError("key"), ("'key'", "KeyError")),
    (RuntimeError, ("RuntimeError", "RuntimeError")),
    (ValueError, ("ValueError", "ValueError")),
    (lambda: UnicodeError("ä 𝄞 \0"), ("ä 𝄞 \0", "UnicodeError")),
    (lambda: RuntimeError("lone \ud800"), ("lone \ufffd", "RuntimeError")),
    (lambda: ValueError("lone \ud800"), ("lone \ufffd", "ValueError")),
    (lambda: quoting(RuntimeError("outer"), "lone \ud800"), ("outer", "RuntimeError")),
    (lambda: noted(OddError("outer"), "lone \ud800"), ("outer", f"{MODULE}.OddError")),
    (lambda: quoting(asyncio.CancelledError("\ud800"), ""), ("\ufffd", CANCELLED)),
    (lambda: OddError("odd"), ("odd", f"{MODULE}.OddError")),
    (BrokenError, ("BrokenError", f"{MODULE}.BrokenError")),
    (TimeoutError, ("TimeoutError", "TimeoutError")),
    (asyncio.CancelledError, ("CancelledError", CANCELLED)),
    (lambda: asyncio.CancelledError("by me"), ("by me", CANCELLED)),
    (
        lambda: EncodingError("it", "why"),
        ("it cannot be stored: why", "dex_agents.errors.EncodingError"),
    ),
    (
        lambda: msgspec.ValidationError("not so"),
        ("not so", "msgspec.ValidationError"),
    ),
    (
        lambda: ExceptionGroup("many", [ValueError("one")]),
        ("many (1 sub-exception)", "ExceptionGroup"),
    ),
]


@pytest.mark.parametrize(("make", "told"), FAILURES, ids=[told[1] for _, told in FAILURES])
async def test_a_failure_is_told_as_it_was_raised(runs, make, told):
    """A failure route gets the error's message and type, the same on every backend."""
    seen = []

    async def fail(_context: Any, _given: Any) -> Decision:
        raise make()

    async def rescue(context: Any, given: Any) -> Decision:
        error = context.recovery_error
        seen.append((given, (error.detail, error.error_type)))
        return Decision.graceful_complete()

    options = {"retry": RetryPolicy(max_attempts=1), "failure_step": "Rescue"}
    table = flow(step("Start", fail, tp=str, **options), step("Rescue", rescue, tp=str))
    assert (await runs.run(table, "same")).status == "completed"
    assert seen == [("same", told)]


@pytest.mark.parametrize(("make", "told"), FAILURES, ids=[told[1] for _, told in FAILURES])
async def test_a_failure_without_a_route_ends_the_flow(runs, make, told):
    """A flow that has nowhere to go says what went wrong, and so does its history."""

    async def fail(_context: Any, _given: Any) -> Decision:
        raise make()

    table = flow(step("Start", fail, retry=RetryPolicy(max_attempts=1)))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        summary = await runs.ended(flow_id)
        failed = [e for e in await runs.backend.read_history(flow_id) if e.error is not None]
    assert summary.status == "failed"
    assert told[0] in (summary.failure or "")
    error_type = str(failed[0].error_type).removeprefix("builtins.")
    assert (failed[0].error, error_type, failed[0].final_attempt) == (*told, 1)


async def bad_result(_context: Any, _given: Any) -> Any:
    """Return nothing of use."""
    return "nonsense"


@pytest.mark.parametrize(
    ("make", "detail", "error_type"),
    [
        (
            lambda _c: "nonsense",
            "Start.execute must return Decision, not 'nonsense'",
            "TypeError",
        ),
        (
            lambda _c: None,
            "Start.execute must return Decision, not None",
            "TypeError",
        ),
        (
            lambda _c: Decision(),
            "Start decided nothing; return Decision.dead_end() to end a branch.",
            "ValueError",
        ),
        (
            lambda _c: Decision.go_to("Start", "x"),
            "Start may not go to Start. Add Start to its next_steps, or go elsewhere.",
            "dex_agents.errors.UndeclaredStepError",
        ),
        (
            lambda _c: Decision.go_to("Rescue", 5),
            "input of Rescue cannot be stored: it holds str, not int",
            "dex_agents.errors.EncodingError",
        ),
        (
            lambda c: c.set(NOTE, 5),
            "Note cannot be stored: it holds str, not int",
            "dex_agents.errors.EncodingError",
        ),
        (
            lambda c: c.publish(NUMBERS, "5"),
            "Numbers cannot be stored: it holds int, not str",
            "dex_agents.errors.EncodingError",
        ),
        (
            lambda c: c.write(LOG, None),
            "logs/Log cannot be stored: it holds str, not NoneType",
            "dex_agents.errors.EncodingError",
        ),
        (
            lambda _c: Decision.graceful_complete({"a": object()}),
            "output of Start cannot be stored: Encoding objects of type object is unsupported",
            "dex_agents.errors.EncodingError",
        ),
        (
            lambda c: c.get(ITEMS["a/b"]),
            "'a/b' cannot be a key of Items: it is blank or holds a '/'.",
            "ValueError",
        ),
    ],
)
async def test_a_handler_at_fault_is_told_so(runs, make, detail, error_type):
    """What a handler does wrong fails its attempt with the same words everywhere."""
    seen = []

    async def fail(context: Any, _given: Any) -> Any:
        return make(context)

    async def rescue(context: Any, _given: Any) -> Decision:
        seen.append((context.recovery_error.detail, context.recovery_error.error_type))
        return Decision.graceful_complete()

    options = {"retry": RetryPolicy(max_attempts=1), "failure_step": "Rescue"}
    table = flow(step("Start", fail, "Rescue", tp=str, **options), step("Rescue", rescue, tp=str))
    await runs.run(table, "")
    assert seen == [(detail, error_type)]


async def test_a_wait_at_fault_is_told_so(runs):
    """``wait_for`` must return a Wait; its failure fails the flow."""
    table = flow(step("Start", bad_result, wait_for=bad_result, retry=RetryPolicy(max_attempts=1)))
    summary = await runs.run(table)
    assert summary.status == "failed"
    assert "Start.wait_for must return Wait, not 'nonsense'" in (summary.failure or "")


async def test_attempts_are_counted_and_apart(runs):
    """A failed attempt changes nothing; the next has the next number, no sooner than said."""
    seen: list[tuple[int, str | None, int]] = []
    times = []

    async def start(context: Any, _given: Any) -> Decision:
        times.append(context.now())
        seen.append((context.attempt, context.get(NOTE), context.queue_size(INBOX)))
        context.set(NOTE, f"attempt {context.attempt}")
        context.publish(INBOX, "kept only by the last")
        if context.attempt < 4:
            raise OddError
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append((context.attempt, context.get(NOTE), context.queue_size(INBOX)))
        return Decision.graceful_complete()

    retry = RetryPolicy(max_attempts=4, initial_seconds=1, coefficient=2, max_seconds=2)
    await runs.run(flow(step("Start", start, "Look", retry=retry), step("Look", look)))
    assert seen == [(1, None, 0), (2, None, 0), (3, None, 0), (4, None, 0), (1, "attempt 4", 1)]
    scale = 1.0 if runs.kind == "memory" else 0.05
    gaps = [(later - earlier) / scale for earlier, later in pairwise(times)]
    assert [gap >= least - 0.05 for gap, least in zip(gaps, (1, 2, 2), strict=True)] == [True] * 3


async def test_a_failure_route_has_options_of_its_own(runs):
    """The route runs with the options that the failing row gives it: loads and retries."""
    seen: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        context.set(ITEMS["a"], {"n": 1})
        return Decision.go_to("Fail")

    async def fail(_context: Any, _given: Any) -> Decision:
        raise OddError("first")

    async def rescue(context: Any, _given: Any) -> Decision:
        seen.append((context.attempt, context.get(ITEMS["a"]), context.recovery_error.detail))
        if context.attempt == 1:
            raise OddError("second")
        with pytest.raises(NotLoadedError):
            context.entries(ITEMS)
        return Decision.graceful_complete()

    route = StepOptions(loads=(ITEMS["a"],), retry=RetryPolicy(max_attempts=2, initial_seconds=1))
    once = RetryPolicy(max_attempts=1)
    table = flow(
        step("Start", start, "Fail"),
        step("Fail", fail, retry=once, failure_step="Rescue", failure_options=route),
        step("Rescue", rescue, retry=once),
    )
    assert (await runs.run(table)).status == "completed"
    assert seen == [(1, {"n": 1}, "first"), (2, {"n": 1}, "first")]


async def test_a_movement_may_bring_its_own_failure_route(runs):
    """Options of a movement replace the row's whole, the failure route too."""
    seen = []

    async def start(_context: Any, _given: Any) -> Decision:
        once = StepOptions(retry=RetryPolicy(max_attempts=1), failure_step="Other")
        return Decision.go_to("Fail", "x", once)

    async def fail(_context: Any, _given: str) -> Decision:
        raise OddError("why")

    async def rescue(context: Any, given: str) -> Decision:
        seen.append((context.step_execution_id, given, context.recovery_error.detail))
        return Decision.graceful_complete()

    table = flow(
        step("Start", start, "Fail", "Other"),
        step("Fail", fail, tp=str, failure_step="Rescue"),
        step("Rescue", rescue, tp=str),
        step("Other", rescue, tp=str),
    )
    await runs.run(table)
    assert seen == [("Other-1", "x", "why")]


# Ends and fan-out


async def test_movements_run_in_parallel_and_cancellation_ends_them(runs):
    """Steps of one decision run side by side; a decision may cancel Steps by name."""
    events: list[str] = []
    both = asyncio.Event()

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.go_to_many(Movement("Slow", 1), Movement("Slow", 2), Movement("Quick"))

    async def slow(context: Any, given: int) -> Decision:
        events.append(f"{context.step_execution_id} {given}")
        if len(events) == 2:
            both.set()
        with context.keep_alive(1):
            await asyncio.Event().wait()
        return Decision.dead_end()

    async def quick(_context: Any, _given: Any) -> Decision:
        await both.wait()
        return Decision.graceful_complete().canceling("Slow")

    table = flow(
        step("Start", start, "Slow", "Quick"),
        step("Slow", slow, tp=int),
        step("Quick", quick),
    )
    assert (await runs.run(table)).status == "completed"
    assert sorted(events) == ["Slow-1 1", "Slow-2 2"]


async def test_only_siblings_are_cancelled(runs):
    """Cancelling siblings leaves alone what another execution scheduled."""
    left: list[str] = []

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.go_to_many(Movement("Fork"), Movement("Wait", "cousin"))

    async def fork(_context: Any, _given: Any) -> Decision:
        return Decision.go_to_many(Movement("Wait", "sibling"), Movement("Cancel"))

    async def cancel(_context: Any, _given: Any) -> Decision:
        return Decision(close=CloseKind.DEAD_END, cancel_sibling_steps=("Wait",))

    async def wait_for(_context: Any, _given: str) -> Wait:
        return Wait.until(Timer(20))

    async def wait(_context: Any, given: str) -> Decision:
        left.append(given)
        return Decision.graceful_complete()

    table = flow(
        step("Start", start, "Fork", "Wait"),
        step("Fork", fork, "Wait", "Cancel"),
        step("Cancel", cancel),
        step("Wait", wait, tp=str, wait_for=wait_for),
    )
    assert (await runs.run(table)).status == "completed"
    assert left == ["cousin"]


@pytest.mark.parametrize(
    ("decision", "status", "failure"),
    [
        (Decision.graceful_complete(), "completed", None),
        (Decision.graceful_complete({"a": [1, None]}), "completed", None),
        (Decision.force_complete("out"), "completed", None),
        (Decision.force_fail("because ä"), "failed", "because ä"),
        (Decision.force_fail(""), "failed", ""),
    ],
)
async def test_a_decision_ends_the_flow(runs, decision, status, failure):
    """Every end has the same status and reason on every backend."""

    async def start(_context: Any, _given: Any) -> Decision:
        return decision

    summary = await runs.run(flow(step("Start", start)))
    assert (summary.status, summary.failure) == (status, failure)


async def test_a_graceful_end_waits_for_the_other_branches(runs):
    """The flow completes when no Step is left; a forced end does not wait."""
    seen = []

    async def start(_context: Any, given: str) -> Decision:
        return Decision.go_to_many(Movement("End", given), Movement("Late"))

    async def end(_context: Any, given: str) -> Decision:
        return Decision.force_complete() if given else Decision.graceful_complete()

    async def wait_for(_context: Any, _given: Any) -> Wait:
        return Wait.until(Timer(10))

    async def late(_context: Any, _given: Any) -> Decision:
        seen.append("late")
        return Decision.dead_end()

    table = flow(
        step("Start", start, "End", "Late", tp=str),
        step("End", end, tp=str),
        step("Late", late, wait_for=wait_for),
    )
    assert (await runs.run(table, "force")).status == "completed"
    assert seen == []
    assert (await runs.run(table, "")).status == "completed"
    assert seen == ["late"]


async def test_a_dead_end_leaves_the_flow_running(runs):
    """A branch that ends goes nowhere; an RPC may start the next one."""

    def go_on(_context: Any, given: int) -> RpcResult[int]:
        return RpcResult(given + 1, (Movement("Done"),))

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.dead_end()

    table = flow(
        step("Start", start, "Done"),
        done(),
        rpcs=(Rpc("go_on", go_on, input=int, output=int, next_steps=("Done",)),),
    )
    async with runs.serving(table):
        flow_id = await runs.start(table)
        assert (await runs.backend.describe_flow(flow_id)).status == "running"
        assert await runs.call(table, flow_id, "go_on", 41) == 42
        assert (await runs.ended(flow_id)).status == "completed"


# RPCs


def look(context: Any, _given: Any) -> RpcResult[dict[str, Any]]:
    """Return what can be seen."""
    note, items = context.get(NOTE), dict(context.entries(ITEMS))
    return RpcResult({"note": note, "items": items, "inbox": context.queue_size(INBOX)})


def write(context: Any, given: str) -> RpcResult[bool]:
    """Write, publish, and see it."""
    context.set(NOTE, given)
    context.set(ITEMS[given], {"n": len(given)})
    context.publish(INBOX, given)
    return RpcResult(context.get(NOTE) == given)


def clear(context: Any, _given: Any) -> RpcResult[None]:
    """Delete everything."""
    context.delete(NOTE)
    for key in list(context.entries(ITEMS)):
        context.delete(ITEMS[key])
    return RpcResult(None)


def refuse(context: Any, given: str) -> RpcResult[None]:
    """Write, and then fail."""
    context.set(NOTE, "half")
    context.publish(INBOX, "half")
    raise OddError(given)


def pry(context: Any, _given: Any) -> RpcResult[None]:
    """Read what is not loaded."""
    return RpcResult(context.get(ITEMS["a"]))


LOOK = Rpc("look", look, output=dict[str, Any], is_read_only=True, loads=(ITEMS,))
RPCS = (
    LOOK,
    Rpc("write", write, input=str, output=bool),
    Rpc("clear", clear, loads=(ITEMS,)),
    Rpc("refuse", refuse, input=str),
    Rpc("pry", pry, is_read_only=True),
    Rpc("lost", lambda _context, _given: RpcResult(None, (Movement("Idle"),))),
    Rpc("echo", lambda _c, given: RpcResult(given), input=str | None, output=str | None),
)


async def idle(_context: Any, _given: Any) -> Decision:
    """End the branch, and leave the flow open."""
    return Decision.dead_end()


OPEN = flow(step("Idle", idle), rpcs=RPCS)


async def test_rpcs_read_and_change_a_flow(runs):
    """What an RPC writes and publishes is committed with its answer, and seen by the next."""
    async with runs.serving(OPEN):
        flow_id = await runs.start(OPEN)
        empty = {"note": None, "items": {}, "inbox": 0}
        assert await runs.call(OPEN, flow_id, "look") == empty
        assert await runs.call(OPEN, flow_id, "write", "abc") is True
        found = {"note": "abc", "items": {"abc": {"n": 3}}, "inbox": 1}
        assert await runs.call(OPEN, flow_id, "look") == found
        assert await runs.call(OPEN, flow_id, "clear") is None
        assert await runs.call(OPEN, flow_id, "look") == {**empty, "inbox": 1}
        for text in (None, "", "ä\0"):
            assert await runs.call(OPEN, flow_id, "echo", text) == text


async def test_an_rpc_that_raises_changes_nothing(runs):
    """The caller learns the error's type and message; the flow stays as it was."""
    async with runs.serving(OPEN):
        flow_id = await runs.start(OPEN)
        await runs.call(OPEN, flow_id, "write", "before")
        with pytest.raises(Exception, match="no, ä"):
            await runs.call(OPEN, flow_id, "refuse", "no, ä")
        with pytest.raises(Exception, match="pry read Items/a, which it does not load"):
            await runs.call(OPEN, flow_id, "pry")
        with pytest.raises(Exception, match="lost may not go to Idle"):
            await runs.call(OPEN, flow_id, "lost")
        found = await runs.call(OPEN, flow_id, "look")
        assert (found["note"], found["inbox"]) == ("before", 1)


@pytest.mark.parametrize(("rpc", "given"), [("write", 5), ("write", None), ("look", "x")])
async def test_an_rpc_takes_what_its_row_says(runs, rpc, given):
    """Another input is refused before anything is called."""
    async with runs.serving(OPEN):
        flow_id = await runs.start(OPEN)
        with pytest.raises(EncodingError, match=f"input of {rpc}"):
            await runs.call(OPEN, flow_id, rpc, given)


async def test_an_rpc_that_only_reads_changes_nothing(runs):
    """What a read-only RPC writes is not kept: dropped, or refused with an error."""

    def scribble(context: Any, _given: Any) -> RpcResult[None]:
        context.set(NOTE, "scribbled")
        return RpcResult(None)

    table = flow(step("Idle", idle), rpcs=(LOOK, Rpc("scribble", scribble, is_read_only=True)))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await runs.call(table, flow_id, "scribble")
        assert (await runs.call(table, flow_id, "look"))["note"] is None


async def test_a_lock_that_a_step_holds_is_a_conflict(runs):
    """An RPC that wants it fails and changes nothing, until the Step is done."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def hold(_context: Any, _given: Any) -> Decision:
        begun.set()
        await go.wait()
        return Decision.dead_end()

    def claim(context: Any, given: str) -> RpcResult[None]:
        context.set(NOTE, given)
        return RpcResult(None)

    table = flow(
        step("Hold", hold, locks=(NOTE,)),
        rpcs=(LOOK, Rpc("claim", claim, input=str, locks=(NOTE, NOTE))),
    )
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await begun.wait()
        with pytest.raises(RpcLockConflictError):
            await runs.call(table, flow_id, "claim", "too early")
        go.set()

        async def claimed() -> bool:
            try:
                await runs.call(table, flow_id, "claim", "mine")
            except RpcLockConflictError:
                return False
            return True

        await until(claimed)
        assert (await runs.call(table, flow_id, "look"))["note"] == "mine"


# Liveness


async def test_a_silent_attempt_is_dead_and_one_that_is_kept_alive_is_not(runs):
    """Without a sign of life the next attempt begins; a kept-alive one goes on."""
    attempts: list[tuple[str, int]] = []

    async def start(context: Any, _given: Any) -> Decision:
        attempts.append(("Start", context.attempt))
        if context.attempt == 1:
            await asyncio.sleep(30)
        return Decision.go_to("Kept")

    async def kept(context: Any, _given: Any) -> Decision:
        attempts.append(("Kept", context.attempt))
        with context.keep_alive(0.1):
            await asyncio.sleep(3)  # the timeout, on these fast clocks, is two seconds
        await context.heartbeat()
        return Decision.graceful_complete()

    options = {"heartbeat_timeout": 40.0, "retry": RetryPolicy(max_attempts=2)}
    table = flow(step("Start", start, "Kept", **options), step("Kept", kept, **options))
    assert (await runs.run(table)).status == "completed"
    assert attempts == [("Start", 1), ("Start", 2), ("Kept", 1)]


# Streams


async def test_a_stream_is_written_from_any_thread_and_read_by_position(runs):
    """Messages keep their order; a position reads on behind it; a late write does no harm."""
    late: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        late.append(context)
        context.write(LOG, "1 ä\0")
        thread = threading.Thread(target=lambda: context.write(LOG, "2 thread"))
        thread.start()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)
        context.write(LOG, "3")
        return Decision.go_to("Done")

    table = flow(step("Start", start, "Done"), done())
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await runs.ended(flow_id)

        async def written() -> Any:
            found = await runs.stream(table, flow_id)
            return found if len(found) == 3 else None

        found = await until(written)
        assert [message.value for message in found] == ["1 ä\0", "2 thread", "3"]
        for i, message in enumerate(found):
            rest = await runs.stream(table, flow_id, message.position)
            assert rest == found[i + 1 :]
        assert await runs.stream(table, flow_id, "") == found
        late[0].write(LOG, "late")
        await asyncio.to_thread(late[0].write, LOG, "late")
        assert (await runs.stream(table, flow_id))[:3] == found


async def test_a_position_that_was_never_given_is_an_error(runs):
    """Nonsense is StreamPositionError, with messages in the Stream and without."""

    async def start(context: Any, given: str) -> Decision:
        if given:
            context.write(LOG, given)
        return Decision.graceful_complete()

    table = flow(step("Start", start, tp=str))
    async with runs.serving(table):
        for text in ("", "something"):
            flow_id = await runs.start(table, text)
            await runs.ended(flow_id)
            for follow in (False, True):
                reading = runs.backend.read_stream(
                    table, flow_id, LOG.name, "nonsense", follow=follow
                )
                with pytest.raises(StreamPositionError, match="nonsense"):
                    async for _ in reading:
                        pass


async def test_following_a_stream_ends_with_the_flow(runs):
    """A reader sees each message as it comes, and the end."""
    table = flow(
        step("Start", idle),
        step("Say", None, tp=str),
        rpcs=(
            Rpc(
                "say",
                lambda _c, given: RpcResult(None, (Movement("Say", given),)),
                input=str,
                next_steps=("Say",),
            ),
        ),
    )

    async def say(context: Any, given: str) -> Decision:
        context.write(LOG, given)
        return Decision.graceful_complete() if given == "end" else Decision.dead_end()

    table = flow(table.steps[0], step("Say", say, tp=str), rpcs=table.rpcs)
    async with runs.serving(table):
        flow_id = await runs.start(table)
        seen = []
        await runs.call(table, flow_id, "say", "one")
        async for message in runs.backend.read_stream(table, flow_id, LOG.name, None, follow=True):
            seen.append(message.value)
            if message.value == "one":
                await runs.call(table, flow_id, "say", "end")
    assert seen == ["one", "end"]


async def test_a_stream_is_trimmed_to_its_capacity_from_the_old_end(runs):
    """Whatever is kept, the newest is; a position that was trimmed away reads what is left."""

    async def start(context: Any, given: str) -> Decision:
        for i in range(12):
            context.write(LOG, f"{i} " + given * 2000)
        return Decision.graceful_complete()

    table = flow(step("Start", start, tp=str))
    async with runs.serving(table):
        flow_id = await runs.start(table, "x")
        await runs.ended(flow_id)

        async def whole() -> Any:
            found = await runs.stream(table, flow_id)
            return found if found and found[-1].value.startswith("11 ") else None

        found = await until(whole)
    assert 1 <= len(found) <= 6
    numbers = [int(message.value.split()[0]) for message in found]
    assert numbers == list(range(12))[-len(numbers) :]


# Flows that are not there, or not any more


async def test_an_id_is_started_once(runs):
    """The same ID cannot be started again, running or closed."""
    table, still_open = flow(done()), flow(step("Idle", idle), name="Open")
    async with runs.serving(table, still_open):
        flow_id = await runs.start(still_open)
        with pytest.raises(FlowAlreadyStartedError, match=flow_id):
            await runs.backend.start_flow(still_open, flow_id, None)
        closed = await runs.start(table)
        await runs.ended(closed)
        with pytest.raises(FlowAlreadyStartedError, match=closed):
            await runs.backend.start_flow(table, closed, None)


@pytest.mark.parametrize("flow_id", ["nobody", "", " ", "ä b"])
async def test_a_flow_that_was_never_started_is_not_found(runs, flow_id):
    """Every call says so, for IDs that no flow can have too."""
    async with runs.serving(OPEN):
        for rpc in ("look", "clear"):
            with pytest.raises(FlowNotFoundError):
                await runs.call(OPEN, flow_id, rpc)
        with pytest.raises(FlowNotFoundError):
            await runs.backend.describe_flow(flow_id)
        with pytest.raises(FlowNotFoundError):
            await runs.backend.read_history(flow_id)
        with pytest.raises(FlowNotFoundError):
            await runs.backend.stop_flow(flow_id, "")
        with pytest.raises(FlowNotFoundError):
            await runs.stream(OPEN, flow_id)


async def test_a_stopped_flow_stays_readable_and_changes_no_more(runs):
    """Read-only RPCs and reading go on; all else is FlowNotActiveError."""
    async with runs.serving(OPEN):
        flow_id = await runs.start(OPEN)
        await runs.call(OPEN, flow_id, "write", "kept")
        await runs.backend.stop_flow(flow_id, "enough ä")
        summary = await runs.ended(flow_id)
        assert summary.status == "stopped"
        assert (await runs.call(OPEN, flow_id, "look"))["note"] == "kept"
        for call in (
            runs.call(OPEN, flow_id, "write", "more"),
            runs.backend.stop_flow(flow_id, "again"),
        ):
            with pytest.raises(FlowNotActiveError, match="is stopped"):
                await call
        assert await runs.stream(OPEN, flow_id) == []


async def test_a_completed_flow_stays_readable(runs):
    """A flow that ended by itself answers like one that was stopped."""
    table = flow(done(), rpcs=(LOOK, RPCS[1]))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await runs.ended(flow_id)
        assert (await runs.call(table, flow_id, "look"))["note"] is None
        with pytest.raises(FlowNotActiveError, match="is completed"):
            await runs.call(table, flow_id, "write", "more")


async def test_flows_are_listed_oldest_first(runs):
    """Every flow is listed with its status."""
    async with runs.serving(OPEN):
        ids = [await runs.start(OPEN) for _ in range(3)]
        await runs.backend.stop_flow(ids[1], "")
        await runs.ended(ids[1])
        found = [(each.flow_id, each.status) for each in await runs.backend.list_flows()]
    assert found == [(ids[0], "running"), (ids[1], "stopped"), (ids[2], "running")]


async def test_history_tells_what_ran(runs):
    """Each Step method that ended is one entry, with what scheduled it."""

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.go_to("Done")

    table = flow(step("Start", start, "Done"), done())
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await runs.ended(flow_id)
        history = await runs.backend.read_history(flow_id)
    ran = [
        (e.event_type, e.step_type, e.step_execution_id, e.final_attempt)
        for e in history
        if e.event_type == "step_execute_completed"
    ]
    assert ran == [
        ("step_execute_completed", "Start", "Start-1", 1),
        ("step_execute_completed", "Done", "Done-1", 1),
    ]


async def test_an_input_of_any_type_arrives(runs):
    """A start input and a movement's input are decoded to their row's type."""
    seen: list[Any] = []

    class Order(msgspec.Struct, frozen=True):
        """Something structured."""

        items: tuple[int, ...]
        note: str | None = None

    async def start(_context: Any, given: Order) -> Decision:
        seen.append(given)
        return Decision.go_to_many(
            Movement("Text", "\ufffd"), Movement("Flag", False), Movement("Maybe", None)
        )

    async def keep(_context: Any, given: Any) -> Decision:
        seen.append(given)
        return Decision.graceful_complete()

    table = flow(
        step("Start", start, "Text", "Flag", "Maybe", tp=Order),
        step("Text", keep, tp=str),
        step("Flag", keep, tp=bool),
        Step("Maybe", keep, input=int | None),
    )
    await runs.run(table, Order((1, 2**70)))
    assert seen[0] == Order((1, 2**70))
    assert sorted(map(repr, seen[1:])) == ["'\ufffd'", "False", "None"]
    with pytest.raises(EncodingError, match="input of Start"):
        await runs.start(table, "no order")


async def test_an_undeclared_target_names_both_steps(runs):
    """A decision's target must be declared; the error tells how to mend it."""
    seen = []

    async def start(context: Any, _given: Any) -> Decision:
        if context.attempt == 1:
            seen.append(context.attempt)
            return Decision.go_to_many(Movement("Done"), Movement("Hidden"))
        return Decision.go_to("Done")

    table = flow(
        step("Start", start, "Done", retry=RetryPolicy(initial_seconds=1)),
        done(next_steps=("Hidden",)),
        step("Hidden", idle),
    )
    assert (await runs.run(table)).status == "completed"
    assert seen == [1]
    with pytest.raises(UndeclaredStepError):
        table.require_decision(table.start_step, Decision.go_to("Hidden"))


KEYS = ("a", ".", "..", "%", "%2F", "a b", "ä", "語", "\0", "'", "+", "a:b", "-" * 200)


async def test_any_key_names_one_instance(runs):
    """Keys of maps are any text without a slash, and come back as they were given."""
    seen: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        for i, key in enumerate(KEYS):
            context.set(ITEMS[key], {key: i})
            context.publish(ANSWERS[key], key)
        return Decision.go_to("Look")

    async def wait_for(context: Any, _given: Any) -> Wait:
        seen.append([context.queue_size(ANSWERS[key]) for key in KEYS])
        return Wait.all_of(*(ANSWERS[key].for_one() for key in KEYS))

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(dict(context.entries(ITEMS)))
        seen.append([context.results(ANSWERS[key]) for key in KEYS])
        return Decision.go_to("Each", options=StepOptions(loads=tuple(ITEMS[k] for k in KEYS)))

    async def each(context: Any, _given: Any) -> Decision:
        seen.append([context.get(ITEMS[key]) for key in KEYS])
        return Decision.graceful_complete()

    table = flow(
        step("Start", start, "Look"),
        step("Look", look, "Each", wait_for=wait_for, loads=(ITEMS,)),
        step("Each", each),
    )
    await runs.run(table)
    stored = {key: {key: i} for i, key in enumerate(KEYS)}
    assert seen == [[1] * len(KEYS), stored, [(key,) for key in KEYS], list(stored.values())]


async def test_a_map_is_in_the_order_of_its_keys(runs):
    """Whatever order instances were written in, a handler sees them sorted by name."""
    seen: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        for key in ("10", "b", "9", "a", "B"):
            context.set(ITEMS[key], {})
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(list(context.entries(ITEMS)))
        context.set(ITEMS["0"], {})
        seen.append(list(context.entries(ITEMS)))
        return Decision.graceful_complete()

    table = flow(step("Start", start, "Look"), step("Look", look, loads=(ITEMS,)))
    await runs.run(table)
    stored = ["10", "9", "B", "a", "b"]
    assert seen == [stored, ["0", *stored]]


MAYBE = Channel("Maybe", str | None)
FLAGS = Channel("Flags", bool)
EVENTS = Stream("Events", dict[str, Any] | None, 10_000)
FLAG = Attribute("Flag", bool)
PRICE = Attribute("Price", float | None)


async def test_nothing_and_false_are_values_too(runs):
    """None in a message, False and 0.0 are told from no value at all."""
    seen: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        seen.append((context.get(FLAG), context.get(PRICE)))
        context.set(FLAG, value=False)
        context.set(PRICE, 0.0)
        for message in (None, "", None):
            context.publish(MAYBE, message)
        context.publish(FLAGS, message=False)
        context.write(EVENTS, None)
        context.write(EVENTS, {})
        return Decision.go_to("Look")

    async def wait_for(_context: Any, _given: Any) -> Wait:
        return Wait.all_of(MAYBE.for_n(3), FLAGS.for_one())

    async def look(context: Any, _given: Any) -> Decision:
        seen.append((context.get(FLAG), context.get(PRICE)))
        seen.append((context.results(MAYBE), context.results(FLAGS)))
        context.set(PRICE, None)
        seen.append(context.get(PRICE))
        return Decision.graceful_complete()

    table = FlowTable(
        "Flow",
        (step("Start", start, "Look"), step("Look", look, wait_for=wait_for)),
        (),
        (MAYBE, FLAGS, EVENTS, FLAG, PRICE),
    )
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await runs.ended(flow_id)

        async def written() -> Any:
            reading = runs.backend.read_stream(table, flow_id, "Events", None, follow=False)
            found = [message.value async for message in reading]
            return found if len(found) == 2 else None

        assert await until(written) == [None, {}]
    assert seen == [(None, None), (False, 0.0), ((None, "", None), (False,)), None]


async def test_deep_values_travel_from_a_handler(runs):
    """Nesting to the depth that may be stored works inside a Step, as deep as its stack is."""
    seen: list[Any] = []
    deep: Any = []
    for _ in range(250):
        deep = [deep]

    async def start(context: Any, _given: Any) -> Decision:
        context.set(DEEP, {"deep": deep})
        return Decision.go_to("Look")

    async def look(context: Any, _given: Any) -> Decision:
        seen.append(context.get(DEEP) == {"deep": deep})
        return Decision.graceful_complete()

    table = FlowTable("Flow", (step("Start", start, "Look"), step("Look", look)), (), (DEEP,))
    assert (await runs.run(table)).status == "completed"
    assert seen == [True]


DEEP = Attribute("Deep", dict[str, Any])


async def test_a_value_far_too_deep_fails_its_attempt(runs):
    """Nesting that no stack can hold is an error of the attempt, not of the worker."""

    async def start(context: Any, _given: Any) -> Decision:
        deep: Any = []
        for _ in range(50_000):
            deep = [deep]
        context.set(DEEP, {"deep": deep})
        return Decision.graceful_complete()

    table = FlowTable(
        "Flow", (step("Start", start, retry=RetryPolicy(max_attempts=1)),), (), (DEEP,)
    )
    summary = await runs.run(table)
    assert summary.status == "failed"
    assert "recursion" in str(summary.failure)


async def test_a_block_that_outlives_its_attempt_does_no_harm(runs, caplog):
    """A keep-alive that nobody ended is silent after its attempt."""
    blocks: list[Any] = []

    async def start(context: Any, _given: Any) -> Decision:
        block = context.keep_alive(0.02)
        block.__enter__()
        blocks.append(block)
        return Decision.go_to("Done")

    table = flow(step("Start", start, "Done"), done())
    async with runs.serving(table):
        await runs.ended(await runs.start(table))
        await asyncio.sleep(0.1)
        blocks[0].__exit__(None, None, None)
    del blocks[0]
    gc.collect()
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_attempt_that_is_cancelled_from_outside_is_no_failure(runs):
    """Stopping a flow cancels its handler, which may clean up."""
    events: list[str] = []
    begun = asyncio.Event()

    async def start(context: Any, _given: Any) -> Decision:
        try:
            begun.set()
            with context.keep_alive(0.5):
                await asyncio.sleep(30)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return Decision.dead_end()

    table = flow(step("Start", start))
    async with runs.serving(table):
        flow_id = await runs.start(table)
        await begun.wait()
        await runs.backend.stop_flow(flow_id, "enough")
        assert (await runs.ended(flow_id)).status == "stopped"
        await until(lambda: events)
        history = await runs.backend.read_history(flow_id)
    assert events == ["cancelled"]
    assert [e for e in history if e.step_type and e.error is not None] == []


async def test_many_flows_run_at_once(runs):
    """Thirty flows of two tables, each with a fan-out, all end well."""
    seen: list[int] = []

    async def start(_context: Any, given: int) -> Decision:
        return Decision.go_to_many(*(Movement("Work", given * 10 + i) for i in range(3)))

    async def work(_context: Any, given: int) -> Decision:
        seen.append(given)
        return Decision.graceful_complete()

    steps = (step("Start", start, "Work", tp=int), step("Work", work, tp=int))
    one, two = flow(*steps, name="One"), flow(*steps, name="Two")
    async with runs.serving(one, two):
        ids = [await runs.start((one, two)[i % 2], i) for i in range(30)]
        ended = await asyncio.gather(*(runs.ended(each) for each in ids))
    assert {each.status for each in ended} == {"completed"}
    assert sorted(seen) == sorted(i * 10 + j for i in range(30) for j in range(3))


@pytest.mark.parametrize("kind", ["listening", "pull"])
async def test_the_output_of_a_flow_is_read_with_the_sdk(kind):
    """On Dex, what a flow completed with is its output for any client."""

    async def start(_context: Any, _given: Any) -> Decision:
        return Decision.graceful_complete({"a": [1, None, "ä"]})

    async with running(kind) as runs:
        table = flow(step("Start", start))
        async with runs.serving(table):
            flow_id = await runs.start(table)
            await runs.ended(flow_id)
            result = await runs.backend._server_client.wait_for_flow(flow_id)
    assert result.single_output(Json).value == {"a": [1, None, "ä"]}
