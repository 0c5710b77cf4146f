"""Promises of `dex_agents.encoding`: every rule of its module docstring."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dex_agents.encoding import MAX_DEPTH, clean_text, decode, encode, json_value, require_codec
from dex_agents.errors import DexAgentsError, EncodingError, StoredRecordError
from dex_agents.records import AgentUsage, FrameworkMessage, MessageRole

WHOLE_TEXT = st.text(st.characters(exclude_categories=("Cs",)))
ANY_TEXT = st.text(st.characters())
LARGEST = 10**4299 - 1
INTEGERS = st.integers() | st.integers(-(10**400), 10**400)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    SCALARS | WHOLE_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(WHOLE_TEXT, inner),
    max_leaves=25,
)
LOOSE_VALUES = st.recursive(
    SCALARS | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(), max_size=3), inner)
    ),
    max_leaves=25,
)


def nested(levels: int, leaf: Any) -> Any:
    """Return a leaf within so many lists."""
    for _ in range(levels):
        leaf = [leaf]
    return leaf


def same(left: Any, right: Any) -> bool:
    """Compare values and, unlike ``==``, their types: True is not 1, and 1 is not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


def by_the_rules(value: Any) -> Any:
    """Apply the documented rules in the plainest way."""
    if isinstance(value, str):
        paired = value.encode("utf-16-le", "surrogatepass")
        return paired.decode("utf-16-le", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [by_the_rules(item) for item in value]
    if isinstance(value, dict):
        return {by_the_rules(key): by_the_rules(item) for key, item in value.items()}
    return value


@given(JSON_VALUES)
@example([1, True, 1.0, -0.0, 0, False, None, "", {"": {}}, []])
@example({"[": "{" * 300})
def test_a_json_value_is_kept_as_it_is_and_comes_back_equal(value):
    """Any JSON value passes unchanged, and what is stored reads back equal, types included."""
    kept = json_value(value, "item")
    assert same(kept, value)
    assert same(decode(encode(kept), Any), value)


@given(JSON_VALUES)
def test_what_is_stored_can_be_read_with_ordinary_tools(value):
    """The bytes are JSON in UTF-8, as Python's own module reads it."""
    assert same(json.loads(encode(json_value(value, "item"))), value)


@given(LOOSE_VALUES)
def test_what_python_holds_beyond_json_follows_the_rules_or_is_refused(value):
    """Surrogates, NaN, infinities and tuples follow their rule; merged keys are refused."""
    try:
        kept = json_value(value, "item")
    except EncodingError as error:
        assert "two keys become" in str(error)
        return
    assert same(kept, by_the_rules(value))
    assert same(decode(encode(kept), Any), kept)


@given(ANY_TEXT)
@example("\ufeff\ud800")
@example("\ud800")
@example("\udc00\ud800")
@example("\ud83d\ude00")
@example("\ud800\ud83d\ude00\udc00")
def test_clean_text_is_always_utf_8_and_changes_only_surrogates(text):
    """Every lone surrogate becomes one U+FFFD, and nothing else changes."""
    cleaned = clean_text(text)
    cleaned.encode()
    assert cleaned == by_the_rules(text)
    assert clean_text(cleaned) == cleaned
    if not any("\ud800" <= each <= "\udfff" for each in text):
        assert cleaned == text


def test_a_lone_surrogate_becomes_the_replacement_character_in_keys_and_values():
    """UTF-8 cannot carry a lone surrogate, so U+FFFD stands in its place."""
    assert json_value({"a\ud800": ["\udfffb"]}, "item") == {"a\ufffd": ["\ufffdb"]}


def test_keys_that_the_surrogate_rule_makes_equal_are_refused():
    """No entry of an object is silently lost to another one."""
    with pytest.raises(EncodingError, match=r"^item\.deep cannot be stored: two keys become"):
        json_value({"deep": {chr(0xD800): 1, chr(0xDFFF): 2}}, "item")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_the_infinities_become_null(value):
    """As in JavaScript, a number that JSON lacks is null, at any depth."""
    assert json_value(value, "item") is None
    assert json_value({"a": [value, 1.5]}, "item") == {"a": [None, 1.5]}


def test_a_tuple_becomes_a_list():
    """A tuple comes back as the list that JSON makes of it."""
    assert same(json_value((1, ("a", ())), "item"), [1, ["a", []]])


@pytest.mark.parametrize(
    "text", ["\0", "a\0b", "\x00" * 3, "\x7f", "\u2028", "\ufeff", "\U0010ffff"]
)
def test_nul_and_other_unusual_text_is_kept(text):
    """Whatever UTF-8 can carry is kept, as a key too."""
    value = {text: text}
    assert json_value(value, "item") is value
    assert decode(encode(value), Any) == value


@pytest.mark.parametrize(
    "number",
    [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, LARGEST, -LARGEST],
    ids=int.bit_length,
)
def test_integers_keep_every_digit(number):
    """No integer is rounded, up to the documented number of digits."""
    assert same(decode(encode(json_value([number], "item")), Any), [number])


@pytest.mark.parametrize(
    "number", [-LARGEST - 1, 10**4300, -(10**4300), 10**20_000], ids=int.bit_length
)
def test_an_integer_that_could_not_be_read_again_is_refused(number):
    """Beyond Python's limit for reading digits the value is refused, and its place named."""
    with pytest.raises(EncodingError, match=r"^item\[1\]\.n cannot be stored"):
        json_value([0, {"n": number}], "item")


class _Colour(enum.Enum):
    RED = "red"


class _Record(msgspec.Struct):
    a: int


NOT_JSON = [
    b"bytes",
    bytearray(b"bytes"),
    memoryview(b"bytes"),
    {1, 2},
    frozenset("a"),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.date(2026, 1, 1),
    dt.timedelta(1),
    uuid.UUID(int=1),
    decimal.Decimal("1.5"),
    1 + 2j,
    object(),
    _Colour.RED,
    _Record(1),
    msgspec.Raw(b"1"),
    int,
    range(3),
]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_is_not_json_is_refused_with_its_place_and_type(value):
    """The error names the path to the value, and what stands there."""
    with pytest.raises(EncodingError) as caught:
        json_value({"a": [0, {"b": value}]}, "framework_item")
    kind = type(value).__name__
    assert str(caught.value) == (
        f"framework_item.a[1].b cannot be stored: {kind} is not JSON; convert it first"
    )


@given(JSON_VALUES, st.sampled_from(NOT_JSON), st.lists(st.integers(0, 2) | WHOLE_TEXT))
def test_the_path_in_an_error_leads_to_the_value(sibling, value, steps):
    """Wherever in a value the fault is, the error names exactly that place."""
    place = "item"
    for step in steps:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    for step in reversed(steps):
        value = [sibling] * step + [value] if isinstance(step, int) else {step: value}
    with pytest.raises(EncodingError) as caught:
        json_value(value, "item")
    assert caught.value.what == place


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"a", ("a",), dt.date(2026, 1, 1)])
def test_a_key_that_is_no_string_is_refused(key):
    """JSON would turn such a key into text, so the value would not come back equal."""
    with pytest.raises(EncodingError) as caught:
        json_value({"a": {key: 1}}, "item")
    assert str(caught.value) == f"item.a cannot be stored: the key {key!r} is not a string"


