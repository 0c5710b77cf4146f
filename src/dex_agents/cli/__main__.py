"""Starts the command line, or says what is missing for it."""

from __future__ import annotations

import sys

__all__ = ("main",)

_EXTRA = ("click", "rich")


def main() -> None:
    """Run ``dex-agents`` with the arguments of this process."""
    try:
        from dex_agents.cli.app import app  # noqa: PLC0415 - must be able to say that it is missing

        app(prog_name="dex-agents")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            f"Error: the command line needs {error.name}: pip install 'dex-agents[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
