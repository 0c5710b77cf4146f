"""Approvals: asked, answered, expired, and never answered twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex_agents import (
    AgentSessionClient,
    AgentStatus,
    AgentToolCall,
    AgentTurnContext,
    ApprovalResult,
    DeferredToolExecution,
    ToolCallStatus,
    ToolPolicy,
)
from dex_agents.testing import ScriptedRunner, ToolRequest
from tests.session.engine import (
    ASK,
    READ,
    Engine,
    Gate,
    call_of,
    events_of,
    payloads,
    step_history,
    texts,
)

THREE_DAYS = timedelta(days=3)


class Shop(ScriptedRunner):
    """Asks to pay, once for each amount, and keeps what was paid and what came back."""

    def __init__(self, *amounts: int, also: tuple[ToolRequest, ...] = ()) -> None:
        self.paid: list[DeferredToolExecution] = []
        self.records: dict[str, AgentToolCall] = {}
        self.requests = [*(ToolRequest("pay", {"amount": each}) for each in amounts), *also]
        super().__init__(self._respond, {"pay": self._pay, "look": lambda _: "seen"})

    def _respond(self, turn: AgentTurnContext) -> Any:
        if not turn.tool_calls:
            return self.requests
        self.records = dict(turn.tool_calls)
        return f"Done {turn.turn_id}."

    def _pay(self, call: DeferredToolExecution) -> str:
        self.paid.append(call)
        return f"paid {call.tool_call.arguments['amount']}"


async def _ask(engine: Engine, shop: Shop, **options: Any) -> AgentSessionClient:
    options = {"tool_policies": {"pay": ASK, "look": READ}, **options}
    sessions = await engine.serve(shop, **options)
    await sessions.start_session("s", "Go")
    await engine.settle()
    return sessions


async def _pending(sessions: AgentSessionClient) -> list[str]:
    snapshot = await sessions.get_agent_snapshot("s")
    return [each.interrupt_id for each in snapshot.pending_interrupts]


# Asking


async def test_a_call_that_needs_approval_waits_for_it(engine: Engine):
    """For ever when there is no deadline; the interrupt says what is asked."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    await engine.advance(timedelta(days=365))
    snapshot = await sessions.get_agent_snapshot("s")
    (interrupt,) = snapshot.pending_interrupts
    assert (interrupt.tool_call_id, interrupt.tool_name) == ("call-1", "pay")
    assert (interrupt.arguments, interrupt.turn_id) == ({"amount": 3}, "turn-1")
    assert interrupt.deadline is None
    assert call_of(snapshot, "call-1").status is ToolCallStatus.PENDING_APPROVAL
    assert snapshot.state.status is AgentStatus.RUNNING_TOOLS
    assert shop.paid == []


