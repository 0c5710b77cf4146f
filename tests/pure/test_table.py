"""Promises of `dex_agents.table`: a table checks itself, names its rows, and draws itself."""

from __future__ import annotations

from types import NoneType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dex_agents.errors import (
    DexAgentsError,
    FlowDefinitionError,
    UndeclaredError,
    UndeclaredStepError,
)
from dex_agents.session import session_table
from dex_agents.table import (
    AttemptFacts,
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

NAME = Attribute("Name", str)
OTHER = Attribute("Other", str)
ITEMS = AttributeMap("Items", int)
INBOX = Channel("Inbox", str)
ANSWERS = ChannelMap("Answers", str)
EVENTS = Stream("dex/Events", str, 1000)
ROWS = (NAME, ITEMS, INBOX, ANSWERS, EVENTS)


async def execute(context: Any, given: Any) -> Decision:
    """End the branch."""
    return Decision.dead_end()


async def wait_for(context: Any, given: Any) -> Wait:
    """Do not wait."""
    return Wait.skip_immediately()


def answer(context: Any, given: Any) -> RpcResult[None]:
    """Answer nothing."""
    return RpcResult(None)


def table(*steps: Step[Any], rpcs: tuple[Rpc[Any, Any], ...] = (), rows=ROWS, name="Flow"):
    """Return a table of these rows."""
    return FlowTable(name, steps, rpcs, rows)


def problems(*steps: Step[Any], **given: Any) -> tuple[str, ...]:
    """Return what is wrong with the table of these rows."""
    with pytest.raises(FlowDefinitionError) as caught:
        table(*steps, **given)
    return caught.value.problems


def step(name: str, *next_steps: str, **given: Any) -> Step[Any]:
    """Return a Step row."""
    return Step(name, execute, next_steps=next_steps, **given)


def failing(name: str, **options: Any) -> Step[Any]:
    """Return a Step row with options."""
    return step(name, options=StepOptions(**options))


# What is wrong


def test_a_table_needs_a_step():
    """A flow without Steps could not start."""
    assert problems() == ("it has no Steps",)


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "a\n", "a%b", "a:b"])
def test_names_are_plain(bad):
    """Every row and the flow type have plain names, so that they are the same everywhere."""
    said = "is not a name: use letters, digits, '.', '_' and '-'"
    assert problems(step(bad)) == (f"Step {bad!r} {said}",)
    assert problems(step("A"), name=bad) == (f"flow type {bad!r} {said}",)
    assert problems(step("A"), rpcs=(Rpc(bad, answer),)) == (f"RPC {bad!r} {said}",)
    for row in (Attribute, AttributeMap, Channel, ChannelMap):
        assert problems(step("A"), rows=(row(bad, str),)) == (f"{row.__name__} {bad!r} {said}",)


def test_a_stream_may_be_in_a_folder():
    """Only a Stream's name may hold a slash."""
    assert table(step("A"), rows=(Stream("a/b", str, 1),))
    (problem,) = problems(step("A"), rows=(Stream("a b", str, 1),))
    assert problem.startswith("Stream 'a b' is not a name")


def test_steps_have_names_of_their_own():
    """Two Steps of one name are reported with their number."""
    assert problems(step("A"), step("A"), step("A")) == ("3 Steps are called A",)


def test_rpcs_have_names_of_their_own():
    """Two RPCs of one name are reported."""
    twice = (Rpc("ask", answer), Rpc("ask", answer))
    assert problems(step("A"), rpcs=twice) == ("2 RPCs are called ask",)


def test_data_rows_of_any_kind_have_names_of_their_own():
    """An Attribute and a Channel cannot share a name."""
    rows = (Attribute("X", str), Channel("X", str))
    assert problems(step("A"), rows=rows) == ("2 Attributes, Channels or Streams are called X",)


@pytest.mark.parametrize("owner", [ITEMS, ANSWERS])
def test_one_instance_of_a_map_is_no_row(owner):
    """The map is declared, not one of its instances."""
    found = problems(step("A"), rows=(owner["key"],))
    assert f"{owner.name}/key is one instance; declare its map {owner.name}" in found


def test_a_step_goes_only_to_steps_of_the_table():
    """An unknown next Step is named with the row that goes there."""
    assert problems(step("A", "B")) == ("A may go to B, which is no Step of the table",)


