"""JSON in and out: what went in comes back equal, or an error says why.

Every record is stored and sent as JSON, so that an operator can read it with
ordinary tools. A value from a runner may be any JSON value. Where Python can
hold more than JSON can, one rule each applies, the same everywhere:

- a lone surrogate in text becomes U+FFFD, because UTF-8 cannot carry it;
- NaN and the infinities become ``null``, as in JavaScript;
- a tuple becomes a list;
- NUL is kept, and so are integers of up to 4299 digits; a longer one is
  refused, because Python by itself refuses to read it again;
- anything else that is not JSON (bytes, dates, sets, objects, keys that are
  not strings, keys that a rule above makes equal) is refused with an error
  that names where it stands;
- nesting beyond `MAX_DEPTH` levels is refused, so that whatever was stored
  can be read again on any stack.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeVar

import msgspec

from dex_agents.errors import EncodingError, StoredRecordError

__all__ = (
    "MAX_DEPTH",
    "clean_text",
    "decode",
    "encode",
    "json_value",
    "require_codec",
    "require_type",
)

MAX_DEPTH = 256
"""The deepest nesting of lists and objects that a stored value may have."""

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_plain = msgspec.json.Decoder()


@functools.cache
def _decoder(tp: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(tp)


def require_codec(tp: Any) -> None:
    """Raise ``TypeError`` when values of this type can be neither encoded nor decoded."""
    _decoder(tp)
    try:
        msgspec.json.schema_components([tp])  # a decoder leaves unknown classes to a hook
    except TypeError as error:
        raise TypeError("it needs a class that JSON has no form for") from error


def require_type(value: Any, tp: Any, what: str) -> None:
    """Raise `EncodingError` when a value is of another class than its row's type, if it is one."""
    try:
        is_another = isinstance(tp, type) and not isinstance(value, tp)
    except TypeError:  # Any and every TypedDict are classes that have no instances
        return
    if is_another:
        raise EncodingError(what, f"it holds {tp.__name__}, not {type(value).__name__}")


def encode(value: Any, what: str = "value") -> bytes:
    """Return the JSON of a record.

    Args:
        value: A record, or anything that msgspec encodes.
        what: What the value is, for the error message.

    Raises:
        EncodingError: The value has no JSON form.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EncodingError(what, str(error) or type(error).__name__) from error


def decode(data: bytes, tp: type[T], what: str = "record") -> T:
    """Return the record of type ``tp`` that ``data`` holds; unknown fields are ignored.

    Raises:
        StoredRecordError: The bytes hold no such record.
    """
    try:
        return _decoder(tp).decode(data)  # type: ignore[no-any-return, arg-type]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise StoredRecordError(what, str(error)) from error


def clean_text(text: str) -> str:
    """Return the text with every lone surrogate replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_value(value: Any, what: str) -> Any:
    """Return a JSON value that is stored and read back equal to itself.

    The usual case costs one encoding, one decoding and one comparison in C.
    Only a value that fails it is walked, to apply this module's rules or to
    name the place of what cannot be stored.

    Args:
        value: What a runner gave.
        what: What it is, for the error message, such as ``"framework_item"``.

    Raises:
        EncodingError: The value is not JSON; the message names the place.
    """
    try:
        raw = _encoder.encode(value)
        if (raw.count(b"[") + raw.count(b"{")) <= MAX_DEPTH and _plain.decode(raw) == value:
            return value
    except (TypeError, ValueError, RecursionError, OverflowError):
        pass
    return _walk(value, what, 0)


def _walk(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _walk_int(value, path)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, list | tuple | dict):
        raise EncodingError(path, f"{type(value).__name__} is not JSON; convert it first")
    if depth >= MAX_DEPTH:
        raise EncodingError(
            path.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0],
            f"nested over {MAX_DEPTH} levels",
        )
    if isinstance(value, dict):
        return _walk_dict(value, path, depth)
    return [_walk(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]


def _walk_dict(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    walked: dict[str, Any] = {}
    for key, item in value.items():
        name = _walk_key(key, path)
        if name in walked:
            raise EncodingError(path, f"two keys become {name!r} without their lone surrogates")
        walked[name] = _walk(item, f"{path}.{name}", depth + 1)
    return walked


def _walk_key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return clean_text(key)
    raise EncodingError(path, f"the key {key!r} is not a string")


def _walk_int(value: int, path: str) -> int:
    try:
        _plain.decode(_encoder.encode(value))
    except (ValueError, OverflowError) as error:
        raise EncodingError(path, str(error)) from error
    return value