async def test_a_deadline_counts_from_the_question(engine: Engine):
    """In UTC, by the worker's clock."""
    asked = engine.clock.now()
    sessions = await _ask(engine, Shop(3), interrupt_deadline=THREE_DAYS)
    (interrupt,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
    assert interrupt.deadline == datetime.fromtimestamp(asked, UTC) + THREE_DAYS


async def test_a_policy_can_do_without_approval(engine: Engine):
    """``requires_approval=False`` runs a write at once."""
    shop = Shop(3)
    policy = ToolPolicy(ASK.effect, requires_approval=False)
    sessions = await _ask(engine, shop, tool_policies={"pay": policy})
    assert len(shop.paid) == 1
    assert await _pending(sessions) == []


async def test_a_policy_can_ask_for_a_read(engine: Engine):
    """``requires_approval=True`` holds a read back, which then runs as CallTool."""
    shop = Shop(also=(ToolRequest("look"),))
    policy = ToolPolicy(READ.effect, requires_approval=True)
    sessions = await _ask(engine, shop, tool_policies={"look": policy})
    (interrupt_id,) = await _pending(sessions)
    await sessions.resolve_interrupt("s", interrupt_id, approved=True)
    await engine.settle()
    assert "CallTool-1" in await step_history(sessions)
    assert shop.records["call-1"].output == "seen"


# Answers


async def test_an_approved_call_runs_once(engine: Engine):
    """Its record says that it was approved."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    assert await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    (call,) = shop.paid
    assert call.tool_call.status is ToolCallStatus.APPROVED
    record = shop.records["call-1"]
    assert (record.status, record.output) == (ToolCallStatus.SUCCEEDED, "paid 3")
    assert (record.approval, record.rejection_message) == (ApprovalResult.APPROVED, None)
    assert await _pending(sessions) == []
    assert await step_history(sessions) == [
        "StartAgentSession-1",
        "RunModel-1",
        "AwaitToolApproval-1",
        "CallSingleAttemptTool-1",
        "ResumeTurn-1",
        "RunModel-2",
    ]


@pytest.mark.parametrize("message", ["Too much.", None, ""])
async def test_a_rejected_call_never_runs(engine: Engine, message: str | None):
    """The model reads the message, or that it was rejected."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    assert await sessions.resolve_interrupt(
        "s", "turn-1.call-1", approved=False, rejection_message=message
    )
    await engine.settle()
    record = shop.records["call-1"]
    assert shop.paid == []
    assert (record.status, record.approval) == ("rejected", ApprovalResult.REJECTED)
    assert record.rejection_message == message
    told = texts(await sessions.get_agent_snapshot("s"))[2]
    assert told == (message or "The tool call was rejected. The tool was not run.")


async def test_a_message_with_an_approval_is_dropped(engine: Engine):
    """There is nothing to reject."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    await sessions.resolve_interrupt(
        "s", "turn-1.call-1", approved=True, rejection_message="ignored"
    )
    await engine.settle()
    assert shop.records["call-1"].rejection_message is None
    (payload,) = payloads(await events_of(sessions), "interrupt_resolved")
    assert payload["rejection_message"] is None


async def test_an_unknown_interrupt_is_not_answered(engine: Engine):
    """False, and nothing changes."""
    sessions = await _ask(engine, Shop(3))
    for name in ("call-1", "turn-2.call-1", "", "turn-1.call-9"):
        assert not await sessions.resolve_interrupt("s", name, approved=True)
    assert await _pending(sessions) == ["turn-1.call-1"]


@pytest.mark.parametrize("second", [True, False])
async def test_only_the_first_answer_counts(engine: Engine, second: bool):
    """The second is told False, even before the first was applied."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    assert await sessions.resolve_interrupt("s", "turn-1.call-1", approved=not second)
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=second)
    await engine.settle()
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=second)
    assert len(shop.paid) == (not second)


