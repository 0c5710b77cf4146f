"""Calls a table's handlers when the SDK calls: contexts in, decisions out, telemetry around."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import dex
from msgspec import Raw

from dex_agents.encoding import clean_text
from dex_agents.executor import Clock
from dex_agents.executor.attempt import failure_of
from dex_agents.executor.executor import WORKER_STOPPED
from dex_agents.machine import Execution, Failure, Phase
from dex_agents.table import Decision, FlowTable, Rpc, RpcResult, Step, Wait
from dex_agents.telemetry import AttemptTelemetry, Telemetry
from dex_agents_dex.contexts import DexRpcContext, DexStepContext
from dex_agents_dex.decisions import Translator
from dex_agents_dex.definitions import Definitions
from dex_agents_dex.wire import from_wire

__all__ = ("Handlers",)

R = TypeVar("R")

_REST_SECONDS = 2.0
"""Dex does not tell a worker whether it will get a flow's next attempt: for so long it may."""

_RELABELLED = (TypeError, ValueError)
"""What the SDK reports as an invalid result, whoever raised it."""

# An error travels in gRPC's metadata, with its traceback and its message twice. Clients
# take 8 KiB of that for sure, which is just enough for the 1024 bytes that the SDK allows
# a message; but what is not ASCII stands there a third time, escaped to three times its size.
_LONGEST_ERROR, _LONGEST_ESCAPED, _FEW, _PERCENT = 1024, 600, 200, ord("%")


