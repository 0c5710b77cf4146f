"""Promises of `dex_agents_dex.compiler`: any table becomes the Flow that an author would write."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import dex
import pytest
from dex._value_mapper import ValueMapper
from dex._worker_dispatcher import WorkerDispatcher
from dex.dexpb import dex_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from dex_agents.errors import (
    EncodingError,
    FlowDefinitionError,
    UndeclaredError,
    UndeclaredStepError,
)
from dex_agents.table import (
    Attribute,
    AttributeMap,
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
from dex_agents_dex import CompiledFlow, compile_flow
from dex_agents_dex.decisions import Translator
from dex_agents_dex.wire import MAX_BYTES, Json
from tests.dex.running import ANSWERS, COUNT, INBOX, ITEMS, LOG, NOTE, NUMBERS, flow, step


async def end(_context: Any, _given: Any) -> Decision:
    """End the branch."""
    return Decision.dead_end()


async def skip(_context: Any, _given: Any) -> Wait:
    """Do not wait."""
    return Wait.skip_immediately()


def answer(_context: Any, _given: Any) -> RpcResult[None]:
    """Answer nothing."""
    return RpcResult(None)


class Mapped:
    """A compiled table, and what the SDK makes of it for the wire."""

    def __init__(self, table: FlowTable) -> None:
        self.flow = compile_flow(table)
        registry = dex.Registry([self.flow], allow_async_handlers=True)
        mapper = ValueMapper(registry.codec_registry)
        nobody: Any = object()  # there is nothing to fetch, and no server to ask
        self.dispatcher = WorkerDispatcher(registry, mapper, nobody, nobody)
        self.registered = registry._flow_by_type(table.flow_type)
        self.classes = {each.get_step_type(): type(each) for each in self.flow._steps}
        self.translator = Translator(table, self.flow._definitions, self.classes)
        self.table = table

    def options(self, name: str) -> pb.StepOptions:
        """Return a Step's options as they are sent."""
        found = next(each for each in self.flow._steps if each.get_step_type() == name)
        mapped = self.dispatcher.map_step_options(self.registered, found.get_step_options())
        assert mapped is not None
        return mapped

    def wait(self, wait: Wait) -> pb.WaitingCondition | None:
        """Return a wait as it is sent."""
        return self.dispatcher._map_wait(
            self.registered, self.translator.wait(self.table.start_step, wait)
        )

    def decision(self, decision: Decision, source: str = "Start") -> pb.StepDecision:
        """Return a decision as it is sent."""
        translated = self.translator.decision(self.table.step(source), decision, Counter())
        return self.dispatcher._map_decision(self.registered, translated)


class Counter:
    """Counts bytes."""

    size = 0

    def count(self, size: int) -> None:
        """Add some."""
        self.size += size


@pytest.fixture
def mapped() -> Mapped:
    """A flow of four Steps."""
    return Mapped(
        flow(
            step("Start", end, "Text", "Number", "Record"),
            step("Text", end, tp=str),
            step("Number", end, tp=int),
            step("Record", end, tp=dict[str, int]),
        )
    )


# Definitions


def test_every_row_becomes_a_definition_of_its_own():
    """Text stays text; all else is JSON, so that an Attribute without a value has none."""
    schema = compile_flow(flow(step("Start", end))).get_persistence_schema()
    found = {each.name: each for each in (*schema.attributes, *schema.channels, *schema.streams)}
    assert {name: (type(each), each.value_type) for name, each in found.items()} == {
        "Note": (dex.Attribute, str),
        "Count": (dex.Attribute, Json),
        "Items": (dex.AttributeMap, Json),
        "Inbox": (dex.Channel, str),
        "Numbers": (dex.Channel, int),
        "Answers": (dex.ChannelMap, str),
        "logs/Log": (dex.Stream, Json),
    }
    assert found["logs/Log"].stream_capacity_bytes == LOG.capacity_bytes


