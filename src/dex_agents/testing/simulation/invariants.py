"""What must hold of a session whatever goes wrong: in words, and as code.

Each invariant is a function that yields what contradicts it. Its docstring is
the invariant in words. It is called after every commit, after everything that
the agent does, or when all faults have ended and the session has come to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct, json

from dex_agents.machine import HistoryEvent, Phase, TimerWait
from dex_agents.records import (
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    ApprovalResult,
    MessageRole,
    ToolCallStatus,
)
from dex_agents.runner import DeferredToolExecution
from dex_agents.testing.simulation.books import Books, Observed

__all__ = (
    "AFTER_COMMIT",
    "AT_CALL",
    "AT_REST",
    "BEGUN_ONCE",
    "COMES_TO_REST",
    "INVARIANTS",
    "NOTHING_ESCAPES",
    "RECEIPTS",
    "SAME_EVERYWHERE",
    "Invariant",
    "Rule",
)

Contradictions: TypeAlias = Iterator[str]


class Invariant(Struct, frozen=True):
    """A rule."""

    name: str
    words: str


class Rule(Invariant, frozen=True):
    """A rule, with the function that yields what contradicts it."""

    find: Callable[..., Contradictions]


AFTER_COMMIT: list[Rule] = []
"""Called with the books and what a commit changed."""
AT_CALL: list[Rule] = []
"""Called with the books and the tool call whose body begins."""
AT_REST: list[Rule] = []
"""Called with the books."""


def _rule(moment: list[Rule]) -> Callable[[Any], Any]:
    def keep(find: Callable[..., Contradictions]) -> Callable[..., Contradictions]:
        words = " ".join((find.__doc__ or "").split())
        moment.append(Rule(find.__name__, words, find))
        return find

    return keep


# Tool calls


@_rule(AFTER_COMMIT)
def one_result(books: Books, seen: Observed) -> Contradictions:
    """A tool call publishes one result, in the commit that makes its record final."""
    told = {result.tool_call_id: result for result in seen.results}
    for call_id in told:
        record = books.calls.get(call_id)
        if record is None or not record.is_final:
            yield f"a result of {call_id}, whose record is not final"
        else:
            books.published[record.turn_id, call_id] += 1
            if books.published[record.turn_id, call_id] > 1 or len(told) < len(seen.results):
                yield f"a second result of {call_id}"
    for call_id, (before, after) in seen.calls.items():
        if after is not None and after.is_final and not _is_final(before) and call_id not in told:
            yield f"{call_id} became final without a result"


@_rule(AFTER_COMMIT)
def final_is_final(books: Books, seen: Observed) -> Contradictions:  # noqa: ARG001
    """A record that is final never changes until its turn ends, and no other is deleted."""
    for call_id, (before, after) in seen.calls.items():
        if _is_final(before) and after is not None and after != before:
            yield f"the final record of {call_id} changed from {before} to {after}"
        if before is not None and not before.is_final and after is None:
            yield f"the record of {call_id} was deleted while {before.status}"


@_rule(AT_CALL)
def once_only(books: Books, call: DeferredToolExecution) -> Contradictions:
    """A tool that may not run twice runs at most once; any other at most three times."""
    runs = books.keys[call.idempotency_key]
    most = 3 if call.tool_call.effect.is_retried else 1
    if runs > most:
        yield f"run {runs} of {call.idempotency_key}, which is {call.tool_call.effect}"


@_rule(AT_CALL)
def one_key(books: Books, call: DeferredToolExecution) -> Contradictions:
    """All runs of a tool call have one idempotency key, and no other call has it."""
    owner = (call.tool_call.turn_id, call.tool_call.tool_call_id)
    if books.owners.setdefault(call.idempotency_key, owner) != owner:
        yield f"{owner} runs under the key of {books.owners[call.idempotency_key]}"
    keys = [key for key, each in books.owners.items() if each == owner]
    if len(keys) > 1:
        yield f"{owner} ran under {keys}"


@_rule(AT_CALL)
def approved_first(books: Books, call: DeferredToolExecution) -> Contradictions:
    """What needs an approval runs only after somebody has said yes."""
    record = call.tool_call
    if record.requires_approval:
        answer = books.answered.get(f"{record.turn_id}.{record.tool_call_id}")
        if answer is None or not answer.approved:
            yield f"{record.tool_call_id} runs, and the answer is {answer}"


# Approvals


@_rule(AFTER_COMMIT)
def answered_once(books: Books, seen: Observed) -> Contradictions:
    """An answer is taken once, while its question is pending and before its deadline."""
    pending = {each.interrupt_id: each for each in seen.pending_before}
    decided_at = seen.history[-1].at if seen.history else 0.0
    for answer in seen.answers:
        question = pending.get(answer.interrupt_id)
        if answer.interrupt_id in books.answered:
            yield f"a second answer to {answer.interrupt_id}"
        elif question is None:
            yield f"an answer to {answer.interrupt_id}, which is not pending"
        elif question.deadline is not None and question.deadline.timestamp() <= decided_at:
            yield f"an answer to {answer.interrupt_id} after its deadline"
        books.answered[answer.interrupt_id] = answer


@_rule(AFTER_COMMIT)
def verdict_is_the_answer(books: Books, seen: Observed) -> Contradictions:
    """A record says approved or rejected as the answer did, and expired only without one."""
    for call_id, (before, after) in seen.calls.items():
        if after is None or after.approval is None or (before and before.approval):
            continue
        answer = books.answered.get(f"{after.turn_id}.{call_id}")
        said = None if answer is None else answer.approved
        meant = {True: ApprovalResult.APPROVED, False: ApprovalResult.REJECTED, None: "expired"}
        if after.approval != meant[said]:
            yield f"{call_id} is {after.approval}, and the answer was {answer}"


@_rule(AFTER_COMMIT)
def expiry_in_time(books: Books, seen: Observed) -> Contradictions:  # noqa: ARG001
    """An approval expires only once its deadline has passed."""
    deadlines = {each.tool_call_id: each.deadline for each in seen.pending_before}
    for call_id, (_, after) in seen.calls.items():
        if after is None or after.approval is not ApprovalResult.EXPIRED:
            continue
        deadline = deadlines.get(call_id)
        if after.status is ToolCallStatus.REJECTED and deadline is not None:
            early = deadline.timestamp() - seen.now
            if early > 0:
                yield f"{call_id} expired {early:.3f} s early"


@_rule(AFTER_COMMIT)
def questions_are_open(books: Books, seen: Observed) -> Contradictions:  # noqa: ARG001
    """A question is pending exactly as long as its tool call waits and nobody has answered."""
    pending = {each.interrupt_id for each in books.pending}
    open_ = {
        f"{call.turn_id}.{call.tool_call_id}"
        for call in books.calls.values()
        if call.status is ToolCallStatus.PENDING_APPROVAL
    } - books.answered.keys()
    if pending != open_:
        yield f"pending are {sorted(pending)}, open are {sorted(open_)}"


# Messages and turns


@_rule(AFTER_COMMIT)
def contiguous(books: Books, seen: Observed) -> Contradictions:
    """Messages are numbered from 1 without a gap, and never change."""
    for sequence, (before, message) in seen.messages.items():
        if before is not None or message is None:
            yield f"message {sequence} changed"
        elif message.sequence != sequence or sequence <= seen.state_before.message_count:
            yield f"message {message.sequence} stands at {sequence}"
    if len(seen.messages) != books.state.message_count - seen.state_before.message_count:
        yield f"{len(seen.messages)} new messages, counted to {books.state.message_count}"


@_rule(AFTER_COMMIT)
def stored_once(books: Books, seen: Observed) -> Contradictions:
    """No user message is stored twice."""
    for _, message in seen.messages.values():
        text = message.text if message is not None else None
        if text in books.accepted | books.uncertain and books.texts[text or ""] > 1:
            yield f"{text!r} is stored twice"


_NEXT = {
    AgentStatus.WAITING_FOR_USER_MESSAGE: {AgentStatus.RUNNING_MODEL},
    AgentStatus.RUNNING_MODEL: {AgentStatus.RUNNING_TOOLS, AgentStatus.WAITING_FOR_USER_MESSAGE},
    AgentStatus.RUNNING_TOOLS: {AgentStatus.RUNNING_MODEL},
}


@_rule(AFTER_COMMIT)
def turns_in_line(books: Books, seen: Observed) -> Contradictions:
    """A turn begins when none is under way, and everything that is stored belongs to it."""
    before, after = seen.state_before, books.state
    begun = after.turn_number - before.turn_number
    if begun not in (0, 1) or (begun and before.status != "waiting_for_user_message"):
        yield f"turn {after.turn_number} begins while turn {before.turn_number} is {before.status}"
    if after.status is not before.status and after.status not in _NEXT[before.status]:
        yield f"the session went from {before.status} to {after.status}"
    for _, message in seen.messages.values():
        if message is not None and message.turn_id != after.turn_id:
            yield f"message {message.sequence} of {message.turn_id} came in {after.turn_id}"
    for call in books.calls.values():
        if call.turn_id != after.turn_id:
            yield f"{call.tool_call_id} of {call.turn_id} is there in {after.turn_id}"


@_rule(AFTER_COMMIT)
def note_is_left(books: Books, seen: Observed) -> Contradictions:
    """A turn that fails after tool calls leaves a message that names each with its outcome."""
    before, after = seen.state_before, books.state
    has_ended = before.status != after.status == AgentStatus.WAITING_FOR_USER_MESSAGE
    if not has_ended or after.last_turn_error is None or not seen.calls_before:
        return
    notes = [m for _, m in seen.messages.values() if m is not None and m.role is MessageRole.USER]
    text = (notes[0].text or "") if notes else ""
    for call in seen.calls_before.values():
        if f"{call.tool_name} " not in text or f"-> {call.status}" not in text:
            yield f"{after.turn_id} failed, and its note does not tell of {call.tool_call_id}"


_TURN_STEPS = {
    "StartAgentSession": None,
    "AwaitUserMessage": AgentStatus.WAITING_FOR_USER_MESSAGE,
    "RunModel": AgentStatus.RUNNING_MODEL,
    "RecordTurnFailure": AgentStatus.RUNNING_MODEL,
    "ResumeTurn": AgentStatus.RUNNING_TOOLS,
}


@_rule(AFTER_COMMIT)
def one_place(books: Books, seen: Observed) -> Contradictions:
    """A turn is at one Step, the one that its status says, and so is each unfinished call."""
    if seen.header.status != "running":
        return
    at = [each.step for each in books.rows.executions.values() if each.step in _TURN_STEPS]
    if len(at) != 1:
        yield f"the turn is at {at}"
    elif _TURN_STEPS[at[0]] not in (None, books.state.status):
        yield f"the turn is at {at[0]}, and its status is {books.state.status}"
    calls = sorted(
        json.decode(each.input)
        for each in books.rows.executions.values()
        if each.step not in _TURN_STEPS
    )
    unfinished = sorted(key for key, call in books.calls.items() if not call.is_final)
    if calls != unfinished:
        yield f"Steps are there for {calls}, and unfinished are {unfinished}"


@_rule(AFTER_COMMIT)
def usage_adds_up(books: Books, seen: Observed) -> Contradictions:
    """A session's usage is the sum over the model calls that were recorded."""
    for entry in seen.history:
        if entry.event_type is HistoryEvent.EXECUTE_COMPLETED and entry.step_type == "RunModel":
            cost = books.costs.get((entry.step_execution_id, entry.final_attempt))
            if cost is None:
                yield f"{entry.step_execution_id} completed, and no model call returned"
            else:
                books.spent += cost + AgentUsage(model_calls=1)
    if books.usage != books.spent:
        yield f"recorded are {books.usage}, spent were {books.spent}"


