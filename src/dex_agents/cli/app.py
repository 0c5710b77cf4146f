"""The command group, and the boundary at which errors become one line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from dex_agents.cli.render import printable
from dex_agents.cli.stores import group_store_option
from dex_agents.errors import DexAgentsError

__all__ = ("app",)

_COMMANDS = {
    "demo": "demo",
    "worker": "worker",
    "start": "sessions",
    "send": "sessions",
    "sessions": "sessions",
    "show": "showing",
    "approve": "approvals",
    "reject": "approvals",
    "events": "watching",
    "history": "watching",
    "trace": "tracing",
    "graph": "watching",
    "stop": "sessions",
    "replay": "replay",
}
"""Every command, in the order of a first visit, and the module that has it.

A command's module is imported when the command is called for: a worker starts
without what only the demo needs.
"""

_INTERRUPTED = 128 + signal.SIGINT
_NO_READER = 128 + signal.SIGPIPE


class Application(click.Group):
    """Loads a command once it is called for, and ends it without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of a first visit."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; None when there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"dex_agents.cli.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        assert command.help is not None  # every docstring here begins with a summary
        command.short_help = " ".join(command.help.split("\n\n")[0].split())  # in full
        return command

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