def test_an_rpc_starts_only_steps_of_the_table():
    """An unknown next Step of an RPC is reported too."""
    rpcs = (Rpc("ask", answer, next_steps=("B",)),)
    assert problems(step("A"), rpcs=rpcs) == ("ask may go to B, which is no Step of the table",)


def test_a_failure_route_leads_to_a_step_of_the_table():
    """An unknown failure Step is reported."""
    said = ("A fails to B, which is no Step of the table",)
    assert problems(failing("A", failure_step="B")) == said


def test_a_failure_route_takes_the_same_input():
    """The failure Step gets the input of the one that failed, so it must take that type."""
    found = problems(failing("A", failure_step="B"), step("B", input=int))
    assert found == ("A fails to B, which takes another input",)


def test_the_failure_route_of_a_failure_route_is_checked_too():
    """A route's own options cannot name an unknown Step, however deep they are."""
    last = StepOptions(failure_step="D")
    middle = StepOptions(failure_step="C", failure_options=last)
    steps = (failing("A", failure_step="B", failure_options=middle), step("B"), step("C"))
    assert problems(*steps) == ("the failure route of A fails to D, which is no Step of the table",)


def test_failure_routes_do_not_run_in_circles():
    """A failure route that comes back to its Step would never end."""
    found = problems(failing("A", failure_step="A"))
    assert found == ("the failure route of A leads round in a circle",)
    circle = (failing("A", failure_step="B"), failing("B", failure_step="A"))
    assert problems(*circle) == (
        "the failure route of A leads round in a circle",
        "the failure route of B leads round in a circle",
    )


def test_failure_routes_of_failure_routes_do_not_run_in_circles():
    """Options of their own can lead back as well."""
    back = StepOptions(failure_step="A")
    steps = (failing("A", failure_step="B", failure_options=back), step("B"))
    assert problems(*steps) == ("the failure route of A leads round in a circle",)


def test_a_step_outside_the_circle_is_not_blamed_for_it():
    """Only the Steps of a circle are reported."""
    steps = (failing("A", failure_step="B"), failing("B", failure_step="B"))
    assert problems(*steps) == ("the failure route of B leads round in a circle",)


def test_every_step_can_be_reached():
    """A Step that nothing leads to is a mistake, though it goes to itself."""
    found = problems(step("A"), step("B", "B"), step("C", "B"))
    assert found == (
        "B can never be reached from A or an RPC",
        "C can never be reached from A or an RPC",
    )


def test_a_step_is_reached_by_decision_failure_or_rpc():
    """Each of the three ways to a Step counts."""
    route = StepOptions(failure_step="C")
    options = StepOptions(failure_step="B", failure_options=route)
    rpcs = (Rpc("ask", answer, next_steps=("D",)),)
    steps = (step("A", options=options), step("B"), step("C"), step("D", "E"), step("E"))
    assert table(*steps, rpcs=rpcs)


@pytest.mark.parametrize("row", [OTHER, Channel("Other", str), AttributeMap("Other", int)["k"]])
def test_only_declared_rows_are_loaded(row):
    """A load of an undeclared row, or of an instance of an undeclared map, is reported."""
    said = f"loads or locks {row.name}, which the table does not declare"
    assert f"A {said}" in problems(failing("A", loads=(row,)))
    assert f"ask {said}" in problems(step("A"), rpcs=(Rpc("ask", answer, loads=(row,)),))


def test_a_row_of_the_same_name_and_another_type_is_not_declared():
    """A row is declared by what it is, not by its name alone."""
    (problem,) = problems(failing("A", loads=(AttributeMap("Items", str),)))
    assert problem == "A loads or locks Items, which the table does not declare"


def test_only_declared_rows_are_locked():
    """A lock on an undeclared Attribute is reported."""
    said = "loads or locks Other, which the table does not declare"
    assert problems(failing("A", locks=(OTHER,))) == (f"A {said}",)
    assert problems(step("A"), rpcs=(Rpc("ask", answer, locks=(OTHER,)),)) == (f"ask {said}",)


def test_the_options_of_a_failure_route_are_checked_for_loads():
    """What a failure route loads must be declared too."""
    route = StepOptions(loads=(Channel("Other", str),))
    found = problems(failing("A", failure_step="B", failure_options=route), step("B"))
    assert found == (
        "the failure route of A loads or locks Other, which the table does not declare",
    )