# Steps


@_rule(AFTER_COMMIT)
def history_is_complete(books: Books, seen: Observed) -> Contradictions:
    """History lines are numbered without a gap, and name the attempt that was running."""
    for entry in seen.history:
        books.history_length += 1
        if entry.seq != books.history_length:
            yield f"line {entry.seq} stands at {books.history_length}"
    ended = {entry.step_execution_id: entry for entry in seen.history if entry.step_execution_id}
    for execution_id, (before, after) in seen.executions.items():
        if before is None:
            continue
        line = ended.get(execution_id)
        if after is None and line is None:
            yield f"{execution_id} ended, and no line says how"
        is_end = line is not None and line.event_type is not HistoryEvent.CANCELED
        if is_end and (not before.is_running or before.attempt != line.final_attempt):  # type: ignore[union-attr]
            yield f"attempt {line.final_attempt} of {execution_id} was not running"  # type: ignore[union-attr]


_MOST_ATTEMPTS = {"RunModel": 3, "CallTool": 3, "CallSingleAttemptTool": 1}


@_rule(AFTER_COMMIT)
def attempts_are_limited(books: Books, seen: Observed) -> Contradictions:  # noqa: ARG001
    """Attempts count up by one, to the most that the Step's row allows."""
    for before, after in seen.executions.values():
        if after is None or not after.is_running:
            continue
        last = before.attempt if before is not None and before.phase is after.phase else 0
        if after.attempt - last not in (0, 1):
            yield f"attempt {after.attempt} of {after.id} follows {last}"
        if after.attempt > _MOST_ATTEMPTS.get(after.step, after.attempt):
            yield f"attempt {after.attempt} of {after.id}"


