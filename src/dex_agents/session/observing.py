"""What telemetry is told of a session: facts before a Step attempt, observations while it runs.

Pure functions from records to descriptions; telemetry decides what becomes of
them. A turn is one trace, and each active stretch of it an ``invoke_agent``
span, the parent of the spans of its attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dex_agents import signals
from dex_agents.records import (
    AgentMessage,
    AgentState,
    AgentToolCall,
    AgentUsage,
    ApprovalResult,
    FrameworkMessage,
    MessageRole,
)
from dex_agents.runner import AgentTurnOutcome, ModelCallDetails, TurnCompleted
from dex_agents.session.persistence import (
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    INTERRUPT_RESOLUTIONS,
    QUEUED_USER_MESSAGES,
)
from dex_agents.session.turn import initial_message, interrupt_id
from dex_agents.table import (
    AttemptFacts,
    Measurement,
    Observation,
    StepContext,
    Stretch,
    StretchEnd,
)

__all__ = (
    "SessionFacts",
    "approval_asked",
    "approval_ended",
    "model_call",
    "model_described",
    "tool_call",
    "tool_finished",
    "tool_returned",
    "turn_ended",
)

_TOOL_STEPS = ("CallTool", "CallSingleAttemptTool")


@dataclass(frozen=True)
class SessionFacts:
    """The ``facts`` of a session table.

    Attributes:
        agent: The agent's name, which is the flow type.
    """

    agent: str

    def __call__(self, step: str, context: StepContext, step_input: Any) -> AttemptFacts:
        """Tell which turn an attempt belongs to, who woke it, and what it calls."""
        state = context.get(AGENT_STATE) or AgentState()
        if step == "StartAgentSession" and initial_message(step_input) is not None:
            return self._first_of_turn(context, state, step_input.trace_context)
        if step == "AwaitUserMessage" and (found := context.results(QUEUED_USER_MESSAGES)):
            return self._first_of_turn(context, state, found[0].trace_context)
        if not state.turn_number:
            return AttemptFacts(labels=self._labels())
        if step == "RunModel":
            return self._model(context, state)
        about_tool = isinstance(step_input, str)
        tool = self._tool(step, context, state, step_input) if about_tool else None
        return tool or self._of_turn(context, state)

    def _first_of_turn(
        self, context: StepContext, state: AgentState, carrier: Mapping[str, str]
    ) -> AttemptFacts:
        """A message begins a turn: in its sender's trace, or without one in a new trace."""
        turn_id = f"turn-{state.turn_number + 1}"
        return AttemptFacts(
            carrier=carrier,
            tags={"turn_id": turn_id},
            labels=self._labels(),
            stretch=self._stretch(context, turn_id, state.stretch_context),
        )

    def _of_turn(self, context: StepContext, state: AgentState, **facts: Any) -> AttemptFacts:
        tags = {"turn_id": state.turn_id, **facts.pop("tags", {})}
        stretch = self._stretch(context, state.turn_id, state.stretch_context, is_resumed=True)
        labels = self._labels() | facts.pop("labels", {})
        return AttemptFacts(
            carrier=state.trace_context, tags=tags, labels=labels, stretch=stretch, **facts
        )

    def _model(self, context: StepContext, state: AgentState) -> AttemptFacts:
        return self._of_turn(
            context,
            state,
            span_name="chat",
            is_client=True,
            attributes={
                signals.OPERATION_NAME: "chat",
                signals.AGENT_NAME: self.agent,
                signals.CONVERSATION_ID: context.flow_id,
            },
            duration=signals.INFERENCE_DURATION,
            tally=signals.INFERENCE_CALLS,
            exception_event=signals.INFERENCE_EXCEPTION,
        )

    def _tool(
        self, step: str, context: StepContext, state: AgentState, tool_call_id: str
    ) -> AttemptFacts:
        tags = {"tool_call_id": tool_call_id}
        record = context.get(AGENT_TOOL_CALLS[tool_call_id])
        if record is None:
            return self._of_turn(context, state, tags=tags)
        if step not in _TOOL_STEPS:
            answers = context.results(INTERRUPT_RESOLUTIONS[interrupt_id(record)])
            links = tuple(answer.trace_context for answer in answers)
            return self._of_turn(context, state, tags=tags, links=links)
        return self._of_turn(
            context,
            state,
            tags=tags,
            span_name=f"execute_tool {record.tool_name}",
            attributes={
                signals.OPERATION_NAME: "execute_tool",
                signals.AGENT_NAME: self.agent,
                signals.CONVERSATION_ID: context.flow_id,
                signals.TOOL_NAME: record.tool_name,
                signals.TOOL_TYPE: "function",
                signals.GEN_AI_TOOL_CALL_ID: tool_call_id,
            },
            labels={signals.TOOL_NAME: record.tool_name},
            duration=signals.TOOL_DURATION,
            tally=signals.TOOL_CALLS,
            exception_event=signals.TOOL_EXCEPTION,
        )

    def _stretch(
        self,
        context: StepContext,
        turn_id: str,
        before: Mapping[str, str],
        *,
        is_resumed: bool = False,
    ) -> Stretch:
        return Stretch(
            key=turn_id,
            name=f"invoke_agent {self.agent}",
            attributes={
                signals.OPERATION_NAME: "invoke_agent",
                signals.AGENT_NAME: self.agent,
                signals.CONVERSATION_ID: context.flow_id,
                signals.TURN_ID: turn_id,
            },
            labels=self._labels(),
            duration=signals.INVOKE_AGENT_DURATION,
            tallies=(signals.INFERENCE_CALLS, signals.TOOL_CALLS),
            is_resumed=is_resumed,
            links=(before,),
        )

    def _labels(self) -> dict[str, str]:
        return {signals.AGENT_NAME: self.agent}


