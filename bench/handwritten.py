"""The Steps of a session as a Dex Flow written by hand, storing what a session stores.

It is what somebody would write who has the SDK and not dex-agents: dataclasses
for records, one class a Step, no checks and no telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dex

__all__ = ("HandwrittenFlow",)


@dataclass
class State:
    status: str = "waiting"
    turn: int = 0
    messages: int = 0


@dataclass
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0


@dataclass
class Message:
    sequence: int
    role: str
    item: dict[str, str]
    text: str
    turn_id: str


@dataclass
class Call:
    id: str
    name: str
    turn_id: str
    order: int
    status: str = "pending"
    output: str = ""
    arguments: dict[str, int] = field(default_factory=dict)


@dataclass
class Event:
    type: str
    turn_id: str
    step_execution_id: str
    attempt: int
    payload: dict[str, Any]


STATE = dex.Attribute("State", State)
USAGE = dex.Attribute("Usage", Usage)
RUN_STATE = dex.Attribute("RunState", str)
MESSAGES = dex.AttributeMap("Messages", Message)
CALLS = dex.AttributeMap("Calls", Call)
INBOX = dex.Channel("Inbox", str)
RESULTS = dex.Channel("Results", str)
EVENTS = dex.Stream("Events", Event, 10 * 1024 * 1024)

SYNC = {
    "wait_for_durability": dex.StepDurability.SYNC,
    "execute_durability": dex.StepDurability.SYNC,
}


def _key(sequence: int) -> str:
    return f"{sequence:012}"


def _tell(context: dex.AsyncContext, kind: str, **payload: Any) -> None:
    turn_id = f"turn-{STATE.get(context).turn}"
    event = Event(kind, turn_id, context.step_execution_id, context.attempt, payload)
    EVENTS.write(context, event)


def _add(context: dex.AsyncContext, role: str, text: str) -> None:
    state = STATE.get(context)
    state.messages += 1
    item = {"role": role, "content": text}
    message = Message(state.messages, role, item, text, f"turn-{state.turn}")
    MESSAGES.set(context, _key(state.messages), message)
    STATE.set(context, state)


class Begin(dex.Step[None]):
    async def execute(self, context: dex.AsyncContext, input: None) -> dex.StepDecision:  # noqa: A002, ARG002
        STATE.set(context, State())
        USAGE.set(context, Usage())
        return dex.go_to(AwaitUserMessage, None)


class AwaitUserMessage(dex.Step[None]):
    def get_step_options(self) -> dex.StepOptions:
        return dex.StepOptions(**SYNC)

    async def wait_for(self, context: dex.AsyncContext, input: None) -> dex.Wait:  # noqa: A002, ARG002
        return dex.Wait.until(INBOX.for_one())

    async def execute(self, context: dex.AsyncContext, input: None) -> dex.StepDecision:  # noqa: A002, ARG002
        state = STATE.get(context)
        state.turn += 1
        state.status = "running_model"
        STATE.set(context, state)
        _add(context, "user", INBOX.results(context)[0])
        _tell(context, "turn_started", sequence=state.messages + 1)
        return dex.go_to(RunModel, None)


class RunModel(dex.Step[None]):
    def __init__(self, flow: HandwrittenFlow) -> None:
        self.flow = flow

    def get_step_options(self) -> dex.StepOptions:
        return dex.StepOptions(
            execute_method_timeout=timedelta(minutes=15),
            execute_load_attribute_maps=(MESSAGES, CALLS),
            **SYNC,
        )

    async def execute(self, context: dex.AsyncContext, input: None) -> dex.StepDecision:  # noqa: A002, ARG002
        state = STATE.get(context)
        asked = MESSAGES.get(context, _key(state.messages)).text
        usage = USAGE.get(context)
        usage.model_calls += 1
        USAGE.set(context, usage)
        _tell(context, "usage_recorded", model_calls=usage.model_calls)
        if RUN_STATE.get(context):
            return self._complete(context)
        calls = await self.flow.model(context.flow_id, asked)
        for order, name in enumerate(calls):
            call = Call(f"call-{order}", name, f"turn-{state.turn}", order)
            CALLS.set(context, call.id, call)
            _tell(context, "tool_call_deferred", tool_call_id=call.id, tool_name=name)
        RUN_STATE.set(context, "state")
        state.status = "running_tools"
        STATE.set(context, state)
        ids = [f"call-{order}" for order in range(len(calls))]
        return dex.go_to_many(
            *(dex.StepMovement.of(CallTool, each, options=_one_call(each)) for each in ids),
            dex.StepMovement.of(ResumeTurn, len(ids)),
        )

    def _complete(self, context: dex.AsyncContext) -> dex.StepDecision:
        for key in CALLS.get_all_instance_keys(context):
            CALLS.delete(context, key)
        RUN_STATE.delete(context)
        _add(context, "assistant", self.flow.answer)
        state = STATE.get(context)
        state.status = "waiting"
        STATE.set(context, state)
        _tell(context, "turn_completed", message_count=state.messages)
        return dex.go_to(AwaitUserMessage, None)


def _one_call(key: str) -> dex.StepOptions:
    return dex.StepOptions(
        execute_retry=dex.RetryPolicy(maximum_attempts=3),
        execute_load_attribute_map_instances=(CALLS.load(key),),
        **SYNC,
    )


class CallTool(dex.Step[str]):
    def __init__(self, flow: HandwrittenFlow) -> None:
        self.flow = flow

    async def execute(self, context: dex.AsyncContext, input: str) -> dex.StepDecision:  # noqa: A002
        call = CALLS.get(context, input)
        _tell(context, "tool_call_started", tool_call_id=call.id, tool_name=call.name)
        await context.heartbeat()
        call.output = self.flow.answer
        call.status = "succeeded"
        CALLS.set(context, input, call)
        RESULTS.publish(context, input)
        _tell(context, "tool_call_finished", tool_call_id=call.id, status=call.status)
        return dex.dead_end()


class ResumeTurn(dex.Step[int]):
    def get_step_options(self) -> dex.StepOptions:
        return dex.StepOptions(
            wait_for_load_attribute_maps=(CALLS,), execute_load_attribute_maps=(CALLS,), **SYNC
        )

    async def wait_for(self, context: dex.AsyncContext, input: int) -> dex.Wait:  # noqa: A002, ARG002
        return dex.Wait.until(RESULTS.for_n(input))

    async def execute(self, context: dex.AsyncContext, input: int) -> dex.StepDecision:  # noqa: A002, ARG002
        for key in CALLS.get_all_instance_keys(context):
            assert CALLS.get(context, key).status == "succeeded"
        state = STATE.get(context)
        state.status = "running_model"
        STATE.set(context, state)
        return dex.go_to(RunModel, None)


class HandwrittenFlow(dex.Flow[None]):
    """The same seven Steps a turn.

    Args:
        model: ``(flow_id, user message) -> tool names``.
        answer: What every tool and the model answer.
    """

    def __init__(self, model: Any, answer: str) -> None:
        self.model = model
        self.answer = answer

    def get_flow_type(self) -> str:
        return "Handwritten"

    def get_steps(self) -> dex.StepList[None]:
        others = (AwaitUserMessage(), RunModel(self), CallTool(self), ResumeTurn())
        return dex.StepList.start_step(Begin()).other_steps(*others)

    def get_persistence_schema(self) -> dex.PersistenceSchema:
        return dex.PersistenceSchema.of(
            STATE, USAGE, RUN_STATE, MESSAGES, CALLS, INBOX, RESULTS, EVENTS
        )

    @dex.rpc(is_transactional=True)
    async def send(self, context: dex.Context, text: str) -> dex.RPCResult[bool]:
        INBOX.publish(context, text)
        return dex.RPCResult(True)
