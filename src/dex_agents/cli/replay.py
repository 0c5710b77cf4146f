"""``replay``: recorded conversations become sessions, and are compared with what was stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dex_agents.backend import Backend
from dex_agents.cli.driving import Driver, SessionReport
from dex_agents.cli.recorded import flow, read_recordings, recorded_flow, tool_names
from dex_agents.cli.render import error_console, print_json, print_line, printable, seconds
from dex_agents.cli.stores import named_backend, require_shared, store_option
from dex_agents.cli.worker import lease_option
from dex_agents.errors import MissingExtraError
from dex_agents.table import FlowTable
from dex_agents.testing import Recording

__all__ = ("flow", "replay")


class Summary(Struct, frozen=True):
    """What a replay did, as ``--json`` prints it."""

    sessions: int
    turns: int
    tool_calls: int
    messages: int
    differences: list[dict[str, str]]
    seconds: float
    backend: str


class _Place(Struct, frozen=True):
    """Where a replay keeps its sessions."""

    backend: str
    store: str
    listening: bool

    @property
    def name(self) -> str:
        """The backend's name."""
        return named_backend(self.store).name if self.backend == "store" else self.backend

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Backend]:
        """Open the backend, and before it the emulator if it needs one."""
        async with AsyncExitStack() as stack:
            url = {"store": self.store, "memory": "memory:"}.get(self.backend)
            if url is None:
                emulator = _emulator()
                await stack.enter_async_context(emulator)
                url = f"dex://{emulator.address}"
                url += "?worker=127.0.0.1:0" if self.listening else ""
            yield await stack.enter_async_context(named_backend(url))


def _emulator() -> Any:
    try:
        return import_module("dex_agents_dex.emulator").DexEmulator()
    except ImportError as error:
        raise MissingExtraError("--backend dex", "dex") from error


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
@click.option(
    "--backend",
    type=click.Choice(["store", "memory", "dex"]),
    default="store",
    show_default=True,
    help="Where: on --store, in memory, or on a Dex emulator that ends with the replay.",
)
@click.option("--listening", is_flag=True, help="On Dex, the worker listens instead of pulling.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many sessions run at once.",
)
@click.option("--reads", metavar="NAMES", default="", help="Tools that only read: a,b,c.")
@click.option("--log", type=click.Path(path_type=Path), help="Note every real tool call here.")
@click.option("--allow-unknown", is_flag=True, help="A result may be unknown after a crash.")
@click.option("--no-worker", is_flag=True, help="Only drive; a worker elsewhere does the work.")
@lease_option(2.0)
def replay(
    file: Path,
    store: str,
    backend: str,
    concurrency: int,
    reads: str,
    log: Path | None,
    lease: float,
    *,
    listening: bool,
    as_json: bool,
    allow_unknown: bool,
    no_worker: bool,
) -> None:
    """Replay recorded conversations as sessions, and compare what was stored.

    FILE holds one conversation a line: {"id", "messages"} in the chat format. Sessions that
    exist go on where they stand, so a replay that was cut off is simply run again. The exit
    code is 1 when a session differs from its recording.

    With --no-worker, start "dex-agents worker dex_agents.cli.replay:flow" beside it, with the
    file named in DEX_AGENTS_REPLAY_FILE and the reads in DEX_AGENTS_REPLAY_READS.
    """
    if backend != "store" and no_worker:
        raise click.UsageError(
            f"No other process can work on --backend {backend}: leave out --no-worker."
        )
    if listening and backend != "dex":
        raise click.UsageError("--listening needs --backend dex.")
    recordings = read_recordings(file)
    if backend == "store":
        require_shared(named_backend(store), store)
    table = recorded_flow(recordings, tool_names(reads), log)
    place = _Place(backend, store, listening)
    run = _replay(
        recordings,
        table,
        place,
        concurrency=concurrency,
        worker_options=None if no_worker else {"lease_seconds": lease},
        allow_unknown=allow_unknown,
    )
    if no_worker:
        click.echo("Waiting for: dex-agents worker dex_agents.cli.replay:flow", err=True)
    begun = time.monotonic()
    reports = asyncio.run(run)
    summary = _summary(reports, time.monotonic() - begun, place.name)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
    if summary.differences:
        raise click.exceptions.Exit(1)


async def _replay(
    recordings: Sequence[Recording],
    table: FlowTable,
    place: _Place,
    *,
    concurrency: int,
    worker_options: dict[str, float] | None,
    allow_unknown: bool,
) -> list[SessionReport]:
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(place.opened())
        if worker_options is not None:
            await stack.enter_async_context(backend.worker([table], **worker_options))
        progress = stack.enter_context(_progress())
        total = sum(len(each.user_messages) for each in recordings)
        task = progress.add_task("turns", total=total)
        driver = Driver(
            backend,
            table,
            allow_unknown=allow_unknown,
            advance=lambda turns: progress.advance(task, turns),
        )
        return await driver.drive_all(recordings, concurrency)


def _progress() -> Progress:
    console = error_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _summary(reports: Sequence[SessionReport], length: float, backend: str) -> Summary:
    return Summary(
        sessions=len(reports),
        turns=sum(each.turns for each in reports),
        tool_calls=sum(each.tool_calls for each in reports),
        messages=sum(each.messages for each in reports),
        differences=[
            {"session_id": each.session_id, "difference": difference}
            for each in reports
            for difference in each.differences
        ],
        seconds=round(length, 3),
        backend=backend,
    )


def _print_summary(summary: Summary) -> None:
    for each in summary.differences:
        print_line(printable(f"{each['session_id']}: {each['difference']}"))
    count = len(summary.differences)
    print_line(
        f"{summary.sessions} sessions, {summary.turns} turns, {summary.tool_calls} tool calls and "
        f"{summary.messages} messages on {summary.backend} in {seconds(summary.seconds)}: "
        f"{count or 'no'} difference{'' if count == 1 else 's'}.",
        "bold",
    )