# Observations


def model_described(described: Sequence[ModelCallDetails]) -> Observation:
    """Describe a model call under way by what the runner has told; later adds to earlier."""
    details: dict[str, Any] = {signals.PROVIDER_NAME: signals.UNKNOWN}
    for each in described:
        told = {
            signals.PROVIDER_NAME: each.provider,
            signals.REQUEST_MODEL: each.request_model,
            signals.RESPONSE_MODEL: each.response_model,
            signals.RESPONSE_ID: each.response_id,
            signals.FINISH_REASONS: tuple(each.finish_reasons) or None,
        }
        details.update((key, value) for key, value in told.items() if value is not None)
    named = (signals.PROVIDER_NAME, signals.REQUEST_MODEL, signals.RESPONSE_MODEL)
    labels = {key: details[key] for key in named if key in details}
    labels[signals.OPERATION_NAME] = "chat"
    model = details.get(signals.REQUEST_MODEL)
    name = f"chat {model}" if model else None
    return Observation(span_name=name, attributes=details, labels=labels)


def model_call(
    described: Sequence[ModelCallDetails],
    outcome: AgentTurnOutcome | None,
    messages: Sequence[AgentMessage],
    tool_calls: Mapping[str, AgentToolCall],
) -> Observation:
    """Describe a model call that has ended.

    Args:
        described: What the runner has told of it.
        outcome: What it led to, or None when it failed.
        messages: What it was given, for content capture.
        tool_calls: The results that it was given, for content capture.
    """
    usage = outcome.usage if outcome is not None else None
    measurements: tuple[Measurement, ...] = ()
    if usage is not None:
        measurements = tuple(_token_measurements(usage, model_described(described).labels))
    return Observation(
        attributes=_tokens(usage),
        measurements=measurements,
        content=lambda: {
            signals.INPUT_MESSAGES: _given(messages, tool_calls),
            **({signals.OUTPUT_MESSAGES: _answered(outcome)} if outcome is not None else {}),
        },
        content_event=signals.INFERENCE_DETAILS,
    )


def tool_call(record: AgentToolCall) -> Observation:
    """Describe what a tool is given."""
    return Observation(content=lambda: {signals.TOOL_ARGUMENTS: record.arguments})


def tool_finished(record: AgentToolCall, raised: type[Exception] | None = None) -> Observation:
    """Describe the result of a tool call.

    Args:
        record: The final record.
        raised: What the tool raised for the model to see.
    """
    labels = {
        signals.TOOL_NAME: record.tool_name,
        signals.TOOL_STATUS: str(record.status),
        signals.TOOL_EFFECT: str(record.effect),
    }
    return Observation(
        attributes={signals.TOOL_STATUS: str(record.status)},
        measurements=(Measurement(signals.TOOL_OUTCOMES, 1, labels),),
        error_type=None if raised is None else f"{raised.__module__}.{raised.__qualname__}",
    )


def tool_returned(output: Any) -> Observation:
    """Describe what a tool has returned."""
    return Observation(content=lambda: {signals.TOOL_RESULT: output})


