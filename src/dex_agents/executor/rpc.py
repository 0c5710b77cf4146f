"""Calls an RPC's handler on a flow's state."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dex_agents.errors import FlowNotActiveError
from dex_agents.executor.attempt import scheduled_step
from dex_agents.executor.attributes import Attributes
from dex_agents.executor.clock import Clock
from dex_agents.executor.contexts import CallContext, encoded
from dex_agents.machine import FlowState, FlowStatus, Machine, RpcReturned
from dex_agents.machine.rules import selector
from dex_agents.table import FlowTable, Rpc

__all__ = ("RpcCall",)


class RpcCall(Struct, frozen=True):
    """One call of an RPC, which may be made again on fresher state.

    Attributes:
        table: The flow's table.
        row: The RPC.
        input: What the caller sent.
    """

    table: FlowTable
    row: Rpc[Any, Any]
    input: Any

    def check_input(self) -> None:
        """Raise `EncodingError` when the input is not what the RPC takes."""
        if self.input is not None or self.row.input is not type(None):
            encoded(self.input, self.row.input, f"input of {self.row.name}")

    def run(
        self, state: FlowState, attributes: Attributes, machine: Machine, clock: Clock
    ) -> tuple[RpcReturned | None, Any]:
        """Call the handler.

        Returns:
            The event, or None when the handler changed nothing; and the output.

        Raises:
            FlowNotActiveError: The flow is closed, and the RPC is not read-only.
            RpcLockConflictError: A Step holds one of its locks.
        """
        row = self.row
        header = state.header
        if not row.is_read_only and header.status is not FlowStatus.RUNNING:
            raise FlowNotActiveError(header.flow_id, header.status)
        machine.require_locks(state, row.name, tuple(lock.name for lock in row.locks))
        context = CallContext(
            row.name,
            header.flow_id,
            self.table,
            frozenset(selector(each) for each in row.loads),
            attributes,
            _sizes(state),
            clock.now,
        )
        result = row.handler(context, self.input)
        writes = context.writes()
        self.table.require_result(row, result)
        steps = tuple(scheduled_step(self.table, each) for each in result.next_steps)
        changes = writes.attributes or writes.published or steps or result.cancel_steps
        if not changes or row.is_read_only:
            return None, result.output
        return RpcReturned(row.name, writes, steps, result.cancel_steps), result.output


def _sizes(state: FlowState) -> dict[str, int]:
    """Count messages by Channel; one that a Step has taken and not yet dealt with still counts.

    Otherwise a caller could see neither the message nor what it leads to.
    """
    sizes = {channel: len(queue) for channel, queue in state.queues.items()}
    for execution in state.executions.values():
        for message in execution.consumed:
            sizes[message.channel] = sizes.get(message.channel, 0) + 1
    return sizes