def test_plain_attributes_are_not_loaded():
    """A load that changes nothing is a misunderstanding."""
    said = "loads Name, but plain Attributes are always loaded"
    assert problems(failing("A", loads=(NAME,))) == (f"A {said}",)
    assert problems(step("A"), rpcs=(Rpc("ask", answer, loads=(NAME,)),)) == (f"ask {said}",)


def test_maps_instances_and_channels_can_be_loaded():
    """Every kind of row that is not always there can be loaded."""
    loads = (ITEMS, ITEMS["k"], INBOX, ANSWERS, ANSWERS["k"])
    assert table(failing("A", loads=loads, locks=(NAME,)))


@pytest.mark.parametrize("given", [{"locks": (NAME,)}, {"next_steps": ("A",)}])
def test_a_read_only_rpc_changes_nothing(given):
    """A read-only RPC neither locks nor goes anywhere."""
    rpc = Rpc("ask", answer, is_read_only=True, **given)
    said = ("ask is read-only, so it can neither lock nor go to a Step",)
    assert problems(step("A"), rpcs=(rpc,)) == said


class _Plain:
    pass


class _Left(msgspec.Struct):
    a: int


class _Right(msgspec.Struct):
    b: int


@pytest.mark.parametrize("tp", [_Plain, complex, _Left | _Right, list[_Plain]])
@pytest.mark.parametrize("where", ["step", "rpc input", "rpc output", "row"])
def test_types_that_no_codec_knows_are_reported(tp, where):
    """Every type that is stored or sent must have a codec, wherever it stands."""
    given = {
        "step": {"steps": (step("A", input=tp),)},
        "rpc input": {"rpcs": (Rpc("ask", answer, input=tp),)},
        "rpc output": {"rpcs": (Rpc("ask", answer, output=tp),)},
        "row": {"rows": (Attribute("Value", tp),)},
    }[where]
    steps = given.pop("steps", (step("A"),))
    (problem,) = problems(*steps, **given)
    named = {"step": "A", "rpc input": "ask", "rpc output": "ask", "row": "Value"}[where]
    assert problem.startswith(f"{named} has type {getattr(tp, '__name__', tp)}, which cannot be")


@pytest.mark.parametrize("row", [Attribute("X", NoneType), Channel("X", NoneType)])
def test_a_row_that_can_only_hold_none_holds_nothing(row):
    """None means that an Attribute has no value, so it is no type for one."""
    said = ("X can only hold None, which means that it has no value",)
    assert problems(step("A"), rows=(row,)) == said


@pytest.mark.parametrize("name", ["execute_timeout", "wait_for_timeout", "heartbeat_timeout"])
@pytest.mark.parametrize("seconds", [0, -1.5])
def test_timeouts_are_above_zero(name, seconds):
    """Each of the three timeouts leaves some time."""
    said = "has a timeout that is not above 0 seconds"
    assert problems(failing("A", **{name: seconds})) == (f"A {said}",)
    route = StepOptions(**{name: seconds})
    found = problems(failing("A", failure_step="B", failure_options=route), step("B"))
    assert found == (f"the failure route of A {said}",)


@pytest.mark.parametrize("given", [{"max_attempts": -1}, {"coefficient": 0.5}])
def test_retries_have_sensible_counts(given):
    """Attempts are not negative, and delays do not shrink."""
    said = ("A retries with max_attempts below 0 or a coefficient below 1",)
    assert problems(failing("A", retry=RetryPolicy(**given))) == said


@pytest.mark.parametrize("name", ["initial_seconds", "max_seconds", "total_seconds"])
def test_retries_have_no_negative_times(name):
    """No delay lies in the past."""
    found = problems(failing("A", retry=RetryPolicy(**{name: -1})))
    assert found == ("A retries with negative seconds",)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_stream_keeps_something(capacity):
    """A Stream without capacity would drop every message."""
    found = problems(step("A"), rows=(Stream("S", str, capacity),))
    assert found == ("Stream S has a capacity that is not above 0 bytes",)


@pytest.mark.parametrize("stranger", ["Name", 7, None, step("B")])
def test_what_is_no_row_is_reported(stranger):
    """Something else among the rows gives the same kind of error as any other mistake."""
    said = "is not an Attribute, a Channel, a map of them, or a Stream"
    assert problems(step("A"), rows=(NAME, stranger)) == (f"{stranger!r} {said}",)


