"""Wire messages as text: base64, and in a JSON string where the flow machine carries them."""

from __future__ import annotations

import base64
from typing import TypeVar

from dex.dexpb import dex_pb2 as pb
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import NULL_VALUE
from msgspec import Raw

__all__ = ("NULL", "pack", "unpack", "unwrap", "wrap")

M = TypeVar("M", bound=Message)

NULL = pb.Value(null_value=NULL_VALUE)
"""The value of what there is not."""


def wrap(message: Message) -> Raw:
    """Return a message as JSON; equal messages give equal JSON."""
    return Raw(b'"' + pack(message).encode() + b'"')


def unwrap(raw: Raw | bytes, tp: type[M]) -> M:
    """Return the message that `wrap` was given."""
    return unpack(bytes(raw)[1:-1], tp)


def pack(message: Message) -> str:
    """Return a message as text; equal messages give equal text."""
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def unpack(text: str | bytes, tp: type[M]) -> M:
    """Return the message that `pack` was given."""
    message: M = tp()
    message.ParseFromString(base64.b64decode(text))
    return message
