"""The ten Steps of an agent session, as plain handlers.

A turn begins when a user message is stored and ends when its answer is. Until
then nothing that it produced is stored but the records of its tool calls and
the framework's run state. Every tool call publishes exactly one
``ToolCallResults`` message, in the commit that makes its record final;
``ResumeTurn`` counts them.

The ten stand together in one long module, because each hands over to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Never

from msgspec import to_builtins
from msgspec.structs import replace

from dex_agents.encoding import clean_text, json_value
from dex_agents.errors import StoredRecordError
from dex_agents.records import (
    AgentEvent,
    AgentEventType,
    AgentInterrupt,
    AgentSessionStartInput,
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    ApprovalResult,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)
from dex_agents.runner import (
    AgentEventWriter,
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    ModelCallDetails,
    ToolCallsRequested,
    ToolExecutionError,
    TurnCompleted,
)
from dex_agents.session.notes import EXPIRED_MESSAGE, build_turn_failure_note
from dex_agents.session.observing import (
    approval_asked,
    approval_ended,
    model_call,
    model_described,
    tool_call,
    tool_finished,
    tool_returned,
    turn_ended,
)
from dex_agents.session.options import AgentSessionOptions
from dex_agents.session.persistence import (
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
    TOOL_CALL_RESULTS,
)
from dex_agents.session.turn import (
    StoredMessages,
    checked_outcome,
    checked_result,
    checked_user_message,
    initial_message,
    interrupt_id,
    stored_message,
)
from dex_agents.table import (
    Decision,
    Movement,
    RetryPolicy,
    Step,
    StepContext,
    StepOptions,
    Stream,
    Timer,
    Wait,
)

__all__ = ("HEARTBEAT_SECONDS", "SessionSteps")

HEARTBEAT_SECONDS = 20.0
"""How often a sign of life is recorded while a runner is called."""


_UNTOLD = "_OTHER"
"""The type of an error that nobody tells, as OpenTelemetry has it."""

_RECORD_OPTIONS = StepOptions(loads=(AGENT_TOOL_CALLS,))
_MODEL_OPTIONS = StepOptions(
    execute_timeout=15 * 60,
    heartbeat_timeout=2 * 60,
    retry=RetryPolicy(max_attempts=3, total_seconds=30 * 60),
    failure_step="RecordTurnFailure",
    loads=(AGENT_MESSAGES, AGENT_TOOL_CALLS),
)
_APPROVAL_OPTIONS = StepOptions(loads=(AGENT_TOOL_CALLS,), locks=(PENDING_INTERRUPTS,))
_TOOL_OPTIONS = StepOptions(
    heartbeat_timeout=2 * 60,
    retry=RetryPolicy(max_attempts=3),
    failure_step="RecordToolFailure",
    loads=(AGENT_TOOL_CALLS,),
)
_SINGLE_ATTEMPT_OPTIONS = StepOptions(
    heartbeat_timeout=2 * 60,
    retry=RetryPolicy(max_attempts=1),
    failure_step="RecordToolOutcomeUnknown",
    loads=(AGENT_TOOL_CALLS,),
)
_TOOL_CALL_STEPS = {
    "AwaitToolApproval": _APPROVAL_OPTIONS,
    "CallTool": _TOOL_OPTIONS,
    "CallSingleAttemptTool": _SINGLE_ATTEMPT_OPTIONS,
}


@dataclass(frozen=True)
class SessionSteps:
    """The Step rows of one session table, over its runner."""

    runner: AgentFrameworkRunner
    options: AgentSessionOptions
    events: Stream[AgentEvent]

    def rows(self) -> tuple[Step[Any], ...]:
        """Return the ten rows, with the options of the contract's table of Steps."""
        return (
            Step(
                "StartAgentSession",
                self.start_agent_session,
                input=AgentSessionStartInput,
                next_steps=("RunModel", "AwaitUserMessage"),
                is_inline=True,
            ),
            Step(
                "AwaitUserMessage",
                self.await_user_message,
                wait_for=self.wait_for_user_message,
                next_steps=("RunModel",),
                is_inline=True,
            ),
            Step(
                "RunModel",
                self.run_model,
                options=_MODEL_OPTIONS,
                next_steps=(
                    "AwaitUserMessage",
                    "AwaitToolApproval",
                    "CallTool",
                    "CallSingleAttemptTool",
                    "ResumeTurn",
                ),
            ),
            Step(
                "AwaitToolApproval",
                self.await_tool_approval,
                input=str,
                wait_for=self.wait_for_approval,
                options=_APPROVAL_OPTIONS,
                next_steps=("AwaitToolApproval", "CallTool", "CallSingleAttemptTool"),
                is_inline=True,
            ),
            Step(
                "CallTool",
                self.call_tool,
                input=str,
                options=_TOOL_OPTIONS,
            ),
            Step(
                "CallSingleAttemptTool",
                self.call_tool,
                input=str,
                options=_SINGLE_ATTEMPT_OPTIONS,
            ),
            Step(
                "RecordToolFailure",
                self.record_tool_failure,
                input=str,
                options=_RECORD_OPTIONS,
                is_inline=True,
            ),
            Step(
                "RecordToolOutcomeUnknown",
                self.record_tool_outcome_unknown,
                input=str,
                options=_RECORD_OPTIONS,
                is_inline=True,
            ),
            Step(
                "ResumeTurn",
                self.resume_turn,
                input=int,
                wait_for=self.wait_for_tool_results,
                options=_RECORD_OPTIONS,
                next_steps=("RunModel", "ResumeTurn"),
                is_inline=True,
            ),
            Step(
                "RecordTurnFailure",
                self.record_turn_failure,
                options=_RECORD_OPTIONS,
                next_steps=("AwaitUserMessage",),
                is_inline=True,
            ),
        )

    # Beginning a turn

    async def start_agent_session(
        self, context: StepContext, start: AgentSessionStartInput
    ) -> Decision:
        """Initialise the session; a non-blank initial message begins its first turn."""
        context.set(AGENT_USAGE, AgentUsage())
        context.set(PENDING_INTERRUPTS, [])
        text = initial_message(start)
        if text is None:
            context.set(AGENT_STATE, AgentState())
            return Decision.go_to("AwaitUserMessage")
        self._begin_turn(context, AgentState(), text, start.trace_context)
        return Decision.go_to("RunModel")

    async def wait_for_user_message(self, context: StepContext, _: None) -> Wait:  # noqa: ARG002
        """Wait for the next queued message."""
        return Wait.until(QUEUED_USER_MESSAGES.for_one())

    async def await_user_message(self, context: StepContext, _: None) -> Decision:
        """Store the user's message and begin a turn."""
        (message,) = context.results(QUEUED_USER_MESSAGES)
        self._begin_turn(context, _state(context), clean_text(message.text), message.trace_context)
        return Decision.go_to("RunModel")

    def _begin_turn(
        self, context: StepContext, state: AgentState, text: str, carrier: dict[str, str]
    ) -> None:
        begun = replace(
            state,
            status=AgentStatus.RUNNING_MODEL,
            turn_number=state.turn_number + 1,
            message_count=state.message_count + 1,
            trace_context=carrier or context.trace_carrier(),
            turn_started_at=datetime.fromtimestamp(context.now(), UTC),
        )
        sequence = begun.message_count
        message = stored_message(checked_user_message(self.runner, text), sequence, begun.turn_id)
        context.set(AGENT_MESSAGES[message_sequence_key(sequence)], message)
        _set_state(context, begun)
        writer = self._writer(context, begun.turn_id)
        writer.write_checked(AgentEventType.TURN_STARTED, {"sequence": sequence})

    # The model

    async def run_model(self, context: StepContext, _: None) -> Decision:
        """Make one model call, then end the turn or schedule its tool calls."""
        state = _state(context)
        recorded = _turn_calls(context)
        outcome = await self._call_model(context, state, recorded)
        self._record_usage(context, state, outcome.usage)
        if isinstance(outcome, TurnCompleted):
            return self._complete_turn(context, state, recorded, outcome)
        return self._defer_tool_calls(context, state, recorded, outcome)

    async def _call_model(
        self, context: StepContext, state: AgentState, recorded: dict[str, AgentToolCall]
    ) -> AgentTurnOutcome:
        """Call the runner, and tell telemetry of the call even when it fails."""
        messages = StoredMessages(context.entries(AGENT_MESSAGES), state.message_count)
        described: list[ModelCallDetails] = []
        outcome: AgentTurnOutcome | None = None

        def describe(*details: ModelCallDetails) -> None:
            described.extend(details)
            context.observe(lambda: model_described(described))

        describe()
        try:
            with self._runner_call(context, state.turn_id) as writer:
                returned = await self.runner.run_model_step(
                    AgentTurnContext(
                        flow_id=context.flow_id,
                        turn_id=state.turn_id,
                        attempt=context.attempt,
                        messages=messages,
                        framework_run_state=context.get(FRAMEWORK_RUN_STATE),
                        tool_calls=recorded,
                        resolve_tool_policy=self.options.resolve_tool_policy,
                        events=writer,
                        heartbeat=context.heartbeat,
                        describe_model_call=describe,
                    )
                )
            outcome = checked_outcome(returned, recorded)
        finally:
            context.observe(lambda: model_call(described, outcome, messages, recorded))
        return outcome

    def _record_usage(self, context: StepContext, state: AgentState, usage: AgentUsage) -> None:
        recorded = replace(usage, model_calls=1)
        session = (context.get(AGENT_USAGE) or AgentUsage()) + recorded
        context.set(AGENT_USAGE, session)
        self._writer(context, state.turn_id).write_checked(
            AgentEventType.USAGE_RECORDED,
            {"recorded": to_builtins(recorded), "session": to_builtins(session)},
        )

    def _complete_turn(
        self,
        context: StepContext,
        state: AgentState,
        recorded: dict[str, AgentToolCall],
        outcome: TurnCompleted,
    ) -> Decision:
        count = state.message_count
        for message in outcome.new_messages:
            count += 1
            stored = stored_message(message, count, state.turn_id)
            context.set(AGENT_MESSAGES[message_sequence_key(count)], stored)
        self._end_turn(context, replace(state, message_count=count, last_turn_error=None), recorded)
        context.observe(lambda: turn_ended(state, context.now()))
        self._writer(context, state.turn_id).write_checked(
            AgentEventType.TURN_COMPLETED, {"message_count": count}
        )
        return Decision.go_to("AwaitUserMessage")

    def _end_turn(
        self, context: StepContext, state: AgentState, recorded: dict[str, AgentToolCall]
    ) -> None:
        for tool_call_id in recorded:
            context.delete(AGENT_TOOL_CALLS[tool_call_id])
        context.delete(FRAMEWORK_RUN_STATE)
        _set_state(context, replace(state, status=AgentStatus.WAITING_FOR_USER_MESSAGE))

    def _defer_tool_calls(
        self,
        context: StepContext,
        state: AgentState,
        recorded: dict[str, AgentToolCall],
        outcome: ToolCallsRequested,
    ) -> Decision:
        writer = self._writer(context, state.turn_id)
        interrupts = list(context.get(PENDING_INTERRUPTS) or ())
        movements = []
        for order, call in enumerate(outcome.tool_calls, start=len(recorded) + 1):
            record = _new_record(call, state.turn_id, order)
            context.set(AGENT_TOOL_CALLS[record.tool_call_id], record)
            _announce(writer, record)
            if record.requires_approval:
                interrupts.append(self._raise_interrupt(context, writer, record))
                movements.append(_movement("AwaitToolApproval", record))
            else:
                movements.append(_movement(_tool_step(record), record))
        context.set(FRAMEWORK_RUN_STATE, clean_text(outcome.framework_run_state))
        context.set(PENDING_INTERRUPTS, interrupts)
        _set_state(context, replace(state, status=AgentStatus.RUNNING_TOOLS))
        return Decision.go_to_many(*movements, Movement("ResumeTurn", len(movements)))

    def _raise_interrupt(
        self, context: StepContext, writer: AgentEventWriter, record: AgentToolCall
    ) -> AgentInterrupt:
        patience = self.options.interrupt_deadline
        now = datetime.fromtimestamp(context.now(), UTC)
        interrupt = AgentInterrupt(
            interrupt_id=interrupt_id(record),
            tool_call_id=record.tool_call_id,
            tool_name=record.tool_name,
            arguments=record.arguments,
            turn_id=record.turn_id,
            deadline=None if patience is None else now + patience,
            raised_at=now,
        )
        context.observe(lambda: approval_asked(record.tool_name))
        writer.write_checked(
            AgentEventType.INTERRUPT_RAISED,
            {
                "interrupt_id": interrupt.interrupt_id,
                "tool_call_id": interrupt.tool_call_id,
                "tool_name": interrupt.tool_name,
                "deadline": to_builtins(interrupt.deadline),
            },
        )
        return interrupt

    # Approvals

    async def wait_for_approval(self, context: StepContext, tool_call_id: str) -> Wait:
        """Wait for the answer and, while the interrupt is pending, for its deadline."""
        asked = interrupt_id(_call(context, tool_call_id))
        answer = INTERRUPT_RESOLUTIONS[asked].for_one()
        interrupt = _pending(context, asked)
        if interrupt is None or interrupt.deadline is None:
            return Wait.until(answer)
        # A Timer counts whole seconds on some engines: up, so that it never fires early.
        left = math.ceil(interrupt.deadline.timestamp() - context.now())
        return Wait.any_of(Timer(max(left, 0)), answer)

    async def await_tool_approval(self, context: StepContext, tool_call_id: str) -> Decision:
        """Apply the answer, or expire the interrupt once its deadline has passed."""
        record = _call(context, tool_call_id)
        if record.is_final:
            return Decision.dead_end()
        asked = interrupt_id(record)
        answers = context.results(INTERRUPT_RESOLUTIONS[asked])
        if answers:
            if answers[0].approved:
                self._tell_ended(context, record, ApprovalResult.APPROVED, answers[0].raised_at)
                return self._approve(context, record)
            self._tell_ended(context, record, ApprovalResult.REJECTED, answers[0].raised_at)
            return self._reject(
                context, record, ApprovalResult.REJECTED, answers[0].rejection_message
            )
        interrupt = _pending(context, asked)
        if interrupt is None or not _has_passed(interrupt, context.now()):
            # Answered just as the Timer fired, or a Timer that fired early: wait again.
            return Decision.go_to_many(_movement("AwaitToolApproval", record))
        context.set(
            PENDING_INTERRUPTS,
            [each for each in _interrupts(context) if each.interrupt_id != asked],
        )
        self._tell_ended(context, record, ApprovalResult.EXPIRED, interrupt.raised_at)
        return self._reject(context, record, ApprovalResult.EXPIRED, EXPIRED_MESSAGE)

    def _tell_ended(
        self,
        context: StepContext,
        record: AgentToolCall,
        result: ApprovalResult,
        raised_at: datetime | None,
    ) -> None:
        now = context.now()
        context.observe(lambda: approval_ended(record.tool_name, result, raised_at, now))

    def _approve(self, context: StepContext, record: AgentToolCall) -> Decision:
        approved = replace(record, status=ToolCallStatus.APPROVED, approval=ApprovalResult.APPROVED)
        context.set(AGENT_TOOL_CALLS[record.tool_call_id], approved)
        self._write_resolved(context, record, approved=True, message=None)
        return Decision.go_to_many(_movement(_tool_step(record), record))

    def _reject(
        self,
        context: StepContext,
        record: AgentToolCall,
        result: ApprovalResult,
        message: str | None,
    ) -> Decision:
        self._write_resolved(context, record, approved=False, message=message)
        return self._finish_call(
            context,
            record,
            status=ToolCallStatus.REJECTED,
            approval=result,
            rejection_message=message,
        )

    def _write_resolved(
        self, context: StepContext, record: AgentToolCall, *, approved: bool, message: str | None
    ) -> None:
        self._writer(context, record.turn_id).write_checked(
            AgentEventType.INTERRUPT_RESOLVED,
            {
                "interrupt_id": interrupt_id(record),
                "approved": approved,
                "rejection_message": message,
            },
        )

    # Tools

    async def call_tool(self, context: StepContext, tool_call_id: str) -> Decision:
        """Run one tool call; how often it may run is the row's retry policy."""
        record = _call(context, tool_call_id)
        if record.is_final:
            return Decision.dead_end()
        context.observe(lambda: tool_call(record))
        with self._runner_call(context, record.turn_id) as writer:
            # An engine may hand the same attempt to a second worker until it has
            # received any output of the first: give it some before the effect.
            writer.write_tool_call_started(record.tool_call_id, record.tool_name)
            await context.heartbeat()
            call = DeferredToolExecution(
                flow_id=context.flow_id,
                tool_call=record,
                idempotency_key=f"{context.flow_id}/{record.turn_id}/{record.tool_call_id}",
                attempt=context.attempt,
                events=writer,
                heartbeat=context.heartbeat,
            )
            try:
                result = await self.runner.execute_deferred_tool_call(call)
            except ToolExecutionError as error:
                failed, message = ToolCallStatus.FAILED, clean_text(error.message)
                return self._finish_call(context, record, type(error), status=failed, error=message)
        output = checked_result(result)
        context.observe(lambda: tool_returned(output))
        return self._finish_call(context, record, status=ToolCallStatus.SUCCEEDED, output=output)

    async def record_tool_failure(self, context: StepContext, tool_call_id: str) -> Decision:
        """Record a used-up ``CallTool``: a read failed, a write may have taken effect."""
        record = _call(context, tool_call_id)
        is_read = record.effect is ToolEffect.READ
        status = ToolCallStatus.FAILED if is_read else ToolCallStatus.OUTCOME_UNKNOWN
        return self._record_recovery(context, record, status)

    async def record_tool_outcome_unknown(
        self, context: StepContext, tool_call_id: str
    ) -> Decision:
        """Record a ``CallSingleAttemptTool`` that ended without a result."""
        record = _call(context, tool_call_id)
        return self._record_recovery(context, record, ToolCallStatus.OUTCOME_UNKNOWN)

    def _record_recovery(
        self, context: StepContext, record: AgentToolCall, status: ToolCallStatus
    ) -> Decision:
        if record.is_final:
            return Decision.dead_end()
        return self._finish_call(context, record, status=status, error=_recovery_detail(context))

    def _finish_call(
        self,
        context: StepContext,
        record: AgentToolCall,
        raised: type[Exception] | None = None,
        **result: Any,
    ) -> Decision:
        """Make a record final and publish its one result, in one commit."""
        final = replace(record, **result)
        context.set(AGENT_TOOL_CALLS[final.tool_call_id], final)
        context.publish(TOOL_CALL_RESULTS, ToolCallCompleted(final.tool_call_id, final.status))
        context.observe(lambda: tool_finished(final, raised))
        self._writer(context, final.turn_id).write_tool_call_finished(
            final.tool_call_id, final.tool_name, final.status
        )
        return Decision.dead_end()

    # Ending a turn

    async def wait_for_tool_results(self, context: StepContext, count: int) -> Wait:  # noqa: ARG002
        """Wait for one result of each tool call."""
        return Wait.until(TOOL_CALL_RESULTS.for_n(count))

    async def resume_turn(self, context: StepContext, count: int) -> Decision:  # noqa: ARG002
        """Go back to the model once every record of the turn is final."""
        unfinished = [record for record in _turn_calls(context).values() if not record.is_final]
        if unfinished:
            return Decision.go_to("ResumeTurn", len(unfinished))
        _set_state(context, replace(_state(context), status=AgentStatus.RUNNING_MODEL))
        return Decision.go_to("RunModel")

    async def record_turn_failure(self, context: StepContext, _: None) -> Decision:
        """Say why the turn failed, and leave a note of the tool calls that ran in it."""
        state, recorded = _state(context), _turn_calls(context)
        error = _recovery_detail(context)
        note = build_turn_failure_note(recorded.values())
        count = state.message_count
        if note is not None:
            count += 1
            message = stored_message(checked_user_message(self.runner, note), count, state.turn_id)
            context.set(AGENT_MESSAGES[message_sequence_key(count)], message)
        self._end_turn(
            context, replace(state, message_count=count, last_turn_error=error), recorded
        )
        error_type = context.recovery_error.error_type if context.recovery_error else _UNTOLD
        context.observe(lambda: turn_ended(state, context.now(), error_type))
        self._writer(context, state.turn_id).write_checked(
            AgentEventType.TURN_FAILED, {"error": error}
        )
        return Decision.go_to("AwaitUserMessage")

    # Calling the runner

    def _writer(self, context: StepContext, turn_id: str) -> AgentEventWriter:
        def write(event: AgentEvent) -> None:
            context.write(self.events, event)

        return AgentEventWriter(write, turn_id, context.step_execution_id, context.attempt)

    @contextmanager
    def _runner_call(self, context: StepContext, turn_id: str) -> Iterator[AgentEventWriter]:
        """Keep the attempt alive while a runner works; its event writer ends with the call."""
        writer = self._writer(context, turn_id)
        try:
            with context.keep_alive(HEARTBEAT_SECONDS):
                yield writer
        finally:
            writer.close()