def test_every_step_is_a_class_of_its_own_and_the_first_starts(mapped):
    """The SDK looks Steps up by class; it sees the table's names, types and start Step."""
    assert len(set(mapped.classes.values())) == 4
    assert mapped.registered.start_step.name == "Start"
    inputs = {each.name: each.input_type for each in mapped.registered.steps.values()}
    assert inputs == {"Start": NoneType, "Text": str, "Number": int, "Record": Json}


def test_a_step_without_a_wait_has_none_on_dex():
    """Dex is told to call no ``wait_for`` where the row has none."""
    found = Mapped(flow(step("Start", end, "Other", wait_for=skip), step("Other", end)))
    skips = {each.name: each.skips_wait_for for each in found.registered.steps.values()}
    assert skips == {"Start": False, "Other": True}


@pytest.mark.parametrize("is_read_only", [True, False])
@pytest.mark.parametrize(("tp", "hint"), [(str, str), (bool, bool), (dict[str, int], Json)])
def test_an_rpc_becomes_a_method(tp, hint, is_read_only):
    """An RPC that changes the flow is transactional; one that reads is not."""
    row = Rpc("ask.it", answer, input=tp, output=tp, is_read_only=is_read_only)
    found = Mapped(flow(step("Start", end), rpcs=(row,)))
    method = getattr(found.flow, "ask.it")
    assert method.__func__.__annotations__["input"] is hint
    assert method.__func__.__dex_rpc_options__.is_transactional is not is_read_only
    assert "ask.it" in found.registered.rpcs


def test_options_are_sent_whole():
    """Every option of a row reaches Dex, for both methods, SYNC, in whole seconds."""
    loads = (ITEMS, ITEMS["a/b".replace("/", " ")], INBOX, ANSWERS, ANSWERS["1"], INBOX)
    options = {
        "execute_timeout": 1.5,
        "wait_for_timeout": 20.0,
        "heartbeat_timeout": 30.0,
        "retry": RetryPolicy(3, 60.0, 0.2, 1.5, 9.0),
        "loads": loads,
        "locks": (NOTE, ITEMS["k"], NOTE),
    }
    sent = Mapped(flow(step("Start", end, **options))).options("Start")
    retry = pb.RetryPolicy(
        initial_interval_seconds=1,
        backoff_coefficient=1.5,
        maximum_interval_seconds=9,
        maximum_attempts=3,
        total_duration_seconds=60,
    )
    maps, channels, channel_maps = ["Items/", "Items/a%20b"], ["Inbox"], ["Answers/", "Answers/1"]
    assert sent == pb.StepOptions(
        wait_for_failure_policy=pb.WAIT_FOR_METHOD_FAILURE_POLICY_FAIL_FLOW_ON_FAILURE,
        wait_for_durability_override=pb.STEP_DURABILITY_SYNC,
        execute_durability_override=pb.STEP_DURABILITY_SYNC,
        wait_for_timeout_seconds=20,
        execute_timeout_seconds=2,
        heartbeat_timeout_seconds=30,
        wait_for_retry_policy=retry,
        execute_retry_policy=retry,
        execute_lock_attribute_keys=["Note", "Items/k"],
        wait_for_load_attribute_map_instances=maps,
        execute_load_attribute_map_instances=maps,
        wait_for_load_channel_names=channels,
        execute_load_channel_names=channels,
        wait_for_load_channel_map_instances=channel_maps,
        execute_load_channel_map_instances=channel_maps,
    )


def test_a_failure_route_brings_its_own_options():
    """A route runs with the options that the failing row gives it, or with its own."""
    own = StepOptions(execute_timeout=7, retry=RetryPolicy(2))
    found = Mapped(
        flow(
            step("Start", end, "Given", failure_step="Rescue"),
            step("Given", end, failure_step="Rescue", failure_options=own),
            step("Rescue", end, execute_timeout=5),
        )
    )
    for name, seconds in (("Start", 5), ("Given", 7)):
        sent = found.options(name)
        assert sent.execute_failure_proceed_step_type == "Rescue"
        assert sent.execute_failure_proceed_step_options.execute_timeout_seconds == seconds
        assert sent.execute_failure_proceed_step_options.skip_wait_for


