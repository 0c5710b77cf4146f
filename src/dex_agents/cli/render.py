"""How things look: on a terminal, in a file, and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dex_agents.encoding import encode

__all__ = (
    "as_text",
    "clock_time",
    "console",
    "counted",
    "duration",
    "error_console",
    "print_fields",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "seconds",
    "shortened",
)

_PLAIN_WIDTH = 100
"""The width where no terminal says another."""

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They turn the direction of what follows, so that a text can look like another."""
_UNSEEN = {
    code: f"\\u{code:04x}" for code in (*range(127, 160), 0x2028, 0x2029, *_DIRECTIONS, 0xFEFF)
}
_VISIBLE = {**{code: f"\\x{code:02x}" for code in range(32) if chr(code) not in "\n\t"}, **_UNSEEN}


def printable(text: str) -> str:
    """Return text whose control characters are visible: none reaches a terminal as such."""
    return text.translate(_VISIBLE)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 message`` or ``2 messages``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, length: int = 200) -> str:
    """Return text on one line, cut off behind so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def as_text(value: Any) -> str:
    """Return a JSON value as a person reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else encode(value).decode()


def clock_time(at: float) -> str:
    """Return a time in the local zone, with its offset."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def seconds(length: float) -> str:
    """Return a length of time."""
    return f"{length:.2f} s"


def duration(length: float) -> str:
    """Return a length of time in the units that a person would use."""
    if length < 60:
        return seconds(length)
    minutes, hours, days = length / 60, length / 3600, length / 86400
    if minutes < 60:
        return f"{minutes:.1f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{days:.1f} d"


def console() -> Console:
    """Return the console on standard output."""
    return _console(is_error=False)


def error_console() -> Console:
    """Return the console on standard error."""
    return _console(is_error=True)


def _console(*, is_error: bool) -> Console:
    stream = sys.stderr if is_error else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH
    return Console(stderr=is_error, width=width, markup=False, emoji=False, highlight=False)


def print_line(text: str = "", style: str = "") -> None:
    """Print a line, wrapped at words."""
    _print_stripped(Text(printable(text), style=style))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, in which control characters are escaped."""
    click.echo(encode(value).decode().translate(_UNSEEN))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
    """Print a table; cells wrap where the width does not suffice.

    Args:
        columns: The heads. One that begins with ``#`` is a number, set to the
            right; what stands under one that begins with ``!`` is never broken.
        rows: The cells, as plain text.
        title: Stands above it.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(
            column.lstrip("#!"),
            justify="right" if column.startswith("#") else "left",
            no_wrap=column.startswith("!"),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if title:
        print_line(title, "bold")
    _print_stripped(table)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, Text(printable(value)))
    _print_stripped(table)


def _print_stripped(shown: Table | Text) -> None:
    """Print something without the spaces that fill up its lines."""
    target = console()
    with target.capture() as captured:
        target.print(shown)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
