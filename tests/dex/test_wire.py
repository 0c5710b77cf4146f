"""Promises of `dex_agents_dex.wire`: what is sent comes back equal, or an error says why not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import NoneType
from typing import Any, Literal
from uuid import UUID

import dex
import msgspec
import pytest
from dex.codec import CodecRegistry
from hypothesis import given
from hypothesis import strategies as st

from dex_agents.encoding import decode, encode
from dex_agents.errors import EncodingError, StoredRecordError
from dex_agents_dex.wire import MAX_BYTES, Json, from_wire, hint_of, to_wire

CODECS = CodecRegistry()


class Color(StrEnum):
    """A text of a few."""

    RED = "red"


class Level(IntEnum):
    """A number of a few."""

    HIGH = 2


class Point(msgspec.Struct, frozen=True):
    """A record."""

    x: int
    name: str | None = None
    more: tuple[Any, ...] = ()


class Left(msgspec.Struct, tag=True):
    """One of two."""

    a: int


class Right(msgspec.Struct, tag=True):
    """The other."""

    b: list[Left]


class Held(msgspec.Struct):
    """A record with JSON that is left as it is."""

    raw: msgspec.Raw


def travelled(value: Any, tp: Any, hint: Any = None) -> Any:
    """Return a value as it arrives, after the SDK's own codec has sent it."""
    hint = hint or hint_of(tp)
    sent = to_wire(value, tp, hint, "value")
    codec = CODECS.resolve(hint)
    return from_wire(codec.decode(codec.encode(sent.value)), tp, "value")


@pytest.mark.parametrize(
    ("value", "tp"),
    [
        (None, NoneType),
        ("", str),
        ("NUL \0, ä, 𝄞", str),
        (True, bool),
        (False, bool),
        (0, int),
        (2**63 - 1, int),
        (-(2**63), int),
        (0.1, float),
        (-0.0, float),
        (1e300, float),
        (5e-324, float),
        (None, str | None),
        ("", str | None),
        (None, Point | None),
        (Point(1), Point | None),
        (Point(2**70, "ä\0"), Point),
        (Point(1, None, (1, [2, {"3": None}])), Point),
        (Left(1), Left | Right),
        (Right([Left(1)]), Left | Right),
        (Color.RED, Color),
        (Level.HIGH, Level),
        ([Color.RED], list[Color]),
        ("a", Literal["a", "b"]),
        (datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC), datetime),
        (date(2024, 2, 29), date),
        (timedelta(days=1, microseconds=1), timedelta),
        (UUID(int=5), UUID),
        (Decimal("0.10"), Decimal),
        (b"\0\xff", bytes),
        ({1: "a", -2: "b"}, dict[int, str]),
        ({1.5: "a"}, dict[float, str]),
        ({Color.RED: 1}, dict[Color, int]),
        ({UUID(int=5): 1}, dict[UUID, int]),
        ({date(2024, 2, 29): 1}, dict[date, int]),
        ((1, "a"), tuple[int, str]),
        (frozenset({1, 2}), frozenset[int]),
        ([], list[int]),
        ({}, dict[str, Any]),
        ([[[{"a": [None, 1.5, "x"]}]]], Any),
        (None, Any),
        (2**200, Any),
    ],
)
def test_values_come_back_equal(value, tp):
    """A value of any type arrives equal and of the same type."""
    arrived = travelled(value, tp)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, dict)  # the SDK sorts keys


def test_a_number_of_more_than_64_bits_travels_where_json_carries_it():
    """An Attribute of whole numbers is sent as JSON, which has no greatest number."""
    assert travelled(2**100, int, Json) == 2**100


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_dex_cannot_carry_is_refused(value):
    """An input or message that Dex itself must understand is of 64 bits."""
    with pytest.raises(EncodingError, match="64 bits"):
        to_wire(value, int, int, "number")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_becomes_null(value):
    """The rule of `dex_agents.encoding` holds on the wire, where NaN would be refused."""
    assert travelled(value, Any) is None
    assert travelled([value], list[Any]) == [None]
    assert travelled(value, float | None) is None


@pytest.mark.parametrize(
    ("value", "tp"),
    [
        (1, str),
        ("1", int),
        (1, float),
        (None, str),
        (None, Point),
        (1, NoneType),
        ("red", Color),
        ({"x": 1}, Point),
    ],
)
def test_a_value_of_another_type_is_refused(value, tp):
    """What the local backends refuse, Dex refuses."""
    with pytest.raises(EncodingError, match="thing cannot be stored: it holds"):
        to_wire(value, tp, hint_of(tp), "thing")


