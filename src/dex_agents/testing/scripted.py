"""A runner that plays a script in place of a model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from dex_agents.records import AgentToolCall, AgentUsage, FrameworkMessage, ToolEffect
from dex_agents.runner import (
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    ToolCallsRequested,
    ToolExecutionError,
    ToolExecutionResult,
    TurnCompleted,
)
from dex_agents.session import describe_tool_call_outcome
from dex_agents.testing.chat import (
    ChatItem,
    chat_messages,
    read_run_state,
    user_message,
    write_run_state,
)
from dex_agents.testing.errors import ScriptError

__all__ = ("ScriptedRunner", "ToolRequest")

_NO_ARGUMENTS = object()


class ToolRequest:
    """One tool call that a script's model asks for.

    Args:
        name: The tool.
        arguments: Any JSON value; None for an empty object.
        tool_call_id: None for ``call-<n>``, n counting the turn's calls from 1.
        effect: What the framework's metadata would say of the tool.
    """

    def __init__(
        self,
        name: str,
        arguments: Any = _NO_ARGUMENTS,
        *,
        tool_call_id: str | None = None,
        effect: ToolEffect | None = None,
    ) -> None:
        self.name = name
        self.arguments = {} if arguments is _NO_ARGUMENTS else arguments
        self.tool_call_id = tool_call_id
        self.effect = effect

    def __repr__(self) -> str:
        return f"ToolRequest({self.name!r}, {self.arguments!r})"


Response: TypeAlias = str | Sequence[ToolRequest] | BaseException | AgentTurnOutcome
"""What a script's model answers to one call."""
Script: TypeAlias = Sequence[Sequence[Response]] | Callable[[AgentTurnContext], Any]
Tool: TypeAlias = Callable[[DeferredToolExecution], Any]


