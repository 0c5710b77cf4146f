"""Promises of `dex_agents.records`: tolerant reading, usage, statuses and keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents import records
from dex_agents.encoding import decode, encode
from dex_agents.errors import StoredRecordError
from dex_agents.records import (
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)

RECORDS = sorted(
    (
        each
        for each in vars(records).values()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each is not msgspec.Struct
    ),
    key=lambda each: each.__name__,
)

NOW = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
SAMPLES = {
    "sequence": 7,
    "role": "tool",
    "framework_item": {"any": [1, None]},
    "status": "failed",
    "effect": "read",
    "tool_call_id": "call-1",
    "tool_name": "search",
    "arguments": {"q": "x"},
    "requires_approval": False,
    "deferral_order": 3,
    "interrupt_id": "turn-1:call-1",
    "approved": True,
    "text": "hello",
    "type": "text_delta",
    "turn_id": "turn-1",
    "step_execution_id": "RunModel-1",
    "attempt": 2,
}

USAGES = st.builds(AgentUsage, *[st.integers(0, 2**70)] * len(AgentUsage.__struct_fields__))


def minimal(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the stored form of a record of which only the required fields were written."""
    required = [f.name for f in msgspec.structs.fields(record) if f.required]
    return {name: SAMPLES[name] for name in required}


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_missing_fields_take_their_defaults(record):
    """A record that an older version wrote without the newer fields can be read."""
    read = decode(encode(minimal(record)), record)
    for field in msgspec.structs.fields(record):
        if not field.required:
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            assert getattr(read, field.name) == default


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_unknown_fields_are_ignored(record):
    """A record that a newer version wrote with more fields can be read."""
    stored = minimal(record)
    known = decode(encode(stored), record)
    assert decode(encode({"field_of_tomorrow": [1], **stored, "x": None}), record) == known


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_a_missing_required_field_is_a_readable_error(record):
    """A record without what it cannot do without is refused, and the field named."""
    for name in minimal(record):
        stored = minimal(record)
        del stored[name]
        with pytest.raises(StoredRecordError, match=name):
            decode(encode(stored), record)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_records_never_change_and_come_back_equal(record):
    """Records are frozen and survive a round trip."""
    read = decode(encode(minimal(record)), record)
    assert decode(encode(read), record) == read
    with pytest.raises(AttributeError):
        setattr(read, record.__struct_fields__[0], None)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_default_containers_are_not_shared(record):
    """Two records never share a list or dict that one of them could be read through."""
    one, other = (decode(encode(minimal(record)), record) for _ in range(2))
    for name in record.__struct_fields__:
        value = getattr(one, name)
        if isinstance(value, list | dict):
            assert value is not getattr(other, name)


def test_every_public_name_of_the_module_is_there():
    """``__all__`` names every record and nothing that is missing."""
    assert {each.__name__ for each in RECORDS} <= set(records.__all__)
    assert all(hasattr(records, name) for name in records.__all__)


def test_times_are_kept_to_the_microsecond_in_utc():
    """A stored time comes back as the same instant, with its zone."""
    state = AgentState(turn_started_at=NOW)
    assert decode(encode(state), AgentState).turn_started_at == NOW
    assert decode(encode(state), AgentState).turn_started_at.utcoffset() is not None


def test_a_status_that_this_version_does_not_know_is_a_readable_error():
    """An enum's values are closed: another one is refused, not guessed."""
    with pytest.raises(StoredRecordError, match="dancing"):
        decode(b'{"status": "dancing"}', AgentState)


def test_statuses_are_stored_as_plain_strings():
    """An operator reads the status as a word."""
    stored = decode(encode(AgentState(status=AgentStatus.RUNNING_TOOLS)), dict)
    assert stored["status"] == "running_tools"


@pytest.mark.parametrize(("number", "key"), [(1, "000000000001"), (123, "000000000123")])
def test_message_sequence_key_has_12_digits(number, key):
    """A message's key is its sequence in 12 digits."""
    assert message_sequence_key(number) == key


@given(st.integers(1, 10**12 - 1), st.integers(1, 10**12 - 1))
def test_message_keys_sort_as_their_numbers(one, other):
    """Keys in text order are messages in sequence order."""
    assert (message_sequence_key(one) < message_sequence_key(other)) == (one < other)
    assert int(message_sequence_key(one)) == one
    assert len(message_sequence_key(one)) == 12


@given(USAGES, USAGES, USAGES)
def test_adding_usage_is_associative_and_commutative(a, b, c):
    """The order in which usage is added does not matter."""
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a


@given(USAGES, USAGES)
def test_adding_usage_adds_every_field(a, b):
    """Each field of the sum is the sum of that field."""
    for name in AgentUsage.__struct_fields__:
        assert getattr(a + b, name) == getattr(a, name) + getattr(b, name)


@given(USAGES)
def test_no_usage_is_the_zero_of_addition(usage):
    """Adding no usage changes nothing."""
    assert usage + AgentUsage() == usage == AgentUsage() + usage
    assert sum([usage, usage], AgentUsage()) == usage + usage


def test_four_statuses_are_final():
    """Exactly the four results are final."""
    assert [each for each in ToolCallStatus if each.is_final] == [
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.REJECTED,
        ToolCallStatus.OUTCOME_UNKNOWN,
    ]


@pytest.mark.parametrize("status", ToolCallStatus)
def test_a_tool_call_is_final_when_its_status_is(status):
    """A record says the same as its status."""
    call = AgentToolCall("c", "t", None, ToolEffect.READ, False, status, 1)
    assert call.is_final is status.is_final


def test_only_reads_and_idempotent_writes_are_retried():
    """What may not run twice is never retried, and neither is what nobody classified."""
    assert [each for each in ToolEffect if each.is_retried] == [
        ToolEffect.READ,
        ToolEffect.IDEMPOTENT_WRITE,
    ]


@pytest.mark.parametrize(("number", "turn_id"), [(0, ""), (1, "turn-1"), (12, "turn-12")])
def test_a_turn_is_named_after_its_number(number, turn_id):
    """Before the first turn there is no turn ID."""
    assert AgentState(turn_number=number).turn_id == turn_id
