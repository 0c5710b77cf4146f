"""What a table's handlers decide, in the SDK's words: waits, movements, ends, options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

import dex

from dex_agents.errors import FlowDefinitionError
from dex_agents.table import (
    CloseKind,
    Condition,
    Decision,
    FlowTable,
    Movement,
    RetryPolicy,
    Rpc,
    RpcResult,
    Step,
    StepOptions,
    Timer,
    Wait,
)
from dex_agents_dex.definitions import Definitions
from dex_agents_dex.wire import Json, hint_of, to_wire

__all__ = ("Translator", "option_problems", "whole_seconds")

MAX_SECONDS = MAX_ATTEMPTS = 2**31 - 1
"""The longest duration and the most attempts that the wire holds."""


class ByteBudget(Protocol):
    """Counts the bytes of a result and refuses too many; see `dex_agents_dex.contexts`."""

    def count(self, size: int) -> None: ...


def option_problems(name: str, options: StepOptions | None) -> Iterator[str]:
    """Yield what the wire cannot hold of a Step's options, those of its failure routes too."""
    while options is not None:
        retry = options.retry
        durations = (
            options.execute_timeout,
            options.wait_for_timeout,
            options.heartbeat_timeout,
            retry.initial_seconds,
            retry.max_seconds,
            retry.total_seconds,
        )
        if not all(each <= MAX_SECONDS for each in durations):  # NaN is no duration either
            yield f"{name} has a duration over {MAX_SECONDS} seconds"
        if retry.max_attempts > MAX_ATTEMPTS:
            yield f"{name} has over {MAX_ATTEMPTS} attempts"
        options = options.failure_options


def whole_seconds(seconds: float, least: int = 1) -> timedelta:
    """Return a duration as Dex counts it: in whole seconds, rounded up."""
    return timedelta(seconds=max(math.ceil(seconds), least))


