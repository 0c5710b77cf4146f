"""What the RPCs of a session return and store, where no later reader would notice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dex_agents.records import (
    AgentInterrupt,
    AgentInterruptResolution,
    AgentUserMessage,
    ResolveInterruptRequest,
)
from dex_agents.session.persistence import (
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    QUEUED_USER_MESSAGES,
)
from dex_agents.session.rpcs import resolve_interrupt, send_user_message

CARRIER = {"traceparent": "00-1-2-01"}
DEADLINE = datetime(2030, 1, 1, tzinfo=UTC)


def interrupt(name):
    return AgentInterrupt(name, "c", "pay", {}, "turn-1", DEADLINE)


class Call:
    """An RPC's context with two pending interrupts."""

    def __init__(self, now):
        self.time = now
        self.pending = [interrupt("a"), interrupt("b")]
        self.published = []

    def now(self):
        return self.time

    def get(self, attribute):
        assert attribute is PENDING_INTERRUPTS
        return self.pending

    def set(self, attribute, value):
        assert attribute is PENDING_INTERRUPTS
        self.pending = value

    def publish(self, channel, message):
        self.published.append((channel.name, message))


@pytest.mark.parametrize(("approved", "kept"), [(True, None), (False, "No.")])
def test_an_answer_is_stored_with_its_senders_trace(approved, kept):
    """Only a rejection keeps its message; the other interrupt stays pending."""
    context = Call(DEADLINE.timestamp() - 0.001)
    request = ResolveInterruptRequest("a", approved, "No.", CARRIER)
    assert resolve_interrupt(context, request).output is True
    stored = AgentInterruptResolution("a", approved, kept, CARRIER)
    assert context.published == [(INTERRUPT_RESOLUTIONS["a"].name, stored)]
    assert context.pending == [interrupt("b")]


@pytest.mark.parametrize(("name", "late"), [("c", -1.0), ("a", 0.0), ("a", 1.0)])
def test_an_answer_to_nothing_or_too_late_is_told_false(name, late):
    """It is False itself, which is what the RPC declares, and nothing is stored."""
    context = Call(DEADLINE.timestamp() + late)
    assert resolve_interrupt(context, ResolveInterruptRequest(name, True)).output is False
    assert (context.published, len(context.pending)) == ([], 2)


@pytest.mark.parametrize(("text", "is_queued"), [("Hi", True), (" \n", False)])
def test_a_message_is_queued_with_its_senders_trace_unless_it_is_blank(text, is_queued):
    """The RPC says which, as True or False."""
    context = Call(0.0)
    message = AgentUserMessage(text, CARRIER)
    assert send_user_message(context, message).output is is_queued
    assert context.published == [(QUEUED_USER_MESSAGES.name, message)] * is_queued
