"""How fast sessions run: ``python -m bench`` from the repository's root. See ``README.md``."""

from __future__ import annotations
