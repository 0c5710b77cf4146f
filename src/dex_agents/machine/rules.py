"""Tells the machine what it must know of a `FlowTable`."""

from __future__ import annotations

from typing import Any

from dex_agents.errors import UndeclaredError
from dex_agents.machine.records import ExecutionOptions
from dex_agents.table import AttributeMap, ChannelMap, FlowTable, Loadable, Step, StepOptions

__all__ = ("TableRules", "execution_options", "selector")


class TableRules:
    """A `FlowTable` as the machine's `Rules`."""

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._options: dict[str, ExecutionOptions] = {}  # as they are asked for: a call needs few

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:  # noqa: ARG002
        """Return whether a Step has a ``wait_for``."""
        return self._row(step).wait_for is not None

    def options(self, step: str) -> ExecutionOptions:
        """Return the options that a Step has when its movement brings none."""
        found = self._options.get(step)
        if found is None:
            found = self._options[step] = execution_options(self._row(step).options)
        return found

    def _row(self, step: str) -> Step[Any]:
        if not self._table.has_step(step):
            raise UndeclaredError(f"A stored execution of {self._table.flow_type}", f"Step {step}")
        return self._table.step(step)


def selector(row: Loadable) -> str:
    """Return how stored options name what a handler loads."""
    return f"{row.name}/" if isinstance(row, AttributeMap | ChannelMap) else row.name


def execution_options(options: StepOptions) -> ExecutionOptions:
    """Return a row's or movement's options in the form that is stored."""
    return ExecutionOptions(
        execute_timeout=options.execute_timeout,
        wait_for_timeout=options.wait_for_timeout,
        heartbeat_timeout=options.heartbeat_timeout,
        retry=options.retry,
        failure_step=options.failure_step,
        failure_options=execution_options(options.failure_options)
        if options.failure_options
        else None,
        loads=tuple(selector(row) for row in options.loads),
        locks=tuple(row.name for row in options.locks),
    )