def _state(context: StepContext) -> AgentState:
    return context.get(AGENT_STATE) or _missing("AgentState")


def _set_state(context: StepContext, state: AgentState) -> None:
    """Write a turn's state, with the trace that whoever goes on with the turn links to."""
    context.set(AGENT_STATE, replace(state, stretch_context=context.trace_carrier()))


def _call(context: StepContext, tool_call_id: str) -> AgentToolCall:
    record = context.get(AGENT_TOOL_CALLS[tool_call_id])
    return record or _missing(f"record of tool call {tool_call_id!r}")


def _missing(what: str) -> Never:
    raise StoredRecordError(what, "it is not there")


def _turn_calls(context: StepContext) -> dict[str, AgentToolCall]:
    """Return the turn's records by tool call ID, in model order."""
    records = context.entries(AGENT_TOOL_CALLS).values()
    ordered = sorted(records, key=lambda record: record.deferral_order)
    return {record.tool_call_id: record for record in ordered}


def _interrupts(context: StepContext) -> list[AgentInterrupt]:
    return context.get(PENDING_INTERRUPTS) or []


def _pending(context: StepContext, interrupt_id: str) -> AgentInterrupt | None:
    found = (each for each in _interrupts(context) if each.interrupt_id == interrupt_id)
    return next(found, None)