# Waits


def channel(name: str, at_least: int, at_most: int | None, key: str = "") -> pb.ChannelCondition:
    """Return a channel condition as it is sent."""
    return pb.ChannelCondition(
        condition_id=key, channel_name=name, at_least=at_least, at_most=at_most
    )


@pytest.mark.parametrize(
    ("wait", "kind"),
    [
        (Wait.until(INBOX.for_one()), pb.WAITING_CONDITION_TYPE_ALL_COMPLETED),
        (Wait.all_of(INBOX.for_one()), pb.WAITING_CONDITION_TYPE_ALL_COMPLETED),
    ],
)
def test_one_condition_is_sent(mapped, wait, kind):
    """Waiting for one thing is waiting for all of one."""
    sent = mapped.wait(wait)
    assert sent.waiting_condition_type == kind
    assert list(sent.channel_conditions) == [channel("Inbox", 1, 1)]


def test_all_conditions_are_sent(mapped):
    """Timers are whole seconds, rounded up; a Channel has its bounds and its instance."""
    sent = mapped.wait(
        Wait.all_of(
            Timer(0.2),
            INBOX.for_at_least(2),
            Timer(0),
            ANSWERS["a"].for_n(3),
            NUMBERS.for_at_most(4),
        )
    )
    assert sent.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ALL_COMPLETED
    assert [each.duration_seconds for each in sent.timer_conditions] == [1, 0]
    assert [
        (each.channel_name, each.at_least, each.at_most) for each in sent.channel_conditions
    ] == [("Inbox", 2, 0), ("Answers/a", 3, 3), ("Numbers", 0, 4)]
    assert not sent.channel_conditions[0].HasField("at_most")


def test_any_condition_is_sent(mapped):
    """any_of keeps its name on Dex."""
    sent = mapped.wait(Wait.any_of(INBOX.for_one(), Timer(3)))
    assert sent.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMPLETED


def test_combinations_are_sent_with_names(mapped):
    """A condition that two groups share is sent once."""
    shared, timer = INBOX.for_one(), Timer(1)
    sent = mapped.wait(
        Wait.any_combination_of((shared, timer), (shared, NUMBERS.for_one()), (timer,))
    )
    assert sent.waiting_condition_type == pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED
    assert [list(each.condition_ids) for each in sent.condition_combinations] == [
        ["c0", "c1"],
        ["c0", "c2"],
        ["c1"],
    ]
    assert [each.condition_id for each in sent.channel_conditions] == ["c0", "c2"]


def test_no_wait_is_no_condition(mapped):
    """Skipping sends nothing to wait for."""
    assert mapped.wait(Wait.skip_immediately()) is None
    assert mapped.wait(Wait.all_of()) is None


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 2.0**31, 1e300])
def test_a_timer_that_dex_cannot_hold_is_refused(mapped, seconds):
    """A Timer that would never fire on Dex is a clear error, not a crash of the worker."""
    with pytest.raises(ValueError, match=r"Timer.*seconds"):
        mapped.wait(Wait.until(Timer(seconds)))


def test_a_wait_that_would_never_end_is_refused(mapped):
    """Without a group of conditions nothing could ever be ready."""
    for wait in (Wait.any_combination_of(), Wait((INBOX.for_one(),), ())):
        with pytest.raises(ValueError, match="Start waits for no group of conditions"):
            mapped.wait(wait)


def test_a_wait_on_an_undeclared_channel_is_refused(mapped):
    """The error names the Step and the Channel."""
    for channel in (Channel("Zzz", str), ChannelMap("Zzz", str)["a"], Channel("Inbox", int)):
        with pytest.raises(UndeclaredError, match=f"Start used {channel.name}"):
            mapped.wait(Wait.any_of(Timer(1), channel.for_one()))


