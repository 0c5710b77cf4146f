"""What else somebody would pick, each in a process of its own that prints one line of JSON."""

from __future__ import annotations
