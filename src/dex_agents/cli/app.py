"""The command group, and the boundary at which errors become one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from dex_agents.cli.approvals import approve, reject
from dex_agents.cli.demo import demo
from dex_agents.cli.render import printable
from dex_agents.cli.replay import replay
from dex_agents.cli.sessions import send, sessions, start, stop
from dex_agents.cli.showing import show
from dex_agents.cli.stores import group_store_option
from dex_agents.cli.tracing import trace
from dex_agents.cli.watching import events, graph, history
from dex_agents.cli.worker import worker
from dex_agents.errors import DexAgentsError

__all__ = ("app",)

_INTERRUPTED = 128 + signal.SIGINT
_NO_READER = 128 + signal.SIGPIPE


class Application(click.Group):
    """Lists commands in the order of a first visit, and ends them without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; every error of our own becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except DexAgentsError as error:
            raise click.ClickException(printable(str(error))) from error
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:
            # Whoever read has enough. What is left in the buffer has nowhere to go, either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(_NO_READER)


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dex-agents")
@group_store_option
def app() -> None:
    """Durable sessions for AI agents.

    Begin with "dex-agents demo". It needs no key and no network.
    """


for _command in (
    demo,
    worker,
    start,
    send,
    sessions,
    show,
    approve,
    reject,
    events,
    history,
    trace,
    graph,
    stop,
    replay,
):
    assert _command.help is not None  # every docstring here begins with a summary
    _command.short_help = " ".join(_command.help.split("\n\n")[0].split())  # in full
    app.add_command(_command)