@pytest.mark.parametrize("tp", [str, Any, Point])
def test_a_lone_surrogate_in_a_record_is_refused_and_not_half_sent(tp):
    """A record that UTF-8 cannot carry is an error at the place that made it."""
    value = Point(1, "\ud800") if tp is Point else "\ud800"
    with pytest.raises(EncodingError, match="surrogates"):
        to_wire(value, tp, hint_of(tp), "text")


@pytest.mark.parametrize(
    "value",
    [object(), {1: object()}, {(): 1}, 10**5000],
    ids=["object", "object inside", "key", "number"],
)
def test_what_has_no_json_form_is_refused(value):
    """An object, an odd key, a number that Python would not read again: each is an error."""
    with pytest.raises(EncodingError):
        to_wire(value, Any, Json, "thing")


@pytest.mark.parametrize("depth", [200, 256, 900, 5_000, 100_000])
def test_deep_nesting_travels_or_is_refused(depth):
    """Whatever the depth, a value arrives or is refused; nothing else is raised."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    try:
        to_wire(value, Any, Json, "deep")
    except EncodingError:
        assert depth > 256
        return
    arrived, levels = travelled(value, Any), 0
    while arrived:
        (arrived,), levels = arrived, levels + 1
    assert levels == depth


def test_json_left_as_it_is_arrives():
    """A record may hold JSON that nobody decodes."""
    arrived = travelled(Held(msgspec.Raw(b'{"a":[1]}')), Held)
    assert bytes(arrived.raw) == b'{"a":[1]}'


def test_a_boolean_is_a_number_to_python_and_to_no_wire():
    """True where a whole number belongs is refused, as it could not be read again."""
    with pytest.raises((EncodingError, StoredRecordError)):
        travelled(True, int)
    with pytest.raises((EncodingError, StoredRecordError)):
        decode(encode(True), int)


def test_a_stranger_on_the_wire_is_named():
    """A value that is not of the row's type is an error with the row's name."""
    with pytest.raises(StoredRecordError, match="The stored Row cannot be read"):
        from_wire(Json("text"), Point, "Row")


def test_numbers_and_texts_of_a_kind_keep_their_kind():
    """A StrEnum member in a row of text arrives as text."""
    arrived = travelled(Color.RED, str)
    assert arrived == "red"
    assert type(arrived) is str
    assert type(travelled(Level.HIGH, int)) is int


@pytest.mark.parametrize("letter", ["a", "\n", "ä", "語", "😀", '"'])
@pytest.mark.parametrize("tp", [str, list[str]])
def test_a_size_is_never_less_than_what_is_sent(letter, tp):
    """What counts against gRPC's limit is what the SDK writes, escapes and all."""
    text = letter * 1000
    value: Any = text if tp is str else [text]
    hint = hint_of(tp)
    sent = to_wire(value, tp, hint, "text")
    written = CODECS.resolve(hint).encode(sent.value).data
    assert sent.size >= len(str(written).encode())
    assert sent.size <= 2 * len(str(written).encode()) + 10


@pytest.mark.parametrize("tp", [str, Any])
def test_the_greatest_value_is_sent_and_one_byte_more_is_refused(tp):
    """The limit is exact; the error tells the size and the limit."""
    hint = hint_of(tp)
    assert to_wire("x" * (MAX_BYTES - 2), tp, hint, "text").size == MAX_BYTES
    with pytest.raises(EncodingError, match=f"{MAX_BYTES + 1:,} bytes.*{MAX_BYTES:,}"):
        to_wire("x" * (MAX_BYTES - 1), tp, hint, "text")


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_any_json_value_comes_back_as_the_local_backends_store_it(value):
    """The wire changes nothing that storing does not change."""
    assert travelled(value, Any) == decode(encode(value), Any)


@given(JSON_VALUES)
def test_what_is_sent_is_plain_json(value):
    """Any JSON reader, such as Dex Web, sees the value."""
    sent = to_wire(value, Any, Json, "value")
    written = CODECS.resolve(Json).encode(sent.value)
    assert json.loads(str(written.data)) == decode(encode(value), Any)
    assert written.kind is dex.codec.WireKind.JSON
