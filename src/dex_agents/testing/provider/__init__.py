"""A model provider on this machine: real clients talk to it over HTTP, and a script answers.

It speaks OpenAI's Responses and Chat Completions and Anthropic's Messages, streamed and not.
"""

from __future__ import annotations

from dex_agents.testing.provider.script import Call, Cut, Fault, Reply, Slow
from dex_agents.testing.provider.server import ModelRequest, ProviderServer

__all__ = ("Call", "Cut", "Fault", "ModelRequest", "ProviderServer", "Reply", "Slow")
