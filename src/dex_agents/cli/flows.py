"""Finds the FlowTable that ``MODULE:FLOW`` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dex_agents.cli.errors import CommandError
from dex_agents.errors import DexAgentsError
from dex_agents.table import FlowTable

__all__ = ("flow_argument", "load_flow")


Command = TypeVar("Command", bound=Callable[..., Any])


def flow_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Give a command the argument ``MODULE:FLOW``, as ``flow``."""
    return click.argument("flow", metavar="MODULE:FLOW", required=required, callback=_checked)


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    module, _, attribute = value.partition(":")
    if not module or not attribute:
        problem = f"{value!r} is not of the form MODULE:FLOW, such as 'my_agent:flow'."
        raise click.BadParameter(problem, ctx, param)
    return value


def load_flow(name: str) -> FlowTable:
    """Return the FlowTable that ``MODULE:FLOW`` names; the current folder can be imported.

    Args:
        name: A module, and its attribute: a FlowTable, or a function without
            arguments that returns one.

    Raises:
        CommandError: The module cannot be imported, or holds no such thing.
    """
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        table = found() if callable(found) else found
    except DexAgentsError:
        raise
    except Exception as error:
        raise CommandError(_explain(name, error, here)) from error
    if not isinstance(table, FlowTable):
        raise CommandError(
            f"{name} is {type(table).__name__}, not a FlowTable. "
            "Name what session_table(...) returned, or a function that returns it."
        )
    return table


def _explain(name: str, error: Exception, here: str) -> str:
    module = name.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name in _prefixes(module):
        return (
            f"{name} cannot be loaded: {error.msg}. It was looked for in {here} and among what is "
            "installed. Go to the folder of my_agent.py, and name what is in it: my_agent:flow"
        )
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    at = f" ({own[-1].filename}, line {own[-1].lineno})" if len(own) > 1 else ""
    return f"{name} cannot be loaded: {type(error).__name__}: {error}{at}"


def _prefixes(module: str) -> list[str]:
    """Return a module's name and those of the packages that it is in."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