def test_everything_that_is_wrong_is_reported_at_once():
    """The author of a table mends it in one go."""
    steps = (
        step("A", "Nowhere", options=StepOptions(loads=(OTHER, NAME), execute_timeout=0)),
        step("A", input=_Plain),
        failing("Lost", retry=RetryPolicy(-1, -1)),
        failing("Round", failure_step="Round"),
    )
    rpcs = (Rpc("ask", answer, is_read_only=True, next_steps=("A",)), Rpc("a b", answer))
    rows = (NAME, NAME, Stream("S", str, 0), Attribute("N", NoneType))
    with pytest.raises(FlowDefinitionError) as caught:
        table(*steps, rpcs=rpcs, rows=rows, name="my flow")
    expected = (
        "flow type 'my flow'",
        "RPC 'a b' is not a name",
        "2 Steps are called A",
        "2 Attributes, Channels or Streams are called Name",
        "A may go to Nowhere",
        "the failure route of Round",
        "Lost can never be reached",
        "Round can never be reached",
        "A loads or locks Other",
        "A loads Name, but",
        "ask is read-only",
        "A has type _Plain",
        "N can only hold None",
        "A has a timeout",
        "Lost retries with max_attempts",
        "Lost retries with negative",
        "Stream S has a capacity",
    )
    for beginning in expected:
        assert any(each.startswith(beginning) for each in caught.value.problems), beginning
        assert f"\n- {beginning}" in str(caught.value)
    assert str(caught.value).startswith("Flow 'my flow' is not a valid table:\n")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DexAgentsError)


# Random tables


@st.composite
def tables(draw):
    """Return the arguments of a valid table, of which every Step is reached from the one before."""
    count = draw(st.integers(1, 6))
    names = [f"Step{i}" for i in range(count)]
    rows = [NAME, ITEMS, INBOX, ANSWERS, EVENTS]
    loads = st.lists(st.sampled_from([ITEMS, ITEMS["k"], INBOX, ANSWERS["x"]]), max_size=3)
    locks = st.sampled_from([(), (NAME,)])
    steps = []
    for i, name in enumerate(names):
        others = draw(st.lists(st.sampled_from(names), max_size=3))
        failure = draw(st.sampled_from([None, *names[i + 1 :]]))
        options = StepOptions(
            execute_timeout=draw(st.floats(0.1, 1e6)),
            retry=RetryPolicy(draw(st.integers(0, 5)), coefficient=draw(st.floats(1, 10))),
            failure_step=failure,
            failure_options=StepOptions(loads=tuple(draw(loads))) if failure else None,
            loads=tuple(draw(loads)),
            locks=draw(locks),
        )
        wait = wait_for if draw(st.booleans()) else None
        steps.append(
            Step(
                name,
                execute,
                str,
                wait,
                options,
                tuple(dict.fromkeys(names[i + 1 : i + 2] + others)),
            )
        )
    rpcs = [
        Rpc(f"rpc{i}", answer, loads=tuple(draw(loads)), next_steps=(draw(st.sampled_from(names)),))
        for i in range(draw(st.integers(0, 3)))
    ]
    return {"steps": steps, "rpcs": rpcs, "rows": rows}


def build(given: dict[str, Any]) -> FlowTable:
    """Return the table."""
    return FlowTable("Flow", tuple(given["steps"]), tuple(given["rpcs"]), tuple(given["rows"]))


def _spoil(field: str, **options: Any):
    def spoil(given: dict[str, Any], at: int) -> str:
        row = given["steps"][at]
        value = {field: getattr(row, field)}
        value[field] = replace(row.options, **options) if options else (*row.next_steps, "Nowhere")
        given["steps"][at] = replace(row, **value)
        return row.name

    return spoil


def _add_row(row: Any):
    def spoil(given: dict[str, Any], at: int) -> str:
        given["rows"].insert(at % len(given["rows"]), row)
        return row.name

    return spoil


def _double_step(given: dict[str, Any], at: int) -> str:
    given["steps"].append(given["steps"][at])
    return f"2 Steps are called {given['steps'][at].name}"


def _forget_row(given: dict[str, Any], at: int) -> str:
    given["rows"].remove(INBOX)
    row = given["steps"][at]
    given["steps"][at] = replace(row, options=replace(row.options, loads=(INBOX,)))
    return f"{row.name} loads or locks Inbox"


def _lose_step(given: dict[str, Any], at: int) -> str:
    given["steps"].insert(at + 1, step("Lost", input=str))
    return "Lost can never be reached"