@_rule(AFTER_COMMIT)
def timers_are_not_early(books: Books, seen: Observed) -> Contradictions:  # noqa: ARG001
    """A Timer ends a wait only when it is due."""
    for before, after in seen.executions.values():
        if after is None or after.phase is not Phase.EXECUTE or after.wait is None:
            continue
        if before is not None and before.phase is Phase.EXECUTE:
            continue
        conditions = after.wait.conditions
        for position in after.chosen:
            timer = conditions[position]
            if isinstance(timer, TimerWait) and timer.fire_at > after.scheduled_at:
                yield f"a Timer of {after.id} fired {timer.fire_at - after.scheduled_at:g} s early"


@_rule(AFTER_COMMIT)
def closed_is_closed(books: Books, seen: Observed) -> Contradictions:
    """A session that is closed has no Steps, and nothing of it changes."""
    if seen.header_before.status != "running":
        yield f"version {seen.header.version} of a session that was {seen.header_before.status}"
    if seen.header.status != "running" and books.rows.executions:
        yield f"it is {seen.header.status}, and has {list(books.rows.executions)}"


@_rule(AFTER_COMMIT)
def session_goes_on(books: Books, seen: Observed) -> Contradictions:
    """No failure of a model, a tool, a worker or the disk ends a session."""
    if seen.header.status == "failed":
        yield f"{books.flow_id} failed: {seen.header.failure}"


