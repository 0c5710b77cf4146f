"""Which versions of the Dex SDK this backend was made for."""

from __future__ import annotations

import re
from importlib.metadata import version

from dex_agents.errors import DexAgentsError

__all__ = ("IncompatibleDexError", "require_sdk")

_LEAST, _BELOW = (1, 23), (2, 0)


class IncompatibleDexError(DexAgentsError, ImportError):
    """The installed SDK or the server is of a version that this backend was not made for."""

    def __init__(self, what: str, found: str, needed: str) -> None:
        super().__init__(f"{what} is {found}; this dex-agents needs {needed}.")


def require_sdk(found: str | None = None) -> None:
    """Raise `IncompatibleDexError` unless the installed SDK is one that fits.

    Args:
        found: The version, if not the installed one.

    Raises:
        ImportError: No SDK is installed.
    """
    found = found or version("dex-python-sdk")
    numbers = re.match(r"(\d+)(?:\.(\d+))?", found)
    if numbers is None or not _LEAST <= (int(numbers[1]), int(numbers[2] or 0)) < _BELOW:
        raise IncompatibleDexError(
            "The installed dex-python-sdk",
            found,
            "1.23 or a later 1.x: pip install 'dex-agents[dex]'",
        )