def approval_asked(tool_name: str) -> Observation:
    """Describe that a person is asked."""
    labels = {signals.TOOL_NAME: tool_name}
    return Observation(measurements=(Measurement(signals.APPROVALS_PENDING, 1, labels),))


def approval_ended(
    tool_name: str, result: ApprovalResult, raised_at: datetime | None, now: float
) -> Observation:
    """Describe how an approval has ended, and after how many seconds."""
    tool = {signals.TOOL_NAME: tool_name}
    measurements = [Measurement(signals.APPROVALS_PENDING, -1, tool)]
    if raised_at is not None:
        labels = {**tool, signals.APPROVAL_RESULT: str(result)}
        waited = max(now - raised_at.timestamp(), 0.0)
        measurements.append(Measurement(signals.APPROVAL_WAIT, waited, labels))
    return Observation(
        attributes={signals.APPROVAL_RESULT: str(result)}, measurements=tuple(measurements)
    )


def turn_ended(state: AgentState, now: float, error_type: str | None = None) -> Observation:
    """Describe the end of a turn; a turn that failed says why."""
    begun = state.turn_started_at.timestamp() if state.turn_started_at is not None else now
    seconds = max(now - begun, 0.0)
    outcome = signals.COMPLETED if error_type is None else signals.FAILED
    failure = {} if error_type is None else {signals.ERROR_TYPE: error_type}
    labels = {signals.TURN_OUTCOME: outcome, **failure}
    event = signals.TURN_COMPLETED if error_type is None else signals.TURN_FAILED
    return Observation(
        measurements=(Measurement(signals.TURN_WALL_DURATION, seconds, labels),),
        end=StretchEnd(event, outcome, seconds, error_type),
    )


def _tokens(usage: AgentUsage | None) -> dict[str, int]:
    if usage is None:
        return {}
    optional = {
        signals.CACHE_READ_TOKENS: usage.cache_read_tokens,
        signals.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        signals.REASONING_TOKENS: usage.reasoning_tokens,
    }
    return {
        signals.INPUT_TOKENS: usage.input_tokens,
        signals.OUTPUT_TOKENS: usage.output_tokens,
        **{key: count for key, count in optional.items() if count},
    }


def _token_measurements(usage: AgentUsage, labels: Mapping[str, str]) -> Iterable[Measurement]:
    by_modality = {**labels, signals.TOKEN_MODALITY: signals.UNKNOWN}
    for metric, count in (
        (signals.USED_INPUT_TOKENS, usage.input_tokens),
        (signals.USED_OUTPUT_TOKENS, usage.output_tokens),
        (signals.USED_CACHE_READ_TOKENS, usage.cache_read_tokens),
        (signals.USED_CACHE_WRITE_TOKENS, usage.cache_write_tokens),
        (signals.USED_REASONING_TOKENS, usage.reasoning_tokens),
    ):
        if count:
            yield Measurement(metric, count, by_modality)
    yield Measurement(signals.CALL_INPUT_TOKENS, usage.input_tokens, labels)
    yield Measurement(signals.CALL_OUTPUT_TOKENS, usage.output_tokens, labels)


# Content, in the form of the GenAI conventions


def _given(
    messages: Sequence[AgentMessage], tool_calls: Mapping[str, AgentToolCall]
) -> list[dict[str, Any]]:
    """Return what a model call is given: the stored messages, then this turn's tool results."""
    results = [
        {"type": "tool_call_response", "id": call.tool_call_id, "result": _result(call)}
        for call in tool_calls.values()
    ]
    given = [_message(each) for each in messages]
    return [*given, {"role": "tool", "parts": results}] if results else given


def _answered(outcome: AgentTurnOutcome) -> list[dict[str, Any]]:
    """Return what a model call has brought: its last message, or the calls that it asks for."""
    if isinstance(outcome, TurnCompleted):
        answers = [m for m in outcome.new_messages if m.role is MessageRole.ASSISTANT]
        return [_message(each) for each in answers[-1:]]
    asked = [
        {
            "type": "tool_call",
            "id": call.tool_call_id,
            "name": call.tool_name,
            "arguments": call.arguments,
        }
        for call in outcome.tool_calls
    ]
    return [{"role": "assistant", "parts": asked}]


def _message(message: AgentMessage | FrameworkMessage) -> dict[str, Any]:
    content = message.framework_item if message.text is None else message.text
    return {"role": str(message.role), "parts": [{"type": "text", "content": content}]}


def _result(call: AgentToolCall) -> Any:
    return call.output if call.error is None else call.error