# At rest


@_rule(AT_REST)
def no_message_is_lost(books: Books) -> Contradictions:
    """Every user message that was accepted is stored."""
    if books.rows.header.status == "running":
        for text in sorted(books.accepted):
            if not books.texts[text]:
                yield f"{text!r} was accepted, and is lost"


def _is_final(record: AgentToolCall | None) -> bool:
    return record is not None and record.is_final


BEGUN_ONCE = Invariant(
    "begun_once",
    "A handler with effects begins only when its attempt is durable, and once for each attempt.",
)
RECEIPTS = Invariant(
    "receipts_are_true", "What a client is told is stored, is durable when it is told."
)
COMES_TO_REST = Invariant(
    "comes_to_rest", "Once faults stop, a session waits for its user again, or is closed."
)
SAME_EVERYWHERE = Invariant(
    "same_everywhere", "A worker's state, the durable rows and the replay of all commits are equal."
)
NOTHING_ESCAPES = Invariant(
    "nothing_escapes", "No error leaves a worker or a client but those that they declare."
)

INVARIANTS = (
    *AFTER_COMMIT,
    *AT_CALL,
    *AT_REST,
    BEGUN_ONCE,
    RECEIPTS,
    COMES_TO_REST,
    SAME_EVERYWHERE,
    NOTHING_ESCAPES,
)
"""All of them; the world itself checks those that have no function."""