def test_a_timer_of_the_past_fires_at_once(mapped):
    """Negative seconds are none, as on the local backends."""
    sent = mapped.wait(Wait.until(Timer(-5)))
    assert [each.duration_seconds for each in sent.timer_conditions] == [0]


# Decisions


def test_movements_are_sent_in_order(mapped):
    """Each movement has its input and its own options, if it brings any."""
    decision = Decision.go_to_many(
        Movement("Text", "a", StepOptions(execute_timeout=9)),
        Movement("Number", 5),
        Movement("Record", {"a": 1}),
        Movement("Text", "b"),
    )
    sent = mapped.decision(decision).next_steps
    assert [each.step_type for each in sent] == ["Text", "Number", "Record", "Text"]
    assert [each.step_options.execute_timeout_seconds for each in sent] == [9, 7200, 7200, 7200]
    assert sent[0].step_input.string_value == "a"
    assert sent[1].step_input.int_value == 5
    assert b'{"a":1}' in sent[2].step_input.SerializeToString()


@pytest.mark.parametrize(
    ("decision", "kind"),
    [
        (Decision.dead_end(), pb.CLOSE_DECISION_TYPE_DEAD_END),
        (Decision.graceful_complete(), pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE),
        (Decision.graceful_complete([1]), pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE),
        (Decision.force_complete("x"), pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE),
        (Decision.force_fail("why"), pb.CLOSE_DECISION_TYPE_FORCE_FAIL),
    ],
)
def test_ends_are_sent(mapped, decision, kind):
    """Every end keeps its name, and its output if it has one."""
    close = mapped.decision(decision).close_decision
    assert close.close_decision_type == kind
    assert close.HasField("close_input") is (decision.output is not None)


def test_cancellations_are_sent(mapped):
    """A decision may also cancel Steps: everywhere, or beside it."""
    decision = Decision(
        close=CloseKind.DEAD_END, cancel_steps=("Text", "Text"), cancel_sibling_steps=("Number",)
    )
    sent = mapped.decision(decision)
    assert list(sent.cancel_step_types) == ["Text"]
    assert list(sent.cancel_sibling_step_types) == ["Number"]


def test_a_decision_goes_only_where_its_row_says(mapped):
    """Another target is an error that names both Steps."""
    with pytest.raises(UndeclaredStepError, match="Text may not go to Number"):
        mapped.decision(Decision.go_to("Number", 1), "Text")


@pytest.mark.parametrize("name", ["Nowhere", "", "Start\0"])
def test_a_failure_route_of_a_movement_must_exist(mapped, name):
    """A movement cannot bring a route to a Step that there is not."""
    with pytest.raises(UndeclaredStepError):
        mapped.decision(Decision.go_to("Text", "a", StepOptions(failure_step=name)))


@pytest.mark.parametrize(
    ("movement", "said"),
    [
        (Movement("Text", 1), "input of Text cannot be stored: it holds str, not int"),
        (Movement("Text"), "input of Text cannot be stored: it holds str, not NoneType"),
        (Movement("Number", 2**63), "input of Number cannot be stored: .*64 bits"),
        (Movement("Record", {1: object()}), "input of Record cannot be stored"),
        (Movement("Text", "x" * MAX_BYTES), "input of Text cannot be stored: it has"),
    ],
)
def test_an_input_that_does_not_fit_names_its_step(mapped, movement, said):
    """What cannot be sent is said before anything is sent."""
    with pytest.raises(EncodingError, match=said):
        mapped.decision(Decision.go_to_many(movement))


def test_a_decision_must_decide(mapped):
    """Deciding nothing is an error, with the way out, as on the local backends."""
    with pytest.raises(ValueError, match=r"Start.*return Decision\.dead_end"):
        mapped.decision(Decision())


