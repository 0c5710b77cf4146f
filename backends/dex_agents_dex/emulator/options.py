"""Step options: from the wire to the machine, which keeps the wire's own beside its form."""

from __future__ import annotations

import functools

from dex.dexpb import dex_pb2 as pb

from dex_agents.machine import ExecutionOptions
from dex_agents.table import RetryPolicy
from dex_agents_dex.emulator.envelope import pack, unpack

__all__ = ("TIMEOUT_HANDLER", "WireRules", "execution_options", "timeout_options", "wire_options")

TIMEOUT_HANDLER = "sys:timeout_handler"
"""The pseudo Step whose ``execute`` is the flow's timeout handler."""

_DEFAULT = ExecutionOptions()


class WireRules:
    """What the machine must know of a flow, all of which comes with the movements."""

    def has_wait(self, step: str, options: ExecutionOptions | None) -> bool:
        """Return whether a Step has a ``wait_for``."""
        return step != TIMEOUT_HANDLER and not wire_options(options).skip_wait_for

    def options(self, step: str) -> ExecutionOptions:  # noqa: ARG002 - the machine's interface
        """Return the options of a movement that brings none."""
        return _DEFAULT


def execution_options(wire: pb.StepOptions, scale: float) -> ExecutionOptions:
    """Return the wire's options in the machine's form.

    Args:
        wire: As the worker or client sent them; 0 stands for a default.
        scale: What delays are multiplied by. Timeouts that a handler can see are kept.
    """
    has_route = (
        wire.execute_failure_policy == pb.EXECUTE_METHOD_FAILURE_POLICY_PROCEED_TO_CONFIGURED_STEP
        and wire.execute_failure_proceed_step_type
    )
    failing = pb.WAIT_FOR_METHOD_FAILURE_POLICY_PROCEED_ON_FAILURE
    return ExecutionOptions(
        execute_timeout=wire.execute_timeout_seconds or _DEFAULT.execute_timeout,
        wait_for_timeout=wire.wait_for_timeout_seconds or _DEFAULT.wait_for_timeout,
        heartbeat_timeout=(wire.heartbeat_timeout_seconds or _DEFAULT.heartbeat_timeout) * scale,
        retry=_retry(wire.execute_retry_policy, scale),
        failure_step=wire.execute_failure_proceed_step_type if has_route else None,
        failure_options=execution_options(wire.execute_failure_proceed_step_options, scale)
        if has_route
        else None,
        locks=tuple(wire.execute_lock_attribute_keys),
        wait_for_locks=tuple(wire.wait_for_lock_attribute_keys),
        wait_for_retry=_retry(wire.wait_for_retry_policy, scale),
        wait_for_proceeds=wire.wait_for_failure_policy == failing,
        extension=pack(wire),
    )


def wire_options(options: ExecutionOptions | None) -> pb.StepOptions:
    """Return the wire's own options, not to be changed."""
    return _parsed(options.extension if options is not None else "")


def timeout_options(wire: pb.FlowTimeoutHandlerOptions) -> pb.StepOptions:
    """Return the options of a timeout handler as those of a Step."""
    return pb.StepOptions(
        skip_wait_for=True,
        execute_timeout_seconds=wire.method_timeout_seconds,
        heartbeat_timeout_seconds=wire.heartbeat_timeout_seconds,
        execute_retry_policy=wire.retry_policy,
        execute_failure_policy=wire.failure_policy,
        execute_failure_proceed_step_type=wire.failure_proceed_step_type,
        execute_failure_proceed_step_options=wire.failure_proceed_step_options,
        execute_lock_attribute_keys=wire.lock_attribute_keys,
        execute_load_attribute_map_instances=wire.load_attribute_map_instances,
        execute_load_channel_names=wire.load_channel_names,
        execute_load_channel_map_instances=wire.load_channel_map_instances,
    )


@functools.lru_cache(maxsize=1024)
def _parsed(extension: str) -> pb.StepOptions:
    return unpack(extension, pb.StepOptions)


def _retry(wire: pb.RetryPolicy, scale: float) -> RetryPolicy:
    default = RetryPolicy()
    return RetryPolicy(
        max_attempts=wire.maximum_attempts,
        total_seconds=(wire.total_duration_seconds or default.total_seconds) * scale,
        initial_seconds=(wire.initial_interval_seconds or default.initial_seconds) * scale,
        coefficient=wire.backoff_coefficient or default.coefficient,
        max_seconds=(wire.maximum_interval_seconds or default.max_seconds) * scale,
    )