def _mistype(given: dict[str, Any], at: int) -> str:
    given["rpcs"].append(Rpc("ask", answer, output=_Plain))
    return "ask has type _Plain"


DEFECTS = {
    "unknown next Step": _spoil("next_steps"),
    "unknown failure Step": _spoil("options", failure_step="Nowhere"),
    "timeout": _spoil("options", heartbeat_timeout=0.0),
    "attempts": _spoil("options", retry=RetryPolicy(-1)),
    "seconds": _spoil("options", retry=RetryPolicy(max_seconds=-1)),
    "undeclared load": _spoil("options", loads=(Channel("Other", str),)),
    "undeclared lock": _spoil("options", locks=(OTHER,)),
    "useless load": _spoil("options", loads=(NAME,)),
    "row name": _add_row(Attribute("no name", str)),
    "twin row": _add_row(Channel("Name", str)),
    "None row": _add_row(Attribute("Nothing", NoneType)),
    "untyped row": _add_row(Attribute("Strange", _Plain)),
    "full Stream": _add_row(Stream("Full", str, 0)),
    "twin Step": _double_step,
    "undeclared row": _forget_row,
    "lost Step": _lose_step,
    "RPC type": _mistype,
}


@given(tables())
def test_a_valid_table_validates_and_knows_its_rows(given):
    """A table without a mistake is accepted, and gives back its rows by name."""
    built = build(given)
    assert built.start_step is given["steps"][0]
    for row in given["steps"]:
        assert built.step(row.name) is row
    assert all(built.rpc(row.name) is row for row in given["rpcs"])
    assert all(built.declares(row) for row in given["rows"])


@pytest.mark.parametrize("defect", DEFECTS)
@given(given=tables(), where=st.integers(0, 99))
@settings(max_examples=25)
def test_any_single_defect_of_any_table_is_found(defect, given, where):
    """Wherever one mistake is put into a valid table, it is reported and named."""
    named = DEFECTS[defect](given, where % len(given["steps"]))
    with pytest.raises(FlowDefinitionError) as caught:
        build(given)
    assert any(named in each for each in caught.value.problems)


@given(tables())
def test_a_table_draws_every_edge_and_no_other(given):
    """The drawing has each next Step, each failure route and each end, and nothing else."""
    built = build(given)
    expected = [f"start([start]) --> {built.start_step.name}"]
    for row in (*built.steps, *built.rpcs):
        expected += [f"{row.name} --> {target}" for target in row.next_steps]
        if isinstance(row, Rpc) and row.next_steps:
            expected.append(f"{row.name}[/{row.name}/]")
        if isinstance(row, Step) and row.options.failure_step:
            expected.append(f"{row.name} -. used up .-> {row.options.failure_step}")
        if isinstance(row, Step) and not row.next_steps:
            expected.append(f"{row.name} --> ended([branch ends])")
    first, *lines = built.to_mermaid().splitlines()
    assert first == "flowchart TD"
    assert sorted(line.strip() for line in lines) == sorted(expected)


def test_the_drawing_is_the_same_each_time():
    """A small table draws exactly so."""
    steps = (step("A", "B", options=StepOptions(failure_step="C")), step("B"), step("C", "A"))
    quiet = Rpc("look", answer, is_read_only=True)
    built = table(*steps, rpcs=(Rpc("ask", answer, next_steps=("B",)), quiet))
    assert built.to_mermaid() == (
        "flowchart TD\n"
        "    start([start]) --> A\n"
        "    ask[/ask/]\n"
        "    A --> B\n"
        "    C --> A\n"
        "    ask --> B\n"
        "    A -. used up .-> C\n"
        "    B --> ended([branch ends])\n"
    )


def test_the_session_is_a_valid_table_of_ten_steps_and_four_rpcs():
    """The product's own table passes its own checks."""
    built = session_table(_NoRunner(), flow_type="AgentSession")
    assert (len(built.steps), len(built.rpcs)) == (10, 4)


class _NoRunner:
    """A runner that nobody calls."""

    def build_user_message(self, text: str) -> Any:
        raise AssertionError

    async def run_model_step(self, turn: Any) -> Any:
        raise AssertionError

    async def execute_deferred_tool_call(self, call: Any) -> Any:
        raise AssertionError


# Names