def test_a_decision_does_not_end_and_go_on(mapped):
    """Both at once is an error that names the Step."""
    decision = Decision((Movement("Text", "a"),), CloseKind.DEAD_END)
    with pytest.raises(ValueError, match="Start decided both to end its branch and to go on"):
        mapped.decision(decision)


@pytest.mark.parametrize("reason", ["lone \ud800", "x" * (MAX_BYTES + 1)])
def test_a_reason_that_cannot_be_sent_is_refused(mapped, reason):
    """Why a flow fails is text like any other."""
    with pytest.raises(EncodingError, match="output of Start cannot be stored"):
        mapped.decision(Decision.force_fail(reason))


@pytest.mark.parametrize(
    "options",
    [
        StepOptions(execute_timeout=2.0**31),
        StepOptions(heartbeat_timeout=math.inf),
        StepOptions(retry=RetryPolicy(total_seconds=math.nan)),
        StepOptions(retry=RetryPolicy(max_attempts=2**31)),
    ],
)
def test_options_of_a_movement_that_dex_cannot_hold_are_refused(mapped, options):
    """The attempt that gives such options fails with an error that names the Step."""
    with pytest.raises(ValueError, match="Text"):
        mapped.decision(Decision.go_to("Text", "a", options))


# What has no form on Dex


def problems(*steps: Step[Any], **given: Any) -> str:
    """Return what is wrong with a table that is valid, and not for Dex."""
    table = flow(*steps, **given)
    with pytest.raises(FlowDefinitionError) as caught:
        compile_flow(table)
    return str(caught.value)


@pytest.mark.parametrize("seconds", [2.0**31, math.inf])
@pytest.mark.parametrize("field", ["execute_timeout", "wait_for_timeout", "heartbeat_timeout"])
def test_a_duration_that_dex_cannot_hold_is_named(field, seconds):
    """A timeout is at most what the wire holds."""
    assert "Start has a duration over" in problems(step("Start", end, **{field: seconds}))


def test_too_many_attempts_are_named():
    """The wire holds 32 bits of attempts."""
    found = problems(step("Start", end, retry=RetryPolicy(max_attempts=2**31)))
    assert "Start has over 2147483647 attempts" in found


def test_a_stream_too_large_is_named():
    """The wire holds 63 bits of capacity."""
    table = FlowTable("Flow", (step("Start", end),), (), (Stream("Big", str, 2**63),))
    with pytest.raises(FlowDefinitionError, match="Stream Big has a capacity"):
        compile_flow(table)


@pytest.mark.parametrize(
    "name",
    ["get_steps", "table", "stream", "abandon", "_steps", "_definitions", "__init__", "__class__"],
)
def test_an_rpc_cannot_take_the_name_of_a_method(name):
    """A Flow's own methods stay what they are."""
    found = problems(step("Start", end), rpcs=(Rpc(name, answer),))
    assert f"RPC {name} cannot be called so on Dex" in found


# Any table

NAMES = st.sampled_from(
    ["a", "B", "a.b", "a-b", "-", "_", "..", "__init__", "class", "None", "_steps", "table", "1"]
) | st.text("ab_.-1", min_size=1, max_size=5)


class Record(Struct, frozen=True):
    """Something stored."""

    x: int = 0


TYPES = st.sampled_from(
    [
        *(NoneType, str, int, bool, float, bytes, Record, Record | None, str | None, Any),
        *(list[Record], dict[str, int], dict[int, Any], tuple[int, ...], int | str),
    ]
)
SECONDS = st.sampled_from([0.001, 1, 1.5, 60.0, 2.0**31 - 1, 2.0**31, 1e18, math.inf])
KEYS = st.sampled_from(["k", "ä", "a b", "%2F", "..", "\0", "'"])