async def test_an_answer_for_an_earlier_turn_never_reaches_a_later_one(engine: Engine):
    """Both turns ask under the same tool call ID."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    await sessions.resolve_interrupt("s", "turn-1.call-1", approved=False)
    await sessions.send_user_message("s", "Again")
    await engine.settle()
    assert await _pending(sessions) == ["turn-2.call-1"]
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    assert shop.paid == []


@pytest.mark.local("on Dex a call needs a worker")
async def test_an_answer_is_kept_while_no_worker_runs(engine: Engine):
    """It is durable when the call returns."""
    shop = Shop(3)
    sessions = await _ask(engine, shop)
    await engine.retire()
    assert await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    assert await _pending(sessions) == []
    await engine.settle()
    await engine.serve(shop, tool_policies={"pay": ASK})
    await engine.settle()
    assert len(shop.paid) == 1


# Several


async def test_equal_calls_are_answered_apart_and_in_any_order(engine: Engine):
    """Three payments of the same amount: the answers go by interrupt, not by arguments."""
    shop = Shop(3, 3, 3)
    sessions = await _ask(engine, shop)
    assert await _pending(sessions) == [f"turn-1.call-{n}" for n in (1, 2, 3)]
    assert await sessions.resolve_interrupt("s", "turn-1.call-3", approved=True)
    await engine.settle()
    assert await sessions.resolve_interrupt(
        "s", "turn-1.call-1", approved=False, rejection_message="Not this one."
    )
    await engine.settle()
    snapshot = await sessions.get_agent_snapshot("s")
    assert [each.status for each in snapshot.tool_calls] == [
        "rejected",
        "pending_approval",
        "succeeded",
    ]
    assert await sessions.resolve_interrupt("s", "turn-1.call-2", approved=True)
    await engine.settle()
    assert [call.tool_call.tool_call_id for call in shop.paid] == ["call-3", "call-2"]
    assert [(r.status, r.output, r.rejection_message) for r in shop.records.values()] == [
        ("rejected", None, "Not this one."),
        ("succeeded", "paid 3", None),
        ("succeeded", "paid 3", None),
    ]


async def test_answers_at_the_same_moment_all_count(engine: Engine):
    """None of them overwrites the list that another one changed."""
    shop = Shop(*range(20))
    sessions = await _ask(engine, shop)
    ids = await _pending(sessions)
    for interrupt_id in ids:
        assert await sessions.resolve_interrupt("s", interrupt_id, approved=True)
    await engine.settle()
    assert sorted(c.tool_call.arguments["amount"] for c in shop.paid) == list(range(20))
    assert await _pending(sessions) == []


async def test_reads_run_while_an_approval_waits(engine: Engine):
    """The turn goes on only when both have results."""
    shop = Shop(3, also=(ToolRequest("look"),))
    sessions = await _ask(engine, shop)
    snapshot = await sessions.get_agent_snapshot("s")
    assert [each.status for each in snapshot.tool_calls] == ["pending_approval", "succeeded"]
    assert texts(snapshot) == ["Go"]
    await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    assert [r.output for r in shop.records.values()] == ["paid 3", "seen"]


# Deadlines


async def test_an_approval_expires_after_three_days(engine: Engine):
    """Not a second earlier; nobody refused it, and the model is told so."""
    shop = Shop(3)
    sessions = await _ask(engine, shop, interrupt_deadline=THREE_DAYS)
    await engine.advance(THREE_DAYS - timedelta(seconds=1))
    assert await _pending(sessions) == ["turn-1.call-1"]
    await engine.advance(1)
    record = shop.records["call-1"]
    assert (record.status, record.approval) == ("rejected", ApprovalResult.EXPIRED)
    assert "Nobody answered" in texts(await sessions.get_agent_snapshot("s"))[2]
    assert (shop.paid, await _pending(sessions)) == ([], [])


async def test_an_answer_after_the_deadline_is_too_late(engine: Engine):
    """False; the session stays as it was."""
    shop = Shop(3)
    sessions = await _ask(engine, shop, interrupt_deadline=THREE_DAYS)
    await engine.advance(THREE_DAYS + timedelta(hours=1))
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.settle()
    assert shop.paid == []


async def test_an_answer_just_before_the_deadline_counts(engine: Engine):
    """A thousandth of a second is enough, and the Timer changes nothing any more."""
    shop = Shop(3)
    sessions = await _ask(engine, shop, interrupt_deadline=timedelta(hours=1))
    await engine.advance(3600 - 0.001)
    assert await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.advance(60)
    assert len(shop.paid) == 1
    assert shop.records["call-1"].approval is ApprovalResult.APPROVED


@pytest.mark.local("on Dex a call needs a worker")
async def test_an_answer_at_the_deadline_is_too_late_though_no_worker_has_noticed(engine: Engine):
    """The clock decides, not whoever looks first."""
    shop = Shop(3)
    sessions = await _ask(engine, shop, interrupt_deadline=timedelta(hours=1))
    await engine.retire()
    await engine.advance(3600)
    assert await _pending(sessions) == ["turn-1.call-1"]
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.serve(shop, tool_policies={"pay": ASK})
    await engine.settle()
    assert shop.records["call-1"].approval is ApprovalResult.EXPIRED


async def test_a_deadline_between_seconds_expires_at_the_next_whole_one(engine: Engine):
    """Timers count whole seconds on some engines; an answer is too late from the deadline on."""
    shop = Shop(3)
    sessions = await _ask(engine, shop, interrupt_deadline=timedelta(seconds=1.5))
    await engine.advance(1.75)
    assert await _pending(sessions) == ["turn-1.call-1"]
    assert not await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    await engine.advance(0.25)
    assert shop.records["call-1"].approval is ApprovalResult.EXPIRED


async def test_a_deadline_of_nothing_expires_at_once(engine: Engine):
    """It is not the same as no deadline."""
    shop = Shop(3)
    await _ask(engine, shop, interrupt_deadline=timedelta(0))
    await engine.advance(1)
    assert shop.records["call-1"].approval is ApprovalResult.EXPIRED


@pytest.mark.local("signs of life come in real time on Dex")
async def test_an_approval_expires_in_time_while_another_call_runs(engine: Engine):
    """A slow tool of the same response does not keep the Timer from firing."""
    gate = Gate()

    async def look(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return "seen"

    shop = Shop(3, also=(ToolRequest("look"),))
    shop._tools["look"] = look
    sessions = await _ask(engine, shop, interrupt_deadline=timedelta(hours=1))
    assert gate.reached.is_set()
    await engine.advance(3601)
    record = call_of(await sessions.get_agent_snapshot("s"), "call-1")
    assert record.approval is ApprovalResult.EXPIRED
    gate.open.set()
    await engine.settle()


@pytest.mark.local("on Dex a call needs a worker")
async def test_an_answer_before_the_step_waits_is_found_by_it(engine: Engine):
    """With one slot, the answer comes while another tool keeps the approval from beginning."""
    gate = Gate()

    async def look(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return "seen"

    shop = Shop(also=(ToolRequest("look"), ToolRequest("pay", {"amount": 5})))
    shop._tools["look"] = look
    sessions = await _ask(engine, shop, slots=1, interrupt_deadline=THREE_DAYS)
    assert gate.reached.is_set()
    assert await sessions.resolve_interrupt("s", "turn-1.call-2", approved=True)
    gate.open.set()
    await engine.settle()
    assert [call.tool_call.arguments["amount"] for call in shop.paid] == [5]


@pytest.mark.local("it takes all of a worker's slots, which calls on Dex need too")
async def test_an_answer_that_meets_the_fired_timer_wins(engine: Engine):
    """The Timer has fired but the Step finds no slot; a clock that lags lets the answer in."""
    gate = Gate()

    async def look(_: DeferredToolExecution) -> str:
        await gate.pass_through()
        return "seen"

    shop = Shop(3, also=(ToolRequest("look"),))
    shop._tools["look"] = look
    sessions = await _ask(engine, shop, slots=1, interrupt_deadline=timedelta(hours=1))
    assert gate.reached.is_set()
    await engine.advance(3600)
    engine.clock._now -= 1
    assert await sessions.resolve_interrupt("s", "turn-1.call-1", approved=True)
    gate.open.set()
    await engine.advance(1)
    assert len(shop.paid) == 1
    assert (await step_history(sessions)).count("AwaitToolApproval-2") == 1


async def test_each_approval_has_its_own_fate_at_the_deadline(engine: Engine):
    """One is approved, one rejected, one expires; the model hears of all three at once."""
    shop = Shop(1, 2, 3)
    sessions = await _ask(engine, shop, interrupt_deadline=timedelta(hours=1))
    await engine.advance(1800)
    await sessions.resolve_interrupt("s", "turn-1.call-2", approved=True)
    await sessions.resolve_interrupt("s", "turn-1.call-3", approved=False)
    await engine.advance(1800)
    assert [r.approval for r in shop.records.values()] == ["expired", "approved", "rejected"]


@pytest.mark.pulling("a listening worker that is not there costs an attempt")
async def test_a_deadline_that_passed_without_a_worker_expires_with_the_next(engine: Engine):
    """Timers fire at once after downtime."""
    shop = Shop(3)
    await _ask(engine, shop, interrupt_deadline=timedelta(hours=1))
    await engine.retire()
    await engine.advance(timedelta(days=7))
    await engine.serve(shop, tool_policies={"pay": ASK})
    await engine.settle()
    assert shop.records["call-1"].approval is ApprovalResult.EXPIRED
