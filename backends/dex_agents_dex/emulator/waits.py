"""Calls that wait: for a flow's end, for a Step, for an Attribute. They hold, never spin."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dex.dexpb import dex_pb2 as pb

from dex_agents_dex.emulator.errors import (
    ServiceError,
    invalid,
    long_poll_timeout,
    not_exists,
    request_timeout,
)
from dex_agents_dex.emulator.flows import Flows
from dex_agents_dex.emulator.run import Run

__all__ = ("Waits",)

T = TypeVar("T")

_OPERATORS: dict[Any, Callable[[Any, Any], bool]] = {
    pb.ATTRIBUTE_MATCH_OPERATOR_EQUAL: operator.eq,
    pb.ATTRIBUTE_MATCH_OPERATOR_NOT_EQUAL: operator.ne,
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN: operator.gt,
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN_OR_EQUAL: operator.ge,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN: operator.lt,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN_OR_EQUAL: operator.le,
}


class Waits:
    """Serves the waiting calls.

    Args:
        flows: The flows.
        longest: How many seconds a call is held at most.
    """

    def __init__(self, flows: Flows, longest: float) -> None:
        self._flows = flows
        self._longest = longest

    async def flow(self, wire: pb.WaitForFlowRequest) -> pb.FlowResult:
        """Return how a flow ended, once it has."""
        run = self._flows.latest(wire.flow_id, wire.run_id)
        seconds = min(wire.wait_time_seconds or self._longest, self._longest)
        await _until(run, lambda: not run.is_running or None, seconds, _over_flow(wire.flow_id))
        return run.result()

    async def step(self, wire: pb.WaitForStepCompletionRequest) -> pb.WaitForStepCompletionResponse:
        """Return once a Step execution has ended."""
        run = self._flows.latest(wire.flow_id)
        execution_id = f"{wire.step_type}-{wire.step_execution_number}"

        def is_ended() -> bool | None:
            if execution_id in run.ended:
                return True
            if not run.is_running:
                raise not_exists(wire.flow_id, f"closed before {execution_id} ended")
            return None

        await _until(run, is_ended, *self._budget(wire.request_timeout_seconds, execution_id))
        return pb.WaitForStepCompletionResponse()

    async def attribute(self, wire: pb.WaitForAttributeRequest) -> pb.WaitForAttributeResponse:
        """Return an Attribute's value once it matches."""
        run = self._flows.latest(wire.flow_id)
        compare = _OPERATORS.get(wire.match.operator)
        kind = wire.match.operand.WhichOneof("kind")
        if compare is None or kind in (None, "obj_value", "null_value"):
            raise invalid("WaitForAttribute needs an operator and a scalar operand.")
        operand = getattr(wire.match.operand, kind)

        def matched() -> pb.Value | None:
            value = run.attributes.get(wire.match.key)
            is_like = value is not None and value.WhichOneof("kind") == kind
            if is_like and compare(getattr(value, kind), operand):
                return value
            if not run.is_running:
                raise not_exists(wire.flow_id, "closed before its Attribute matched")
            return None

        budget = self._budget(wire.request_timeout_seconds, f"Attribute {wire.match.key!r}")
        return pb.WaitForAttributeResponse(matched_value=await _until(run, matched, *budget))

    def _budget(self, seconds: int, what: str) -> tuple[float, ServiceError]:
        if 0 < seconds <= self._longest:
            return seconds, request_timeout(what)
        return self._longest, long_poll_timeout(what)


def _over_flow(flow_id: str) -> ServiceError:
    return long_poll_timeout(f"the end of flow {flow_id!r}")


async def _until(run: Run, look: Callable[[], T | None], seconds: float, over: ServiceError) -> T:
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None:
            return found
        if not await run.changed.wait(end - time.monotonic()):
            raise over