@st.composite
def option_sets(draw, instances, locks, routes):
    """Return options, with routes only to Steps that may follow."""
    retry = RetryPolicy(
        draw(st.integers(0, 5) | st.just(2**31)), *(draw(SECONDS) for _ in range(2))
    )
    failure_step = draw(st.sampled_from([None, *routes]))
    inner = st.just(None)
    if failure_step is not None:
        inner = st.none() | st.builds(
            lambda timeout, back: StepOptions(execute_timeout=timeout, failure_step=back),
            SECONDS,
            st.sampled_from([None, *routes]),
        )
    return StepOptions(
        execute_timeout=draw(SECONDS),
        heartbeat_timeout=draw(SECONDS),
        retry=retry,
        failure_step=failure_step,
        failure_options=draw(inner),
        loads=tuple(draw(st.lists(st.sampled_from(instances), max_size=4))) if instances else (),
        locks=tuple(draw(st.lists(st.sampled_from(locks), max_size=3))) if locks else (),
    )


@st.composite
def tables(draw):
    """Return any table that checks itself."""
    rows = []
    for name in draw(st.lists(NAMES, unique=True, max_size=5)):
        kind = draw(st.sampled_from([Attribute, AttributeMap, Channel, ChannelMap, Stream]))
        size = (draw(st.sampled_from([1, 2**31, 2**63])),) if kind is Stream else ()
        rows.append(kind(name, draw(TYPES.filter(lambda tp: tp is not NoneType)), *size))
    maps = [row for row in rows if isinstance(row, AttributeMap | ChannelMap)]
    loads = [row[draw(KEYS)] for row in maps] + maps
    loads += [row for row in rows if isinstance(row, Channel)]
    locks = [row for row in rows if isinstance(row, Attribute)]
    locks += [row[draw(KEYS)] for row in rows if isinstance(row, AttributeMap)]
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    types = {name: draw(TYPES) for name in names}
    steps = []
    for i, name in enumerate(names):
        routes = [each for each in names[i + 1 :] if types[each] == types[name]]
        steps.append(
            Step(
                name,
                end,
                input=types[name],
                wait_for=draw(st.sampled_from([None, skip])),
                options=draw(option_sets(loads, locks, routes)),
                next_steps=tuple(names) if i == 0 else (),
            )
        )
    rpcs = []
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        is_read_only = draw(st.booleans())
        rpcs.append(
            Rpc(
                name,
                answer,
                draw(TYPES),
                draw(TYPES),
                is_read_only,
                tuple(draw(st.lists(st.sampled_from(loads), max_size=3))) if loads else (),
                tuple(draw(st.lists(st.sampled_from(locks), max_size=3)))
                if locks and not is_read_only
                else (),
                () if is_read_only else (names[0],),
            )
        )
    return FlowTable(draw(NAMES), tuple(steps), tuple(rpcs), tuple(rows))


@settings(max_examples=300, deadline=None)
@given(tables())
def test_any_table_compiles_or_is_told_which_row_dex_has_no_words_for(table):
    """A valid table registers and is sent whole, or the error names a row of it."""
    try:
        mapped = Mapped(table)
    except FlowDefinitionError as error:
        assert error.problems
        names = [row.name for row in (*table.steps, *table.rpcs, *table.persistence)]
        for problem in error.problems:
            assert any(f" {name} " in f" {problem} " for name in names), problem
        return
    for row in table.steps:
        sent = mapped.options(row.name)
        assert pb.StepOptions.FromString(sent.SerializeToString()) == sent
    assert set(mapped.registered.rpcs) == {row.name for row in table.rpcs}
    assert set(mapped.registered.steps) == {row.name for row in table.steps}
    assert set(mapped.registered.persistence) == {row.name for row in table.persistence}
    assert isinstance(mapped.flow, CompiledFlow)


def test_the_rows_above_are_all_used():
    """The table that the other tests share declares one row of every kind."""
    kinds = {type(row) for row in (NOTE, COUNT, ITEMS, INBOX, NUMBERS, ANSWERS, LOG)}
    assert kinds == {Attribute, AttributeMap, Channel, ChannelMap, Stream}
