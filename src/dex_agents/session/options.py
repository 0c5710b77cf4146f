"""What an application sets for a session: tool policies, Stream capacity, approval deadline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from msgspec import Struct

from dex_agents.records import ToolEffect
from dex_agents.runner import ToolPolicy

__all__ = ("AgentSessionOptions",)


class AgentSessionOptions(Struct, frozen=True):
    """How every session of one flow type behaves.

    Attributes:
        tool_policies: By tool name. They outrank what the framework says.
        default_tool_effect: For a tool of which neither says anything.
        event_stream_capacity_bytes: How much of ``AgentEvents`` is kept; 10 MiB.
        interrupt_deadline: How long an approval waits before it expires; None for ever.
    """

    tool_policies: Mapping[str, ToolPolicy] = MappingProxyType({})
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED
    event_stream_capacity_bytes: int = 10 * 1024 * 1024
    interrupt_deadline: timedelta | None = None

    def resolve_tool_policy(
        self, name: str, framework_effect: ToolEffect | None = None, /
    ) -> ToolPolicy:
        """Return the explicit policy of a tool, else the framework's effect, else the default."""
        if (policy := self.tool_policies.get(name)) is not None:
            return policy
        return ToolPolicy(ToolEffect(framework_effect or self.default_tool_effect))