def test_an_error_message_can_itself_be_stored():
    """A path that leads through a key with a lone surrogate is clean text."""
    with pytest.raises(EncodingError) as caught:
        json_value({"\ud800": {"\udfff": b""}}, "item")
    assert decode(encode(str(caught.value)), str) == str(caught.value)


@pytest.mark.parametrize("leaf", [[], {}, 0, "text"])
def test_nesting_is_allowed_up_to_the_limit_and_refused_beyond(leaf):
    """`MAX_DEPTH` levels of lists and objects are stored; one more is refused."""
    inner = isinstance(leaf, list | dict)
    deepest = nested(MAX_DEPTH - inner, leaf)
    assert decode(encode(json_value(deepest, "item")), Any) == deepest
    with pytest.raises(EncodingError, match=f"^item cannot be stored: nested over {MAX_DEPTH}"):
        json_value([deepest], "item")


@pytest.mark.parametrize("leaf", [math.nan, "\ud800", ()])
def test_the_nesting_limit_is_the_same_for_values_that_a_rule_changes(leaf):
    """Whether a value is walked or not, the limit counts the same levels."""
    inner = isinstance(leaf, tuple)
    json_value(nested(MAX_DEPTH - inner, leaf), "item")
    with pytest.raises(EncodingError, match="nested over"):
        json_value(nested(MAX_DEPTH - inner + 1, leaf), "item")


def test_many_brackets_side_by_side_are_not_nesting():
    """The limit counts levels, not brackets."""
    wide = [[], {}] * 1000 + ["[" * 1000]
    assert json_value(wide, "item") == wide


@pytest.mark.parametrize("levels", [10_000, 200_000])
def test_absurd_nesting_is_an_ordinary_error(levels):
    """No depth overflows the stack."""
    with pytest.raises(EncodingError, match="nested over"):
        json_value(nested(levels, 0), "item")


def test_a_value_that_holds_itself_is_refused():
    """A cycle has no end, so it is nested too deeply."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(EncodingError, match="nested over"):
        json_value(cycle, "item")


@given(JSON_VALUES, WHOLE_TEXT | st.none())
def test_records_come_back_equal(item, text):
    """A record is read back equal to what was written."""
    message = FrameworkMessage(MessageRole.TOOL, item, text)
    assert decode(encode(message), FrameworkMessage) == message


def test_encode_names_what_cannot_be_encoded():
    """A value without a JSON form is an `EncodingError`, with the cause kept."""
    with pytest.raises(EncodingError, match=r"^usage cannot be stored: ") as caught:
        encode(object(), "usage")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DexAgentsError)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(EncodingError):
        encode("\ud800")
    with pytest.raises(EncodingError):
        encode(nested(100_000, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"input_tokens": "many"}',
        b"[]",
        b"null",
        b'{"input_tokens": 1}x',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_bytes_that_hold_no_such_record_are_a_stored_record_error(data):
    """Damaged or foreign bytes give one readable error."""
    with pytest.raises(StoredRecordError, match=r"^The stored usage cannot be read: "):
        decode(data, AgentUsage, "usage")


class _Left(msgspec.Struct):
    a: int


class _Right(msgspec.Struct):
    b: int


class _Plain:
    pass


@pytest.mark.parametrize("tp", [_Left | _Right, _Plain, list[_Plain], complex, object])
def test_types_without_a_codec_are_refused(tp):
    """A type that JSON has no form for is a ``TypeError``, before any value is written."""
    with pytest.raises(TypeError):
        require_codec(tp)


@pytest.mark.parametrize(
    "tp", [int, str | None, Any, list[Any], dict[str, AgentUsage], type(None), _Left, msgspec.Raw]
)
def test_types_with_a_codec_pass(tp):
    """Records, plain types and unions of them can be encoded and decoded."""
    require_codec(tp)