@given(
    st.text(st.characters(exclude_characters="/", exclude_categories=("Cs",)), min_size=1).filter(
        str.strip
    )
)
def test_a_map_instance_has_a_quoted_name_that_gives_back_its_key(key):
    """Any key makes one physical name of plain characters, and can be read from it."""
    physical = ITEMS[key].name
    assert physical.startswith(ITEMS.prefix)
    assert physical.isascii()
    assert physical.count("/") == 1
    assert set(physical) <= set(map(chr, range(33, 127)))
    assert ITEMS.key_of(physical) == key
    assert ANSWERS[key].name == f"Answers/{physical.removeprefix('Items/')}"


@pytest.mark.parametrize(
    ("key", "physical"),
    [
        ("call-1", "Items/call-1"),
        ("a b%", "Items/a%20b%25"),
        ("ü", "Items/%C3%BC"),
        (".", "Items/."),
    ],
)
def test_physical_names(key, physical):
    """Only what is not plain is quoted."""
    assert ITEMS[key].name == physical


@pytest.mark.parametrize("key", ["", "/", "a/b"])
@pytest.mark.parametrize("owner", [ITEMS, ANSWERS])
def test_an_empty_key_or_one_with_a_slash_is_refused(owner, key):
    """Such a key would not name one instance."""
    with pytest.raises(ValueError, match="cannot be a key of"):
        owner[key]


def test_an_instance_belongs_to_its_map():
    """An instance is declared when its map is."""
    built = table(step("A"))
    assert built.declares(ITEMS["anything"])
    assert built.declares(ANSWERS["anything"])
    assert not built.declares(AttributeMap("Others", int)["anything"])
    assert not built.declares(OTHER)


# Waits, options and decisions


def test_channel_conditions_say_how_many():
    """Each constructor gives its minimum and maximum."""
    conditions = (INBOX.for_one(), INBOX.for_n(3), INBOX.for_at_least(2), INBOX.for_at_most(4))
    assert [(c.at_least, c.at_most) for c in conditions] == [(1, 1), (3, 3), (2, None), (0, 4)]
    assert all(c.channel is INBOX for c in conditions)
    assert ANSWERS.for_one("k").channel == ANSWERS["k"]


def test_waits_for_one_or_all():
    """One condition and all conditions are one group each."""
    a, b = INBOX.for_one(), Timer(5)
    assert Wait.until(a) == Wait((a,), ((0,),))
    assert Wait.all_of(a, b) == Wait((a, b), ((0, 1),))


def test_any_of_prefers_timers_then_the_order_of_arguments():
    """Timers are looked at before Channels, and conditions keep their positions."""
    a, b, c, d = INBOX.for_one(), Timer(5), ANSWERS.for_one("k"), Timer(1)
    assert Wait.any_of(a, b, c, d) == Wait((a, b, c, d), ((1,), (3,), (0,), (2,)))


def test_combinations_share_a_condition_by_identity():
    """One condition object in two groups is one condition; an equal one is another."""
    a, b, c = INBOX.for_one(), INBOX.for_one(), Timer(1)
    wait = Wait.any_combination_of((a, c), (c, b), (a,))
    assert wait.conditions == (a, c, b)
    assert wait.candidates == ((0, 1), (1, 2), (0,))


def test_skipping_is_a_wait_that_is_over():
    """Not waiting is one group without conditions."""
    assert Wait.skip_immediately() == Wait((), ((),))


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(), [1, 2, 4, 8, 16, 32, 64, 100, 100]),
        (RetryPolicy(initial_seconds=3, coefficient=1), [3, 3, 3]),
        (RetryPolicy(initial_seconds=0), [0, 0]),
        (RetryPolicy(initial_seconds=0.5, coefficient=10, max_seconds=6), [0.5, 5, 6]),
    ],
)
def test_delays_grow_up_to_their_maximum(policy, delays):
    """Each delay is the one before times the coefficient, and never above the maximum."""
    assert [policy.delay_after(n) for n in range(1, len(delays) + 1)] == delays


@given(st.integers(1, 10**6), st.floats(1, 1e300) | st.integers(1, 10**9), st.floats(0, 1e9))
def test_no_policy_makes_a_delay_overflow(attempt, coefficient, initial):
    """Whatever the numbers are, a delay is a number between 0 and the maximum."""
    policy = RetryPolicy(coefficient=coefficient, initial_seconds=initial)
    assert 0 <= policy.delay_after(attempt) <= policy.max_seconds


