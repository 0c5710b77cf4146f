"""Faults that somebody could have made, each against one invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dex_agents.errors import StaleAttemptError
from dex_agents.executor.attributes import Attributes
from dex_agents.executor.executor import Executor
from dex_agents.executor.handle import FlowHandle
from dex_agents.machine import AttemptAbandoned, FlowStatus, HistoryEvent, machine
from dex_agents.records import AgentInterruptResolution, ApprovalResult
from dex_agents.session import rpcs, steps
from dex_agents.session.persistence import (
    AGENT_TOOL_CALLS,
    INTERRUPT_RESOLUTIONS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
)
from dex_agents.session.steps import SessionSteps
from dex_agents.table import Decision, RetryPolicy, RpcResult, Timer
from dex_agents_memory.store import MemoryStore

DEFECTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {}
"""By name: the invariant that it breaks, and how it is put into the code."""

_Step = machine._Step


def defect(invariant):
    """Keep a function as the defect that breaks an invariant."""

    def keep(apply):
        DEFECTS[apply.__name__] = (invariant, apply)
        return apply

    return keep


def around(patch, owner, name, wrap):
    """Put a function around a method; it gets the method first."""
    method = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: wrap(method, *args, **options))


# The session


@defect("one_result")
def a_result_is_published_twice(patch):
    def finish(method, self, context, record, **result):
        decision = method(self, context, record, **result)
        context.publish(TOOL_CALL_RESULTS, steps.ToolCallCompleted(record.tool_call_id, "failed"))
        return decision

    around(patch, SessionSteps, "_finish_call", finish)


@defect("final_is_final")
def a_final_record_is_written_again(patch):
    async def resume(method, self, context, count):
        for key, record in context.entries(AGENT_TOOL_CALLS).items():
            if record.is_final:
                context.set(AGENT_TOOL_CALLS[key], replace(record, error="late"))
        return await method(self, context, count)

    around(patch, SessionSteps, "resume_turn", resume)


@defect("once_only")
def a_call_that_failed_is_made_again(patch):
    async def call(method, self, context, tool_call_id):
        try:
            return await method(self, context, tool_call_id)
        except RuntimeError:
            return await method(self, context, tool_call_id)

    around(patch, SessionSteps, "call_tool", call)


@defect("attempts_are_limited")
def a_once_only_write_is_retried(patch):
    options = replace(steps._SINGLE_ATTEMPT_OPTIONS, retry=RetryPolicy(max_attempts=2))
    patch.setitem(steps._TOOL_CALL_STEPS, "CallSingleAttemptTool", options)


@defect("one_key")
def each_attempt_has_a_key_of_its_own(patch):
    def execution(method, **fields):
        key = f"{fields.pop('idempotency_key')}/{fields['attempt']}"
        return method(idempotency_key=key, **fields)

    around(patch, steps, "DeferredToolExecution", execution)


@defect("approved_first")
def nobody_waits_for_the_approval(patch):
    def movement(method, step, record):
        return method(steps._tool_step(record), record)

    around(patch, steps, "_movement", movement)


@defect("answered_once")
def a_second_answer_is_taken(patch):
    def resolve(method, context, request):
        result = method(context, request)
        if not result.output:
            channel = INTERRUPT_RESOLUTIONS[request.interrupt_id]
            context.publish(channel, AgentInterruptResolution(request.interrupt_id, False))
        return RpcResult(True)

    around(patch, rpcs, "resolve_interrupt", resolve)


@defect("verdict_is_the_answer")
def a_rejection_is_recorded_as_expired(patch):
    def reject(method, self, context, record, _result, message):
        return method(self, context, record, ApprovalResult.EXPIRED, message)

    around(patch, SessionSteps, "_reject", reject)


@defect("expiry_in_time")
def an_approval_expires_early(patch):
    async def wait(method, self, context, tool_call_id):
        found = await method(self, context, tool_call_id)
        conditions = (
            Timer(each.seconds / 2) if isinstance(each, Timer) else each
            for each in found.conditions
        )
        return replace(found, conditions=tuple(conditions))

    around(patch, SessionSteps, "wait_for_approval", wait)
    patch.setattr(steps, "_has_passed", lambda *_: True)


@defect("questions_are_open")
def an_answered_question_stays_pending(patch):
    def resolve(method, context, request):
        kept = context.get(rpcs.PENDING_INTERRUPTS)
        result = method(context, request)
        context.set(rpcs.PENDING_INTERRUPTS, kept)
        return result

    around(patch, rpcs, "resolve_interrupt", resolve)


@defect("contiguous")
def a_number_is_left_out(patch):
    patch.setattr(steps, "message_sequence_key", lambda n: f"{n + (n > 2):012d}")


@defect("stored_once")
def a_message_is_queued_again(patch):
    async def take(method, self, context, given):
        (message,) = context.results(QUEUED_USER_MESSAGES)
        if context.attempt > 1:
            context.publish(QUEUED_USER_MESSAGES, message)
        return await method(self, context, given)

    around(patch, SessionSteps, "await_user_message", take)


@defect("turns_in_line")
def a_message_belongs_to_another_turn(patch):
    def stored(method, message, sequence, _turn_id):
        return method(message, sequence, "turn-1")

    around(patch, steps, "stored_message", stored)


@defect("note_is_left")
def a_note_is_forgotten(patch):
    patch.setattr(steps, "build_turn_failure_note", lambda _: None)


@defect("one_place")
def a_tool_call_is_forgotten(patch):
    def defer(method, *args):
        decision = method(*args)
        return Decision.go_to_many(*decision.next_steps[1:])

    around(patch, SessionSteps, "_defer_tool_calls", defer)


@defect("usage_adds_up")
def usage_counts_the_attempts(patch):
    def record(method, self, context, state, usage):
        for _ in range(context.attempt):
            method(self, context, state, usage)

    around(patch, SessionSteps, "_record_usage", record)


@defect("no_message_is_lost")
def a_message_is_lost_when_its_step_is_retried(patch):
    async def take(method, self, context, given):
        if context.attempt == 1:
            return await method(self, context, given)
        self._begin_turn(context, steps._state(context), "something", {})
        return Decision.go_to("RunModel")

    around(patch, SessionSteps, "await_user_message", take)


@defect("receipts_are_true")
def a_message_is_acknowledged_and_not_stored(patch):
    def send(method, context, message):
        if context.queue_size(QUEUED_USER_MESSAGES):
            return RpcResult(True)
        return method(context, message)

    around(patch, rpcs, "send_user_message", send)


# The machine


@defect("session_goes_on")
def a_failure_route_is_not_taken(patch):
    def use_up(method, self, execution, failure, options):
        method(self, execution, failure, replace(options, failure_step=None))

    around(patch, _Step, "_use_up", use_up)


@defect("history_is_complete")
def a_line_of_history_is_left_out(patch):
    def record(method, self, event_type, **fields):
        method(self, event_type, **fields)
        if event_type is HistoryEvent.ATTEMPT_FAILED:
            self.changes.history.pop()

    around(patch, _Step, "_record", record)


@defect("attempts_are_limited")
def one_attempt_too_many(patch):
    def options(method, self, execution):
        found = method(self, execution)
        retry = replace(found.retry, max_attempts=found.retry.max_attempts and 4)
        return replace(found, retry=retry)

    around(patch, _Step, "_options", options)


@defect("timers_are_not_early")
def a_timer_fires_early(patch):
    def end_waits(method, self):
        timed = self.state.timed.items()
        self.ready.update({name: None for name, at in timed if at <= self.now + 50})
        method(self)

    around(patch, _Step, "_end_waits", end_waits)
    around(
        patch, machine, "match", lambda method, wait, queues, now: method(wait, queues, now + 50)
    )


@defect("closed_is_closed")
def a_stop_leaves_steps_behind(patch):
    def close(method, self, status, failure=None):
        if status is FlowStatus.STOPPED:
            self.status, self.closed_at = status, self.now
        else:
            method(self, status, failure)

    around(patch, _Step, "_close", close)


@defect("comes_to_rest")
def a_message_wakes_nobody(patch):
    def write(method, self, writes):
        method(self, writes)
        self.ready.clear()

    around(patch, _Step, "_write", write)


@defect("one_place")
def a_commit_is_split_in_two(patch):
    def schedule(method, self, movement, origin, recovery=None):
        if movement.step != "ResumeTurn" or self.state.running:
            method(self, movement, origin, recovery)

    around(patch, _Step, "_schedule", schedule)


# The executor


@defect("begun_once")
def what_ran_elsewhere_counts_as_never_begun(patch):
    def lost(_method, _self, execution):
        return AttemptAbandoned(execution.id, execution.attempt, phase=execution.phase)

    around(patch, FlowHandle, "_lost", lost)


@defect("begun_once")
def an_attempt_begins_before_it_is_durable(patch):
    def take(method, self, entry):
        method(self, entry)
        if entry.changes and entry.begun:
            self._perform(entry)

    around(patch, FlowHandle, "_take", take)


@defect("history_is_complete")
def a_commit_follows_one_that_was_refused(patch):
    class Unbroken:
        is_broken = property(lambda _: False, lambda *_: None)

    patch.setattr("dex_agents.executor.handle.Lineage", Unbroken)


@defect("same_everywhere")
def memory_forgets_a_deletion(patch):
    def write(method, self, attributes):
        method(self, {name: raw for name, raw in attributes.items() if raw is not None})

    around(patch, Attributes, "write", write)


@defect("nothing_escapes")
def a_refused_result_is_an_error(patch):
    def refused(_method, _self, _handle, error):
        if isinstance(error, StaleAttemptError):
            raise error

    around(patch, Executor, "refused", refused)


@defect("history_is_complete")
def a_commit_ends_with_its_first_transition(patch):
    def commit(method, self, commit):
        method(self, replace(commit, changes=commit.changes[:1]))

    around(patch, MemoryStore, "commit", commit)


@defect("history_is_complete")
def a_store_forgets_the_fence(patch):
    def commit(method, self, commit):
        flow = self._flows.get(commit.flow_id)
        if flow is not None and flow.header is not None:
            flow.owner = commit.owner
            flow.header = replace(flow.header, version=commit.changes[0].header.version - 1)
        method(self, commit)

    around(patch, MemoryStore, "commit", commit)
