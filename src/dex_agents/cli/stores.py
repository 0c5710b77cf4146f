"""Which store a command works on, and how it is opened."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from dex_agents.backend import Backend, Capability, open_backend
from dex_agents.cli.errors import CommandError, StoreMissingError
from dex_agents.client import AgentSessionClient

__all__ = (
    "DEFAULT_STORE",
    "group_store_option",
    "named_backend",
    "open_session",
    "open_store",
    "optional_store_option",
    "require_shared",
    "store_option",
    "typed_command",
)

DEFAULT_STORE = "sqlite:///dex-agents.db"
STORE_VARIABLE = "DEX_AGENTS_STORE"

_CHOSEN = "dex_agents.cli.store"

Command = TypeVar("Command", bound=Callable[..., Any])


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_CHOSEN] = value


def _chosen(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    return value or ctx.meta.get(_CHOSEN) or DEFAULT_STORE


def _chosen_or_none(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    return value or ctx.meta.get(_CHOSEN)


def group_store_option(function: Command) -> Command:
    """Give the command group the option ``--store``, for every command behind it."""
    return click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_remember,
        help=f"Where sessions are kept.  [default: {DEFAULT_STORE}]",
    )(function)


def store_option(function: Command) -> Command:
    """Give a command ``--store`` of its own, and the chosen URL as ``store``."""
    return click.option(
        "--store", metavar="URL", callback=_chosen, help="Where sessions are kept."
    )(function)


def optional_store_option(function: Command) -> Command:
    """Give a command ``--store``; its ``store`` is None when nobody has chosen one."""
    return click.option(
        "--store", metavar="URL", callback=_chosen_or_none, help="Where sessions are kept."
    )(function)


def typed_command(store: str, *words: str) -> str:
    """Return a command as a person types it to work on this store."""
    option = () if store == os.environ.get(STORE_VARIABLE, DEFAULT_STORE) else ("--store", store)
    return shlex.join(("dex-agents", *option, *words))


def named_backend(url: str) -> Backend:
    """Return the backend of a URL, not yet opened.

    Raises:
        CommandError: It is no URL.
        BackendNotFoundError: No installed distribution offers its scheme.
    """
    if ":" not in url:
        raise CommandError(f"{url!r} names no store. Write it as a URL: --store sqlite:///{url}")
    return open_backend(url)


def require_shared(backend: Backend, url: str) -> None:
    """Refuse a store that ends with this process, or that no other process can open.

    Raises:
        CommandError: The store is such a one.
    """
    if not {Capability.DURABLE, Capability.MULTI_PROCESS} <= backend.capabilities:
        raise CommandError(
            f"The store {url} lives in one process only. Name one that lasts: --store "
            f"{DEFAULT_STORE}"
        )


@asynccontextmanager
async def open_store(url: str, *, creates: bool = False) -> AsyncIterator[Backend]:
    """Open the store of a URL while the block runs.

    Args:
        url: As in ``--store``.
        creates: Whether a store that is not there is made. Merely looking makes none.

    Raises:
        CommandError: The URL names no store that other commands could open.
        StoreMissingError: There is none, and none is to be made.
        StoreError: It cannot be opened.
    """
    backend = named_backend(url)
    require_shared(backend, url)
    path = getattr(backend, "path", None)  # a store without a file is asked by opening it
    if not creates and isinstance(path, Path) and _is_missing(path):
        raise StoreMissingError(path)
    async with backend:
        yield backend


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:
        return False  # it cannot even be looked for, and opening it says why


@asynccontextmanager
async def open_session(url: str, session_id: str) -> AsyncIterator[AgentSessionClient]:
    """Open the store that holds a session, and yield a client of its flow type.

    Raises:
        FlowNotFoundError: There is no such session.
        StoreError: The store is missing or cannot be opened.
    """
    async with open_store(url) as backend:
        summary = await backend.describe_flow(session_id)
        yield AgentSessionClient(backend, summary.flow_type)
