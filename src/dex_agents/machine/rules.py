"""Tells the machine what it must know of a `FlowTable`."""

from __future__ import annotations

from typing import Never

from dex_agents.errors import UndeclaredError
from dex_agents.machine.records import ExecutionOptions
from dex_agents.table import AttributeMap, ChannelMap, FlowTable, Loadable, StepOptions

__all__ = ("TableRules", "execution_options", "selector")


class TableRules:
    """A `FlowTable` as the machine's `Rules`."""

    def __init__(self, table: FlowTable) -> None:
        self._flow_type = table.flow_type
        self._waits = {step.name: step.wait_for is not None for step in table.steps}
        self._options = {step.name: execution_options(step.options) for step in table.steps}

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:  # noqa: ARG002
        """Return whether a Step has a ``wait_for``."""
        return self._waits[step] if step in self._waits else self._unknown(step)

    def options(self, step: str) -> ExecutionOptions:
        """Return the options that a Step has when its movement brings none."""
        return self._options[step] if step in self._options else self._unknown(step)

    def _unknown(self, step: str) -> Never:
        raise UndeclaredError(f"A stored execution of {self._flow_type}", f"Step {step}")


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