class ScriptedRunner:
    """Plays a script, and keeps nothing between calls: its place comes from the arguments.

    A response is one of:

    - a ``str``: the final answer;
    - a sequence of `ToolRequest`: the model asks for these tools;
    - an exception, which is raised, at every attempt;
    - a ready `AgentTurnOutcome`, returned as it is, sound or not. The turn goes on
      behind the one whose run state comes back, so give each its own.

    Turn n of the session plays turn n of a script, also when an earlier turn
    failed. Framework items are chat dictionaries, the run state is the JSON of
    the turn's items so far.

    Args:
        script: Turns, each a sequence of responses; or a function, plain or
            async, that is called for every model call and returns a response.
            Whatever else the function returns goes to the session as it is.
        tools: By name, functions, plain or async, from a `DeferredToolExecution`
            to the tool's output.
        usage: Reported for each model call.
        stream: Whether a final answer is streamed as text deltas, word by word.

    Raises:
        ScriptError: A part of the script is no turn or no response.
    """

    def __init__(
        self,
        script: Script,
        tools: Mapping[str, Tool] | None = None,
        *,
        usage: AgentUsage | None = None,
        stream: bool = False,
    ) -> None:
        if not callable(script):
            _check(script)
        self._script = script
        self._tools = dict(tools or {})
        self._usage = usage or AgentUsage()
        self._stream = stream

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the chat form of a user message."""
        return user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Play the response that the script has for this model call.

        Raises:
            ScriptError: The script has none.
        """
        items = _items(turn)
        response = await self._response(turn, items)
        if isinstance(response, BaseException):
            raise response
        if isinstance(response, str):
            return self._answer(turn, items, response)
        if _are_requests(response):
            return self._requests(turn, items, response)
        return cast("AgentTurnOutcome", response)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run the tool of this name.

        Raises:
            ToolExecutionError: There is none, or the tool says so.
        """
        name = call.tool_call.tool_name
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            raise ToolExecutionError(f"There is no tool {name!r}. Known tools: {known}.")
        return ToolExecutionResult(await _awaited(tool(call)))

    async def _response(self, turn: AgentTurnContext, items: list[ChatItem]) -> Any:
        if callable(self._script):
            return await _awaited(self._script(turn))
        number = int(turn.turn_id.removeprefix("turn-"))
        if number > len(self._script):
            raise ScriptError(f"The script has {len(self._script)} turns; this is turn {number}.")
        responses = self._script[number - 1]
        place = _place(turn, items, responses)
        if place >= len(responses):
            raise ScriptError(
                f"Turn {number} of the script has {len(responses)} responses; "
                f"this is model call {place + 1}."
            )
        return responses[place]

    def _answer(self, turn: AgentTurnContext, items: list[ChatItem], text: str) -> TurnCompleted:
        if self._stream:
            for word in re.findall(r"\S+\s*|\s+", text):
                turn.events.write_text_delta(word)
        answer = {"role": "assistant", "content": text}
        return TurnCompleted(chat_messages([*items, answer]), self._usage)

    def _requests(
        self, turn: AgentTurnContext, items: list[ChatItem], requests: Sequence[ToolRequest]
    ) -> ToolCallsRequested:
        calls = [
            DeferredToolCall(
                request.tool_call_id if request.tool_call_id is not None else f"call-{number}",
                request.name,
                request.arguments,
                turn.resolve_tool_policy(request.name, request.effect),
            )
            for number, request in enumerate(requests, start=len(turn.tool_calls) + 1)
        ]
        asked = [_asked(each.tool_call_id, each.tool_name, each.arguments) for each in calls]
        item = {"role": "assistant", "content": None, "tool_calls": asked}
        return ToolCallsRequested(write_run_state([*items, item]), calls, self._usage)


def _items(turn: AgentTurnContext) -> list[ChatItem]:
    """Return the turn's items so far, with the results of the calls that were running."""
    items = read_run_state(turn.framework_run_state)
    records = sorted(turn.tool_calls.values(), key=lambda record: record.deferral_order)
    if items is None:  # a ready outcome's own run state: tell its calls from their records
        items = [{"role": "assistant", "content": None, "tool_calls": _asked_by(records)}]
    answered = {item["tool_call_id"] for item in items if item["role"] == "tool"}
    waiting = [record for record in records if record.tool_call_id not in answered]
    return items + [_result(record) for record in waiting]


def _place(turn: AgentTurnContext, items: Sequence[ChatItem], responses: Sequence[Response]) -> int:
    for index, response in enumerate(responses):
        if (
            isinstance(response, ToolCallsRequested)
            and response.framework_run_state == turn.framework_run_state
        ):
            return index + 1
    return sum(item["role"] == "assistant" for item in items)


def _result(record: AgentToolCall) -> ChatItem:
    content = describe_tool_call_outcome(record)
    return {"role": "tool", "tool_call_id": record.tool_call_id, "content": content}


def _asked(tool_call_id: str, name: str, arguments: Any) -> ChatItem:
    return {"id": tool_call_id, "name": name, "arguments": arguments}


def _asked_by(records: Sequence[AgentToolCall]) -> list[ChatItem]:
    return [_asked(each.tool_call_id, each.tool_name, each.arguments) for each in records]


def _are_requests(response: Any) -> bool:
    return (
        isinstance(response, Sequence)
        and not isinstance(response, str | bytes)
        and all(isinstance(each, ToolRequest) for each in response)
    )


async def _awaited(value: Any | Awaitable[Any]) -> Any:
    return await value if inspect.isawaitable(value) else value


def _check(script: Sequence[Any]) -> None:
    for number, turn in enumerate(script, start=1):
        if isinstance(turn, str) or not isinstance(turn, Sequence):
            raise ScriptError(f"Turn {number} of the script is {turn!r}, not a list of responses.")
        for response in turn:
            if not _is_response(response):
                raise ScriptError(f"Turn {number} of the script holds {response!r}, no response.")


def _is_response(response: Any) -> bool:
    ready = str | BaseException | TurnCompleted | ToolCallsRequested
    return isinstance(response, ready) or _are_requests(response)
