"""Content capture: what may be shown of messages, arguments, results and errors, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import to_builtins

from dex_agents.encoding import encode
from dex_agents.errors import DexAgentsError
from dex_agents.signals import CONTENT_UNREADABLE, REDACTION_FAILED
from dex_agents.telemetry.options import ContentCapture, TelemetryOptions

__all__ = ("Content", "as_attribute")

_LONGEST_BYTES = 256 * 1024
"""The longest content of one attribute; the store has all of it, under the Step's ID."""


class Content:
    """Decides on content; nothing leaves without it.

    Args:
        options: Says what may be shown, and who redacts it.
        warn: Logs that the redaction failed.
    """

    def __init__(self, options: TelemetryOptions, warn: Callable[..., None]) -> None:
        self.capture = options.capture_content or ContentCapture.from_environment()
        self._redact = options.redact
        self._warn = warn

    def shown(self, content: Callable[[], Mapping[str, Any]] | None) -> dict[str, Any]:
        """Return what may be shown, redacted, by attribute; plain values throughout."""
        if content is None or self.capture is ContentCapture.NO_CONTENT:
            return {}
        try:
            values = content()
        except DexAgentsError as error:  # a stored message that cannot be read any more
            self._warn(CONTENT_UNREADABLE, error_type=type(error).__qualname__)
            return {}
        redacted = {key: self._redacted(key, value) for key, value in values.items()}
        return {key: value for key, value in redacted.items() if value is not None}

    def text(self, key: str, text: str) -> str | None:
        """Return what may be shown of an error's message, or None."""
        if self.capture is ContentCapture.NO_CONTENT:
            return None
        redacted = self._redacted(key, text)
        return None if redacted is None else str(redacted)

    def _redacted(self, key: str, value: Any) -> Any:
        plain = to_builtins(value)
        if self._redact is None:
            return plain
        try:
            return to_builtins(self._redact(key, plain))
        except Exception as error:  # noqa: BLE001 - what cannot be redacted is not shown
            self._warn(REDACTION_FAILED, key=key, error_type=type(error).__qualname__)
            return None


def as_attribute(value: Any) -> str:
    """Return content as a span can carry it: JSON, or its size where it is too long."""
    text = encode(value)
    if len(text) > _LONGEST_BYTES:
        text = encode({"truncated": True, "bytes": len(text)})
    return text.decode()