def test_loading_replaces_the_loads_of_the_failure_route_too():
    """A movement's loads go along to where its failure leads."""
    plain = StepOptions(execute_timeout=5).loading(ITEMS)
    assert (plain.loads, plain.failure_options, plain.execute_timeout) == ((ITEMS,), None, 5)
    routed = StepOptions(failure_step="B", failure_options=StepOptions(heartbeat_timeout=7))
    loaded = routed.loading(ITEMS["k"], INBOX)
    assert loaded.loads == (ITEMS["k"], INBOX)
    assert loaded.failure_options == StepOptions(heartbeat_timeout=7, loads=loaded.loads)


def test_decisions():
    """Each constructor says one thing."""
    assert Decision.go_to("B", 1) == Decision((Movement("B", 1),))
    assert Decision.go_to_many(Movement("B"), Movement("A")).next_steps == (
        Movement("B"),
        Movement("A"),
    )
    assert Decision.dead_end().close is CloseKind.DEAD_END
    assert Decision.graceful_complete(1) == Decision(close=CloseKind.GRACEFUL_COMPLETE, output=1)
    assert Decision.force_complete(1) == Decision(close=CloseKind.FORCE_COMPLETE, output=1)
    assert Decision.force_fail("no") == Decision(close=CloseKind.FORCE_FAIL, output="no")
    assert Decision.dead_end().canceling("A").canceling("B").cancel_steps == ("A", "B")


def test_a_declared_next_step_may_be_taken_and_no_other():
    """An undeclared target is an error that names both Steps."""
    rpc = Rpc("ask", answer, next_steps=("B",))
    built = table(step("A", "B"), step("B"), rpcs=(rpc,))
    built.require_decision(built.step("A"), Decision.go_to("B").canceling("A"))
    built.require_result(rpc, RpcResult(None, (Movement("B"),), ("A",)))
    with pytest.raises(UndeclaredStepError, match=r"^B may not go to A\. Add A to its next_steps"):
        built.require_decision(built.step("B"), Decision.go_to("A"))
    with pytest.raises(UndeclaredStepError, match=r"^ask may not go to A\."):
        built.require_result(rpc, RpcResult(None, (Movement("A"),)))
    with pytest.raises(UndeclaredStepError, match=r"^A may not go to C"):
        built.require_decision(built.step("A"), Decision.dead_end().canceling("C"))
    route = Movement("B", None, StepOptions(failure_step="C"))
    with pytest.raises(UndeclaredStepError, match=r"^The failure route of B may not go to C"):
        built.require_decision(built.step("A"), Decision.go_to_many(route))


def test_a_decision_goes_on_or_ends():
    """One that does neither, or both, is refused."""
    built = table(step("A", "B"), step("B"))
    with pytest.raises(ValueError, match="A decided nothing"):
        built.require_decision(built.step("A"), Decision())
    both = Decision(next_steps=(Movement("B"),), close=CloseKind.DEAD_END)
    with pytest.raises(ValueError, match="A decided both"):
        built.require_decision(built.step("A"), both)


def test_a_wait_can_end():
    """Its Channels are declared, and its groups are of its own conditions."""
    built = table(step("A"))
    row = built.step("A")
    built.require_wait(row, Wait.skip_immediately())
    with pytest.raises(UndeclaredError, match="Nobody"):
        built.require_wait(row, Wait.until(Channel("Nobody", str).for_one()))
    with pytest.raises(ValueError, match="never end"):
        built.require_wait(row, Wait.any_combination_of())
    with pytest.raises(ValueError, match="does not have"):
        built.require_wait(row, Wait((Timer(1),), ((1,),)))


def test_an_unknown_name_is_a_key_error():
    """A row that is not there is not made up."""
    built = table(step("A"))
    for lookup in (built.step, built.rpc):
        with pytest.raises(KeyError):
            lookup("B")


def test_by_default_nothing_is_told_of_an_attempt():
    """Facts for telemetry are optional."""
    assert table(step("A")).facts("A", None, None) == AttemptFacts()


def test_a_wait_for_nothing_is_refused():
    """It would never end."""
    with pytest.raises(ValueError, match="needs a condition"):
        Wait.any_of()


def test_a_key_comes_back_from_its_name():
    """Whatever the key holds."""
    rows = AttributeMap("Notes", str)
    for key in ("a", "a b", "ä:b"):
        assert rows.key_of(rows[key].name) == key
