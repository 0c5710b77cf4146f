"""Compiles a `FlowTable` to a Flow that the SDK's Registry accepts.

Every row becomes what an author would have written by hand: a Step class of
its own, an RPC method, a definition of what it stores. All of them call back
into the table's own handlers.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from types import MethodType, NoneType
from typing import Any

import dex

from dex_agents.errors import FlowDefinitionError
from dex_agents.executor import Clock, SystemClock
from dex_agents.table import FlowTable, Rpc, Step, Stream
from dex_agents.telemetry import Telemetry, TelemetryOptions
from dex_agents_dex.calls import FlowCalls
from dex_agents_dex.decisions import Translator, option_problems
from dex_agents_dex.definitions import Definitions
from dex_agents_dex.handlers import Handlers
from dex_agents_dex.wire import hint_of

__all__ = ("CompiledFlow", "compile_flow")

MAX_CAPACITY = 2**63 - 1
"""The greatest capacity of a Stream that the wire holds."""


class CompiledFlow(dex.Flow[Any]):
    """A table as a Dex Flow. Register it with ``allow_async_handlers=True``.

    Its RPCs are attributes of it, by their names, for ``AsyncClient.invoke_rpc``.

    Args:
        table: The table.
        telemetry: Where traces, metrics and logs go; None for the application's own providers.
        clock: What handlers take for the time; None for the system's.

    Raises:
        FlowDefinitionError: Dex has no words for something in it; the message names the rows.
    """

    def __init__(
        self,
        table: FlowTable,
        *,
        telemetry: TelemetryOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.table = table
        self._definitions = Definitions(table)
        self._steps: list[dex.Step[Any]] = []
        if problems := [*_problems(table), *_name_problems(table, self)]:
            raise FlowDefinitionError(table.flow_type, problems)
        classes: dict[str, type[dex.Step[Any]]] = {}
        translator = Translator(table, self._definitions, classes)
        watched = Telemetry("dex", telemetry)
        clock = clock or SystemClock()
        handlers = Handlers(table, self._definitions, translator, watched, clock)
        self._handlers = handlers
        for step in table.steps:
            classes[step.name] = _step_class(step, handlers, translator)
        self._steps += [step_class() for step_class in classes.values()]
        for row in table.rpcs:
            setattr(self, row.name, MethodType(_rpc(row, handlers, self._definitions), self))

    def abandon(self) -> None:
        """Fail every attempt that runs in this process: its worker ends."""
        self._handlers.abandon()

    def get_flow_type(self) -> str:
        """Return the table's flow type."""
        return self.table.flow_type

    def get_steps(self) -> dex.StepList[Any]:
        """Return one Step of each generated class."""
        first, *others = self._steps
        return dex.StepList.start_step(first).other_steps(*others)

    def get_persistence_schema(self) -> dex.PersistenceSchema:
        """Return the definitions of every row that holds data."""
        return self._definitions.schema()

    def stream(self, name: str) -> dex.Stream[Any]:
        """Return the definition of a Stream, for the client's ``read_stream``."""
        definition: dex.Stream[Any] = self._definitions.stream(self.table.rows[name])  # type: ignore[arg-type]
        return definition

    def backend_for(self, client: dex.AsyncClient) -> FlowCalls:
        """Return a backend that reaches this flow through a client with which it is registered."""
        return FlowCalls(client, self)


def compile_flow(table: FlowTable, **options: Any) -> CompiledFlow:
    """Return a table as a Dex Flow; see `CompiledFlow` for its options and errors."""
    return CompiledFlow(table, **options)


def _step_class(row: Step[Any], handlers: Handlers, translator: Translator) -> type[dex.Step[Any]]:
    async def execute(_: Any, context: Any, input: Any) -> Any:  # noqa: A002 - the SDK's name
        return await handlers.execute(row, context, input)

    async def wait_for(_: Any, context: Any, input: Any) -> Any:  # noqa: A002 - the SDK's name
        return await handlers.wait_for(row, context, input)

    hints = {"context": dex.AsyncContext, "input": hint_of(row.input)}
    execute.__annotations__ = {**hints, "return": dex.StepDecision}
    wait_for.__annotations__ = {**hints, "return": dex.Wait}
    members: dict[str, Any] = {
        "__doc__": f"The Step {row.name} of a compiled table.",
        "execute": execute,
        "get_step_type": lambda _: row.name,
        "get_step_options": lambda _: translator.options(row.options),
    }
    if row.wait_for is not None:
        members["wait_for"] = wait_for
    return types.new_class(row.name, (dex.Step,), exec_body=lambda names: names.update(members))


def _rpc(
    row: Rpc[Any, Any], handlers: Handlers, definitions: Definitions
) -> Callable[..., dex.RPCResult[Any]]:
    """Return an RPC's method. One that changes the flow does so in a transaction."""

    def with_input(_: Any, context: Any, input: Any) -> Any:  # noqa: A002 - the SDK's name
        return handlers.invoke(row, context, input)

    def without_input(_: Any, context: Any) -> Any:
        return handlers.invoke(row, context, None)

    method: Callable[..., Any] = without_input if row.input is NoneType else with_input
    method.__annotations__ = {
        "context": dex.Context,
        "return": dex.RPCResult[hint_of(row.output)],  # type: ignore[misc]
    }
    if row.input is not NoneType:
        method.__annotations__["input"] = hint_of(row.input)
    decorate = dex.rpc(
        name=row.name,
        is_transactional=not row.is_read_only,
        lock_attributes=definitions.locks(row.locks),
        **definitions.loads(row.loads).for_method(),
    )
    return decorate(method)


def _problems(table: FlowTable) -> Iterator[str]:
    """Yield what Dex has no words for."""
    for step in table.steps:
        yield from option_problems(step.name, step.options)
    for row in table.persistence:
        if isinstance(row, Stream) and row.capacity_bytes > MAX_CAPACITY:
            yield f"Stream {row.name} has a capacity over {MAX_CAPACITY} bytes"


def _name_problems(table: FlowTable, flow: CompiledFlow) -> Iterator[str]:
    taken = set(dir(flow))
    for row in table.rpcs:
        if row.name in taken:
            yield f"RPC {row.name} cannot be called so on Dex: a Flow has such a method already"
