"""Values on the wire: what a table's types become, and back.

A `Registry` that an application makes knows the SDK's own codecs only. Those
carry text, booleans and whole numbers as they are, and of everything else an
Enum comes closest to "any JSON": its codec writes ``member.value`` as a JSON
document, and reads one by calling the class. So records travel as `Json`,
need no codec of ours, and stand in history as plain JSON objects.
"""

from __future__ import annotations

from enum import Enum
from types import NoneType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from dex_agents.encoding import decode, encode, require_type
from dex_agents.errors import EncodingError

__all__ = ("MAX_BYTES", "Json", "Sized", "from_wire", "hint_of", "require_size", "to_wire")

T = TypeVar("T")

MAX_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""The most that one result may hold: gRPC's limit, less some room for the message around it."""

_AS_THEY_ARE = (str, bool, int)


class Sized(NamedTuple):
    """A value as the SDK takes it, and how many bytes of JSON it is."""

    value: Any
    size: int


class Json(Enum):
    """Any JSON value. Each is a member of its own, made when it is asked for."""

    NULL = None

    @classmethod
    def _missing_(cls, value: object) -> Self:
        member = object.__new__(cls)
        member._name_ = "VALUE"
        member._value_ = value
        return member


def hint_of(tp: Any) -> Any:
    """Return the type that the SDK is told for values of a table's type."""
    return tp if tp in _AS_THEY_ARE or tp is NoneType else Json


def to_wire(value: Any, tp: Any, hint: Any, what: str) -> Sized:
    """Return a value in the form that the SDK takes.

    Args:
        value: A value of the type.
        tp: The type that its row declares.
        hint: The type that the SDK was told for it.
        what: What it is, for the error message.

    Raises:
        EncodingError: It is of another type, has no JSON form, or is too large for gRPC.
    """
    if tp is NoneType and value is None:
        return Sized(None, 0)
    require_type(value, tp, what)
    raw = encode(value, what)
    require_size(len(raw), what)
    try:
        plain = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EncodingError(what, str(error)) from error
    if hint is Json:
        size = _escaped_size(raw)
        require_size(size, what)
        return Sized(Json(plain), size)
    if type(plain) is not hint:  # True, where a whole number belongs
        raise EncodingError(what, f"it holds {hint.__name__}, not {type(plain).__name__}")
    if hint is int and not -(2**63) <= plain < 2**63:
        raise EncodingError(what, "Dex carries whole numbers of 64 bits")
    return Sized(plain, len(raw))


def _escaped_size(raw: bytes) -> int:
    """Return how long JSON is as the SDK writes it, which escapes all that is not ASCII."""
    if raw.isascii():
        return len(raw)
    text = raw.decode()
    plain = len(text.encode("ascii", "ignore"))
    units = len(text.encode("utf-16-le")) // 2
    return plain + (units - plain) * len("\\uffff")


def require_size(size: int, what: str) -> None:
    """Raise `EncodingError` when something is too large to be sent."""
    if size > MAX_BYTES:
        raise EncodingError(
            what, f"it has {size:,} bytes, and a message to Dex holds {MAX_BYTES:,}"
        )


def from_wire(value: Any, tp: type[T], what: str) -> T:
    """Return the value that was sent as `to_wire` says.

    Raises:
        StoredRecordError: It is no value of the type.
    """
    if not isinstance(value, Json):
        return value  # type: ignore[no-any-return]
    try:
        return msgspec.convert(value.value, tp, str_keys=True)
    except (msgspec.ValidationError, RecursionError):
        # Some types, such as Raw, are read from text only. If it is no value, this says so.
        return decode(encode(value.value, what), tp, what)
