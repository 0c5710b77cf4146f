"""What a handler is shown: ordinary Attributes and queue sizes always, the rest when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dex.dexpb import dex_pb2 as pb

from dex_agents_dex.emulator.envelope import unwrap
from dex_agents_dex.emulator.run import Run

__all__ = ("messages_of", "snapshot")


def snapshot(
    run: Run, map_instances: Sequence[str], channels: Sequence[str], channel_maps: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of a request that show a run's data, with the selectors echoed.

    Args:
        run: The run.
        map_instances: ``"Map/"`` for a whole AttributeMap, ``"Map/key"`` for one instance.
        channels: Channels whose messages are shown.
        channel_maps: The same of ChannelMaps, written as map instances.
    """
    loaded = {name: messages_of(run, name) for name in channels}
    for selector in channel_maps:
        names = _names(selector, run.state.queues) if selector.endswith("/") else [selector]
        loaded |= {name: messages_of(run, name) for name in names}
    return {
        "attributes": [
            pb.KV(key=name, value=value)
            for name, value in sorted(run.attributes.items())
            if "/" not in name or any(_selects(each, name) for each in map_instances)
        ],
        "channel_infos": {
            name: pb.ChannelInfo(size=len(queue)) for name, queue in run.state.queues.items()
        },
        "loaded_channel_messages": {
            name: pb.ChannelValues(messages=messages) for name, messages in loaded.items()
        },
        "loaded_attribute_map_instances": map_instances,
        "loaded_channel_names": channels,
        "loaded_channel_map_instances": channel_maps,
    }


def messages_of(run: Run, channel: str) -> list[pb.ChannelMessage]:
    """Return the queued messages of a Channel, oldest first."""
    return [unwrap(raw, pb.ChannelMessage) for raw in run.state.queues.get(channel, {}).values()]


def _names(prefix: str, names: Any) -> list[str]:
    return sorted(name for name in names if name.startswith(prefix))


def _selects(selector: str, name: str) -> bool:
    return name.startswith(selector) if selector.endswith("/") else name == selector
