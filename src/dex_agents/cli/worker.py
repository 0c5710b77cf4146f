"""``worker``: serves a flow until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click
import structlog

from dex_agents.cli.flows import flow_argument, load_flow
from dex_agents.cli.render import printable
from dex_agents.cli.stores import open_store, store_option
from dex_agents.errors import StoreError
from dex_agents.executor import LONGEST_LEASE_SECONDS
from dex_agents.table import FlowTable

__all__ = ("concurrency_option", "lease_option", "serve", "worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_AT_LEAST = 0.1


def lease_option(default: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command ``--lease``."""
    return click.option(
        "--lease",
        metavar="SECONDS",
        type=click.FloatRange(min=_AT_LEAST, max=LONGEST_LEASE_SECONDS),
        default=default,
        show_default=True,
        help="How long sessions stay this worker's own when it dies.",
    )


concurrency_option = click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="How many Steps run at once.",
)


@click.command()
@flow_argument()
@store_option
@lease_option(15.0)
@concurrency_option
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How long running calls may go on after the first signal.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every Step, not only warnings.")
def worker(
    flow: str, store: str, lease: float, concurrency: int, grace: float, *, verbose: bool
) -> None:
    """Serve the sessions of one agent.

    MODULE:FLOW is a FlowTable, or a function that returns one. The current folder can be
    imported. SIGTERM or Ctrl-C lets running calls finish within the grace period; a second
    signal stops at once, and what was running counts as it does after a crash.
    """
    table = load_flow(flow)
    _log_to_stderr(verbose=verbose)
    asyncio.run(serve(table, store, lease=lease, concurrency=concurrency, grace=grace))


async def serve(
    table: FlowTable, store: str, *, lease: float, concurrency: int, grace: float
) -> None:
    """Serve a flow until SIGTERM or SIGINT.

    Raises:
        StoreError: The store cannot be opened, or was lost or found damaged meanwhile.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _stop, number, stopping)
    async with open_store(store, creates=True) as backend:
        options = {"lease_seconds": lease, "max_concurrent_steps": concurrency}
        async with backend.worker([table], grace_seconds=grace, **options) as serving:
            click.echo(f"Worker {os.getpid()} serves {table.flow_type} on {store}. Ctrl-C ends it.")
            if (error := await _end_of_store(serving, stopping)) is not None:
                raise error
            click.echo(f"Worker {os.getpid()} lets running calls finish.")
    click.echo(f"Worker {os.getpid()} has ended.")


async def _end_of_store(serving: Any, stopping: asyncio.Event) -> StoreError | None:
    """Wait for a signal, or for the end of a store that this process keeps; return the latter."""
    stop = asyncio.ensure_future(stopping.wait())
    end_of_store = getattr(serving, "end_of_store", stopping.wait)  # a server looks after its own
    end = asyncio.ensure_future(end_of_store())
    try:
        await asyncio.wait((stop, end), return_when=asyncio.FIRST_COMPLETED)
        found = end.result() if end.done() else None
        return found if isinstance(found, StoreError) else None
    finally:
        stop.cancel()
        end.cancel()


def _stop(number: int, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(128 + number)  # at once means: no matter what still runs, in whatever thread
    stopping.set()


_line = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])


def _line_and_stack(logger: Any, name: str, event: structlog.typing.EventDict) -> str:
    """Return a log line, and behind it where a runner raised an error."""
    stack, session = event.pop("stacktrace", None), event.get("session_id")
    line = _line(logger, name, event)
    if stack is None:
        return line
    # The message may quote what the session is about: a log is no place for it.
    where = f"for its message: dex-agents history {session}"
    return f"{line}\nTraceback:\n{printable(stack)} ({printable(where)})"


def _log_to_stderr(*, verbose: bool) -> None:
    level = "info" if verbose else "warning"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso"),
            _line_and_stack,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