class Handlers:
    """Serves one table.

    Args:
        table: Whose handlers are called.
        definitions: Its rows that hold data.
        translator: Puts results into the SDK's words.
        telemetry: Watches every attempt.
        clock: What handlers take for the time.
    """

    def __init__(
        self,
        table: FlowTable,
        definitions: Definitions,
        translator: Translator,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._table = table
        self._definitions = definitions
        self._translator = translator
        self._telemetry = telemetry
        self._clock = clock
        self._running: set[asyncio.Task[Any]] = set()
        self._is_abandoned = False

    def abandon(self) -> None:
        """Fail every attempt that runs, and every one that still begins: the worker ends."""
        self._is_abandoned = True
        for task in self._running:
            task.cancel()
        self._telemetry.rest_all()

    async def wait_for(self, row: Step[Any], context: dex.AsyncContext, sent: Any) -> dex.Wait:
        """Run a Step's ``wait_for``."""
        assert row.wait_for is not None  # only such a Step's class has the method
        return await self._attempt(
            row, Phase.WAIT_FOR, context, sent, row.wait_for, self._translated_wait
        )

    async def execute(
        self, row: Step[Any], context: dex.AsyncContext, sent: Any
    ) -> dex.StepDecision:
        """Run a Step's ``execute``."""
        return await self._attempt(
            row, Phase.EXECUTE, context, sent, row.execute, self._translated_decision
        )

    def invoke(self, row: Rpc[Any, Any], context: dex.Context, sent: Any) -> dex.RPCResult[Any]:
        """Run an RPC's handler."""
        with _reported_as_raised():
            seen = DexRpcContext(context, row.name, self._table, self._definitions, self._clock)
            rpc_input = from_wire(sent, row.input, f"input of {row.name}")
            result: RpcResult[Any] = row.handler(seen, rpc_input)
            if row.is_read_only:
                seen.forget_changes()
                result = RpcResult(result.output, result.next_steps)
            return self._translator.rpc_result(row, result, seen)

    async def _attempt(
        self,
        row: Step[Any],
        phase: Phase,
        context: dex.AsyncContext,
        sent: Any,
        handler: Callable[[Any, Any], Awaitable[Any]],
        translate: Callable[[Step[Any], DexStepContext, Any], R],
    ) -> R:
        with _reported_as_raised(), self._listed():
            seen = DexStepContext(context, self._table, self._definitions, self._clock)
            step_input = from_wire(sent, row.input, f"input of {seen.step_execution_id}")
            watched = self._begin(row, phase, context, seen, step_input)
            try:
                if watched.carrier():
                    await seen.heartbeat()  # so that a next attempt can link to this one
                translated = translate(row, seen, await handler(seen, step_input))
            except asyncio.CancelledError as error:
                if self._is_abandoned:
                    watched.failed(WORKER_STOPPED, will_retry=_may_retry(row, context))
                elif _is_cancelled_from_outside():
                    watched.canceled()
                else:
                    self._failed(watched, row, context, error)
                raise
            except Exception as error:
                self._failed(watched, row, context, error)
                raise
            else:
                watched.completed(phase)
                return translated
            finally:
                seen.is_over = True
                rest_seconds = 0.0 if self._is_abandoned else _REST_SECONDS
                self._telemetry.rest_after(seen.flow_id, rest_seconds)

    @contextlib.contextmanager
    def _listed(self) -> Iterator[None]:
        """Let `abandon` end the attempt, which then fails as it does on every backend."""
        task = asyncio.current_task()
        assert task is not None  # a handler is a coroutine
        if self._is_abandoned:
            raise _namesake(WORKER_STOPPED)
        self._running.add(task)
        try:
            yield
        except asyncio.CancelledError as error:
            if not self._is_abandoned:
                raise
            task.uncancel()
            raise _namesake(WORKER_STOPPED) from error
        finally:
            self._running.discard(task)

    def _begin(
        self,
        row: Step[Any],
        phase: Phase,
        context: dex.AsyncContext,
        seen: DexStepContext,
        step_input: Any,
    ) -> AttemptTelemetry:
        self._telemetry.clear()
        carrier = context.get_last_heartbeat_value(dict[str, str])
        execution = Execution(
            id=seen.step_execution_id,
            step=row.name,
            order=0,
            input=Raw(b"null"),
            phase=phase,
            attempt=seen.attempt,
            last_carrier=carrier or {},
            origin=context.from_step_execution_id,
        )
        seen.watched = self._telemetry.begin(
            seen.flow_id, execution, lambda: self._table.facts(row.name, seen, step_input)
        )
        return seen.watched

    def _failed(
        self,
        watched: AttemptTelemetry,
        row: Step[Any],
        context: dex.AsyncContext,
        error: BaseException,
    ) -> None:
        watched.failed(failure_of(error), will_retry=_may_retry(row, context), error=error)

    def _translated_wait(self, row: Step[Any], _seen: DexStepContext, wait: Any) -> dex.Wait:
        if not isinstance(wait, Wait):
            raise TypeError(f"{row.name}.wait_for must return Wait, not {wait!r}")
        return self._translator.wait(row, wait)

    def _translated_decision(
        self, row: Step[Any], seen: DexStepContext, decision: Any
    ) -> dex.StepDecision:
        if not isinstance(decision, Decision):
            raise TypeError(f"{row.name}.execute must return Decision, not {decision!r}")
        return self._translator.decision(row, decision, seen)


def _may_retry(row: Step[Any], context: dex.AsyncContext) -> bool:
    limit = row.options.retry.max_attempts
    return not limit or context.attempt < limit


def _is_cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def _reported_as_raised() -> Iterator[None]:
    """Let Dex be told the error that a handler raised, and nothing that the SDK makes of it.

    The SDK takes every TypeError and ValueError for an invalid result, takes a
    cancellation from within for one from outside, and cannot send text that is
    not UTF-8, be it deep in a traceback, or that grows too long when gRPC escapes
    it. Each is raised as an error of the same name that is none of these.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if _is_cancelled_from_outside():
            raise
        raise _namesake(_failure(error)) from _sendable(error)
    except Exception as error:
        failure, cause = _failure(error), _sendable(error)
        if cause is None or isinstance(error, _RELABELLED) or _text_of(error) != failure.detail:
            raise _namesake(failure) from cause
        raise


def _failure(error: BaseException) -> Failure:
    """Return an error as it is recorded, its message as long as it can be sent."""
    failure = failure_of(error)
    raw = failure.detail.encode()
    escaped = sum(not 0x20 <= byte < 0x7F or byte == _PERCENT for byte in raw[:_LONGEST_ERROR])
    if len(raw) <= _LONGEST_ESCAPED or escaped < _FEW:
        return failure
    return Failure(raw[:_LONGEST_ESCAPED].decode(errors="ignore") + "...", failure.error_type)


def _sendable(error: BaseException) -> BaseException | None:
    """Return the error if the SDK can send its traceback, with all that it quotes, or None."""
    text = "".join(traceback.format_exception(error))
    return error if text == clean_text(text) else None


def _text_of(error: Exception) -> str | None:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a broken __str__ must not break the error path
        return None


def _namesake(failure: Failure) -> Exception:
    """Return an exception whose qualified name and message are those of a failure."""
    module, _, name = failure.error_type.rpartition(".")
    names = {"__module__": module or "builtins", "__qualname__": name}
    error: Exception = type(name, (Exception,), names)(failure.detail)
    return error
