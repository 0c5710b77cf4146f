"""A flow whose handlers a test writes as it goes, on an open backend with a worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from dex_agents.backend import Backend, FlowSummary, StepHistoryEntry
from dex_agents.table import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Decision,
    FlowTable,
    Movement,
    RetryPolicy,
    Rpc,
    RpcContext,
    RpcResult,
    Step,
    StepContext,
    StepOptions,
    Stream,
    Wait,
)
from dex_agents.testing.waiting import wait_until

__all__ = ("INBOX", "LOG", "NOTES", "OTHER", "ROOMS", "VALUE", "Lab")

VALUE = Attribute("Value", str)
NOTES = AttributeMap("Notes", str)
INBOX = Channel("Inbox", str)
OTHER = Channel("Other", str)
ROOMS = ChannelMap("Rooms", str)
LOG = Stream("Log", str, 1024 * 1024)

Handler: TypeAlias = Callable[[Any], Any]

_STEPS = ("Begin", "Act", "Await", "Inline", "Recover")
_PATIENCE = 20.0


class Lab:
    """Starts flows whose Steps do what the test's functions say.

    Every Step takes the name of a function as its input, and runs it. Five
    Steps may go to each other: ``Begin``, ``Act``, ``Await`` (which waits
    first, as a second function says), ``Inline`` and ``Recover``. The row ``Stray``
    stands for a Step that nobody may go to but an RPC.

    Args:
        backend: Open.
        flow_type: Of the lab's flows.
    """

    def __init__(self, backend: Backend, flow_type: str) -> None:
        self.backend = backend
        self.seen: list[Any] = []
        self._executes: dict[str, Handler] = {}
        self._waits: dict[str, Handler] = {}
        self._calls: dict[str, Handler] = {}
        self._numbers = itertools.count(1)
        self.table = self._table(flow_type)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """Serve the lab's flows while the block runs."""
        async with self.backend.worker([self.table], grace_seconds=0.0):
            yield

    # What a test writes

    def execute(self, handler: Handler) -> Handler:
        """Let a Step whose input is the function's name run it."""
        self._executes[handler.__name__] = handler
        return handler

    def wait_for(self, name: str) -> Callable[[Handler], Handler]:
        """Let an ``Await`` Step of this input wait as the function says."""

        def keep(handler: Handler) -> Handler:
            self._waits[name] = handler
            return handler

        return keep

    def call(self, handler: Handler) -> Handler:
        """Let the RPCs run the function when they are called by its name."""
        self._calls[handler.__name__] = handler
        return handler

    # What a test asks

    async def start(self, name: str = "begin") -> str:
        """Start a flow whose first Step runs a function; return its ID."""
        flow_id = f"flow-{next(self._numbers)}"
        await self.backend.start_flow(self.table, flow_id, name)
        return flow_id

    async def rpc(self, flow_id: str, name: str, rpc: str = "change") -> Any:
        """Call an RPC: ``read``, ``change`` or ``change_locked``."""
        return await self.backend.invoke_rpc(self.table, flow_id, rpc, name)

    async def send(self, flow_id: str, channel: str, *messages: str) -> None:
        """Publish messages, ``Room/key`` for a room."""
        for message in messages:
            await self.backend.invoke_rpc(self.table, flow_id, "send", f"{channel}={message}")

    async def closed(self, flow_id: str) -> FlowSummary:
        """Return a flow's summary once it is closed."""

        async def look() -> FlowSummary | None:
            summary = await self.backend.describe_flow(flow_id)
            return summary if summary.status != "running" else None

        return await wait_until(f"the end of {flow_id}", look, timeout=_PATIENCE)

    async def sees(self, count: int) -> list[Any]:
        """Return what handlers have noted, once it is so much."""
        description = f"{count} notes of handlers, there are {self.seen}"
        await wait_until(description, lambda: len(self.seen) >= count, timeout=_PATIENCE)
        return self.seen

    async def waits(self, flow_id: str, execution_id: str) -> StepHistoryEntry:
        """Return what the history says of an execution's wait, once it is stored."""

        async def look() -> StepHistoryEntry | None:
            found = (
                each
                for each in await self.history(flow_id)
                if each.event_type == "step_wait_for_completed"
                and each.step_execution_id == execution_id
            )
            return next(found, None)

        return await wait_until(f"{execution_id} waiting", look, timeout=_PATIENCE)

    async def history(self, flow_id: str) -> Sequence[StepHistoryEntry]:
        """Return a flow's history."""
        return await self.backend.read_history(flow_id)

    async def log(self, flow_id: str) -> list[str]:
        """Return what handlers wrote to the Stream."""
        stream = self.backend.read_stream(self.table, flow_id, "Log", None, follow=False)
        return [each.value async for each in stream]

    # The table

    def _table(self, flow_type: str) -> FlowTable:
        targets = _STEPS
        options = StepOptions(retry=RetryPolicy(max_attempts=1))
        rows = [
            Step(name, self._run, input=str, options=options, next_steps=targets)
            for name in ("Begin", "Act", "Recover")
        ]
        rows.append(
            Step(
                "Await",
                self._run,
                input=str,
                wait_for=self._wait,
                options=options,
                next_steps=targets,
            )
        )
        rows.append(
            Step(
                "Inline",
                self._run,
                input=str,
                options=options,
                next_steps=targets,
                is_inline=True,
            )
        )
        rows.append(Step("Stray", self._run, input=str, options=options))
        everything = (NOTES,)
        return FlowTable(
            flow_type,
            steps=tuple(rows),
            rpcs=(
                Rpc("read", self._answer, str, str, is_read_only=True, loads=everything),
                Rpc(
                    "change", self._answer, str, str, loads=everything, next_steps=("Act", "Stray")
                ),
                Rpc("change_locked", self._answer, str, str, locks=(VALUE,)),
                Rpc("send", _send, str),
            ),
            persistence=(VALUE, NOTES, INBOX, OTHER, ROOMS, LOG),
        )

    async def _run(self, context: StepContext, name: str) -> Decision:
        found = self._executes[name](context)
        decision = await found if isinstance(found, Awaitable) else found
        return decision if decision is not None else Decision.graceful_complete()

    async def _wait(self, context: StepContext, name: str) -> Wait:
        found = self._waits[name](context)
        wait: Wait = await found if isinstance(found, Awaitable) else found
        return wait

    def _answer(self, context: RpcContext, name: str) -> RpcResult[str]:
        found = self._calls[name](context)
        return found if isinstance(found, RpcResult) else RpcResult(found or "")


def _send(context: RpcContext, message: str) -> RpcResult[None]:
    name, _, text = message.partition("=")
    if "/" in name:
        context.publish(ROOMS[name.partition("/")[2]], text)
    else:
        context.publish({"Inbox": INBOX, "Other": OTHER}[name], text)
    return RpcResult(None)


def act(name: str, **options: Any) -> Movement:
    """Return a movement to ``Act`` that runs a function, with options if any are given."""
    return Movement("Act", name, StepOptions(**options) if options else None)


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()
