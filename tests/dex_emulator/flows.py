"""A Flow written with the SDK alone. What its handlers do, each test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Stream,
    Wait,
    rpc,
)

Script = Callable[[Any], Awaitable[Any]]

title = Attribute("title", str)
body = Attribute("body", str)
count = Attribute("count", int)
notes = AttributeMap("notes", str)
inbox = Channel("inbox", str)
other = Channel("other", str)
rooms = ChannelMap("rooms", str)


class Scripts:
    """What handlers do, by the name that a Step was given as its input."""

    def __init__(self) -> None:
        self.execute: dict[str, Script] = {}
        self.wait: dict[str, Script] = {}
        self.options: dict[str, StepOptions] = {}


class Scripted(Step[str]):
    """A Step that does what its input's script says."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts

    def get_step_options(self) -> StepOptions | None:
        return self.scripts.options.get(type(self).__name__)

    async def execute(self, context: AsyncContext, name: str) -> StepDecision:
        return await self.scripts.execute[name](context)


class Waiting(Scripted):
    """The same with a ``wait_for``."""

    async def wait_for(self, context: AsyncContext, name: str) -> Wait:
        return await self.scripts.wait[name](context)


class Start(Scripted):
    """The first Step."""


class Act(Scripted):
    """A Step to go to."""


class Recover(Scripted):
    """A Step to recover in."""


class Await(Waiting):
    """A Step that waits."""


class ScriptedFlow(Flow[str]):
    """Every kind of Step, RPC and persistence definition."""

    def __init__(self, name: str = "Scripted") -> None:
        self.name = name
        self.scripts = Scripts()
        self.deltas = Stream("deltas", str, 1000)

    def get_flow_type(self) -> str:
        return self.name

    def get_steps(self) -> StepList[str]:
        others = (each(self.scripts) for each in (Act, Recover, Await))
        return StepList.start_step(Start(self.scripts)).other_steps(*others)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(title, body, count, notes, inbox, other, rooms, self.deltas)

    async def handle_timeout(self, context: AsyncContext) -> StepDecision:
        return await self.scripts.execute["timeout"](context)

    @rpc
    async def read(self, context: Context, name: str) -> RPCResult[str]:
        return RPCResult(await self.scripts.execute[name](context))

    @rpc(timeout=timedelta(seconds=1))
    async def hurried(self, context: Context, name: str) -> RPCResult[str]:
        return RPCResult(await self.scripts.execute[name](context))

    @rpc
    async def steer(self, context: Context, name: str) -> RPCResult[str]:
        return await self.scripts.execute[name](context)

    @rpc(lock_attributes=(title.lock(),))
    async def locked(self, context: Context, name: str) -> RPCResult[str]:
        return RPCResult(await self.scripts.execute[name](context))

    @rpc(is_transactional=True, load_channels=(inbox,), load_channel_maps=(rooms,))
    async def transactional(self, context: Context, name: str) -> RPCResult[str]:
        return RPCResult(await self.scripts.execute[name](context))

    @rpc(load_attribute_maps=(notes,))
    async def mapped(self, context: Context) -> RPCResult[str]:
        keys = notes.get_all_instance_keys(context)
        return RPCResult(",".join(f"{key}={notes.get(context, key)}" for key in keys))