class Translator:
    """Puts what the handlers of one table return into the SDK's words.

    Args:
        table: The table.
        definitions: Its rows that hold data.
        steps: The SDK's class of every Step, which movements name.
    """

    def __init__(
        self,
        table: FlowTable,
        definitions: Definitions,
        steps: Mapping[str, type[dex.Step[Any]]],
    ) -> None:
        self._table = table
        self._definitions = definitions
        self._steps = steps

    # Options

    def options(self, options: StepOptions) -> dex.StepOptions:
        """Return a Step's options; both methods get the same loads and the same retries."""
        retry = _retry(options.retry)
        loads = self._definitions.loads(options.loads)
        translated = dex.StepOptions(
            wait_for_method_timeout=whole_seconds(options.wait_for_timeout),
            execute_method_timeout=whole_seconds(options.execute_timeout),
            heartbeat_timeout=whole_seconds(options.heartbeat_timeout),
            wait_for_retry=retry,
            execute_retry=retry,
            wait_for_durability=dex.StepDurability.SYNC,
            execute_durability=dex.StepDurability.SYNC,
            execute_lock_attributes=self._definitions.locks(options.locks),
            **loads.for_method("wait_for_"),
            **loads.for_method("execute_"),
        )
        if options.failure_step is None:
            return translated
        route = options.failure_options
        return translated.on_execute_failure_proceed_to(
            self._steps[options.failure_step],
            self.options(route) if route is not None else None,
        )

    # Waits

    def wait(self, source: Step[Any], wait: Wait) -> dex.Wait:
        """Return a wait.

        Raises:
            UndeclaredError: It waits on a Channel that the table does not declare.
            ValueError: It would never end, or not in a time that the wire can hold.
        """
        self._table.require_wait(source, wait)
        everything = tuple(range(len(wait.conditions)))
        if not wait.conditions:
            return dex.Wait.skip_immediately()
        if wait.candidates == (everything,):
            return dex.Wait.all_of(*(self._condition(each) for each in wait.conditions))
        if wait == Wait.any_of(*wait.conditions):
            return dex.Wait.any_of(*(self._condition(each) for each in wait.conditions))
        named = [self._condition(each, f"c{i}") for i, each in enumerate(wait.conditions)]
        return dex.Wait.any_combination_of(
            *(
                dex.ConditionCombination.of(*(named[position] for position in candidate))
                for candidate in wait.candidates
            )
        )

    def _condition(self, condition: Condition, name: str | None = None) -> Any:
        if isinstance(condition, Timer):
            if not condition.seconds <= MAX_SECONDS:
                raise ValueError(
                    f"A Timer of {condition.seconds:g} seconds is longer than {MAX_SECONDS}."
                )
            duration = whole_seconds(condition.seconds, least=0)
            return dex.Timer.by_duration(duration, condition_id=name)
        definition, key = self._definitions.channel(condition.channel)
        return definition.for_range(
            *key,
            at_least=condition.at_least,
            at_most=condition.at_most,
            condition_id=name,
        )

    # Decisions

    def decision(
        self, source: Step[Any], decision: Decision, budget: ByteBudget
    ) -> dex.StepDecision:
        """Return a decision.

        Raises:
            UndeclaredStepError: It goes where its Step may not go.
            EncodingError: An input or the output cannot be sent.
        """
        self._table.require_decision(source, decision)
        translated = self._ending(source, decision, budget)
        if decision.cancel_steps:
            translated = translated.with_canceling_steps(*self._classes(decision.cancel_steps))
        if decision.cancel_sibling_steps:
            translated = translated.with_canceling_sibling_steps(
                *self._classes(decision.cancel_sibling_steps)
            )
        return translated

    def rpc_result(
        self, source: Rpc[Any, Any], result: RpcResult[Any], budget: ByteBudget
    ) -> dex.RPCResult[Any]:
        """Return what an RPC returns.

        Raises:
            UndeclaredStepError: It names a Step that its row may not name.
            EncodingError: The output or an input cannot be sent.
        """
        self._table.require_result(source, result)
        output = to_wire(
            result.output, source.output, hint_of(source.output), f"output of {source.name}"
        )
        budget.count(output.size)
        return dex.RPCResult(
            output.value,
            tuple(self._movement(each, budget) for each in result.next_steps),
            self._classes(result.cancel_steps),
        )

    def _ending(
        self, source: Step[Any], decision: Decision, budget: ByteBudget
    ) -> dex.StepDecision:
        if decision.close is None:
            return dex.go_to_many(*(self._movement(each, budget) for each in decision.next_steps))
        if decision.close is CloseKind.DEAD_END:
            return dex.dead_end()
        if decision.close is CloseKind.FORCE_FAIL:
            reason = to_wire(str(decision.output), str, str, f"output of {source.name}")
            budget.count(reason.size)
            return dex.force_fail(reason.value)
        complete = (
            dex.graceful_complete
            if decision.close is CloseKind.GRACEFUL_COMPLETE
            else dex.force_complete
        )
        if decision.output is None:
            return complete()
        output = to_wire(decision.output, object, Json, f"output of {source.name}")
        budget.count(output.size)
        return complete(output.value)

    def _movement(self, movement: Movement, budget: ByteBudget) -> dex.StepMovement[Any]:
        tp = self._table.step(movement.step).input
        sent = to_wire(movement.input, tp, hint_of(tp), f"input of {movement.step}")
        budget.count(sent.size)
        if problems := list(option_problems(movement.step, movement.options)):
            raise FlowDefinitionError(self._table.flow_type, problems)
        return dex.StepMovement.of(
            self._steps[movement.step],
            sent.value,
            options=self.options(movement.options) if movement.options is not None else None,
        )

    def _classes(self, names: tuple[str, ...]) -> tuple[type[dex.Step[Any]], ...]:
        return tuple(self._steps[name] for name in names)


def _retry(policy: RetryPolicy) -> dex.RetryPolicy:
    return dex.RetryPolicy(
        initial_interval=whole_seconds(policy.initial_seconds),
        backoff_coefficient=policy.coefficient,
        maximum_interval=whole_seconds(policy.max_seconds),
        maximum_attempts=policy.max_attempts,
        total_duration=whole_seconds(policy.total_seconds),
    )