def _has_passed(interrupt: AgentInterrupt, now: float) -> bool:
    return interrupt.deadline is not None and interrupt.deadline.timestamp() <= now


def _tool_step(record: AgentToolCall) -> str:
    return "CallTool" if record.effect.is_retried else "CallSingleAttemptTool"


def _movement(step: str, record: AgentToolCall) -> Movement:
    """Return the movement to a Step of one tool call, which sees only its own record."""
    options = _TOOL_CALL_STEPS[step].loading(AGENT_TOOL_CALLS[record.tool_call_id])
    return Movement(step, record.tool_call_id, options)


def _recovery_detail(context: StepContext) -> str:
    recovery = context.recovery_error
    return clean_text(recovery.detail) if recovery else "The Step failed."


def _new_record(call: DeferredToolCall, turn_id: str, order: int) -> AgentToolCall:
    needs_approval = call.policy.is_approval_required
    return AgentToolCall(
        tool_call_id=call.tool_call_id,
        tool_name=clean_text(call.tool_name),
        arguments=json_value(call.arguments, f"arguments of tool call {call.tool_call_id!r}"),
        effect=call.policy.effect,
        requires_approval=needs_approval,
        status=ToolCallStatus.PENDING_APPROVAL if needs_approval else ToolCallStatus.PENDING,
        deferral_order=order,
        turn_id=turn_id,
    )


def _announce(writer: AgentEventWriter, record: AgentToolCall) -> None:
    writer.write_checked(
        AgentEventType.TOOL_CALL_DEFERRED,
        {
            "tool_call_id": record.tool_call_id,
            "tool_name": record.tool_name,
            "effect": str(record.effect),
            "requires_approval": record.requires_approval,
        },
    )
