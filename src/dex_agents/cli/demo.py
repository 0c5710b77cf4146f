"""``demo``: a session that survives the death of its worker, before your eyes."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from dex_agents.cli.errors import CommandError
from dex_agents.cli.play import FLOW, Play
from dex_agents.cli.proof import Evidence
from dex_agents.cli.render import as_text, print_fields, print_line, print_table, seconds
from dex_agents.cli.stores import named_backend, optional_store_option, require_shared
from dex_agents.cli.story import Story
from dex_agents.errors import DexAgentsError
from dex_agents.records import AgentInterrupt

__all__ = ("demo",)


@click.command()
@click.option("--yes", is_flag=True, help="Approve without asking.")
@optional_store_option
def demo(store: str | None, *, yes: bool) -> None:
    """Watch a session survive kill -9. Start here.

    The model is a script: no key, no network. The store is a SQLite file in a new folder, which
    is kept so that you can look around, or the one that you name with --store.
    """
    if store is not None:
        require_shared(named_backend(store), store)
    with _leaving(), _new_folder(is_kept=store is None) as folder:
        play = Play(store or f"sqlite:///{folder / 'dex-agents.db'}", folder)
        print_line("A night at a small observatory, on a durable session", "bold")
        click.echo(f"Store     {play.store}")
        print_line()
        evidence = _perform(play, yes=yes)
        is_kept = _report(evidence)
        _say_what_next(play, folder if store is None else None)
        if not is_kept:
            raise CommandError("Not everything was as promised; see above.")


@contextmanager
def _new_folder(*, is_kept: bool) -> Iterator[Path]:
    """Make a folder for the demo's files, and remove it unless there is something to look at.

    Args:
        is_kept: Whether a demo that has come to its end keeps it.
    """
    folder = Path(tempfile.mkdtemp(prefix="dex-agents-demo-"))
    try:
        yield folder
    except DexAgentsError as error:
        is_kept = True
        raise CommandError(f"{error}\nThe files of the demo are in {folder}") from error
    except BaseException:
        is_kept = False
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _perform(play: Play, *, yes: bool) -> Evidence:
    try:
        interrupt = asyncio.run(play.until_approval())
        is_approved = _ask(play.story, interrupt, yes=yes)
        return asyncio.run(play.until_answer(interrupt, is_approved=is_approved))
    finally:
        play.end_worker()


@contextmanager
def _leaving() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on Ctrl-C, so that neither a worker nor a folder stays behind.

    An event loop passes an interrupt on to whatever waits. An exception from a signal
    handler would go to whatever runs, which may be a callback that swallows it.
    """
    numbers: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        yield
    except KeyboardInterrupt:
        if numbers:
            sys.exit(128 + numbers[0])
        raise


def _ask(story: Story, interrupt: AgentInterrupt, *, yes: bool) -> bool:
    call = f"{interrupt.tool_name} {as_text(interrupt.arguments)}"
    story.tell("Approve?", call, "bold")
    if yes or not sys.stdin.isatty():
        why = "--yes was given" if yes else "there is no terminal to ask on"
        story.tell("", f"[y/N] y   answered by itself, because {why}")
        return True
    return click.confirm(" " * 9, default=False)


def _report(evidence: Evidence) -> bool:
    print_line()
    print_table(
        ("!Step", "What it did", "#Attempts", "Outcome", "#Took"),
        [
            (
                row.step_execution_id,
                row.what,
                str(row.attempts),
                row.outcome,
                seconds(row.length),
            )
            for row in evidence.steps
        ],
        "What the store says of it",
    )
    print_line()
    print_line("What that proves", "bold")
    findings = list(evidence.findings())
    print_fields([("yes" if each.is_kept else "NO", each.sentence) for each in findings])
    return all(each.is_kept for each in findings)


def _say_what_next(play: Play, folder: Path | None) -> None:
    command = f"{_program()} --store {shlex.quote(play.store)}"
    print_line()
    print_line("Look around in that store", "bold")
    for tool in ("show", "events", "history"):
        click.echo(f"  {command} {tool} {play.session}")
    click.echo(f"  {_program()} graph {FLOW}")
    if folder is not None:
        print_line()
        print_line("It is kept for that. When you have seen enough, remove it", "bold")
        click.echo(f"  rm -r {shlex.quote(str(folder))}")
    print_line()
    print_line("Write a runner of your own: docs/runners.md", "bold")


def _program() -> str:
    """Return the command as the person can type it again."""
    called = Path(sys.argv[0])
    if called.name != "dex-agents":
        return f"{shlex.quote(sys.executable)} -m dex_agents.cli"
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    return shlex.quote(str(called))
