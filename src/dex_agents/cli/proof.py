"""What a demo has proven, worked out from what it left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dex_agents.backend import StepHistoryEntry
from dex_agents.cli.observatory import MOVE, NOTIFY, READS, Observatory
from dex_agents.cli.render import counted
from dex_agents.cli.steps import StepRow, describe_steps
from dex_agents.records import AgentEvent, AgentMessage, AgentSnapshot, MessageRole

__all__ = ("Evidence", "Finding")


class Finding(Struct, frozen=True):
    """One promise, and whether it was kept."""

    is_kept: bool
    sentence: str


class Evidence(Struct, frozen=True):
    """Everything that a demo left behind.

    Attributes:
        killed_pid: The worker that was killed.
        exit_status: How it ended, as the system says.
        is_approved: What the person answered.
    """

    killed_pid: int
    exit_status: int | None
    is_approved: bool
    observatory: Observatory
    history: Sequence[StepHistoryEntry]
    events: Sequence[AgentEvent]
    snapshot: AgentSnapshot

    @property
    def steps(self) -> list[StepRow]:
        """What each Step did."""
        return describe_steps(self.history, self.events)

    @property
    def answer(self) -> AgentMessage | None:
        """The model's answer, if the turn has one."""
        last = self.snapshot.messages[-1] if self.snapshot.messages else None
        return last if last is not None and last.role is MessageRole.ASSISTANT else None

    def findings(self) -> Iterator[Finding]:
        """Yield what was promised, and whether the data says so."""
        yield self._death()
        yield self._reads()
        yield self._cut_off_write()
        yield self._approved_write()
        yield self._model_calls()
        yield self._transcript()

    def _death(self) -> Finding:
        return Finding(
            self.exit_status == -signal.SIGKILL,
            f"Worker {self.killed_pid} {_end(self.exit_status)}; another took its session over.",
        )

    def _reads(self) -> Finding:
        counts = [self.observatory.calls.count(name) for name in READS]
        rows = [row for row in self.steps if row.what in READS]
        together = len(rows) == len(READS) and (
            max(row.begun_at for row in rows) < min(row.ended_at for row in rows)
        )
        how = "at the same time" if together else "one behind the other"
        return Finding(
            together and counts == [1] * len(READS),
            f"{len(rows)} reads ran {how} and were called {_times(sum(counts))} in all: what had a "
            "result was not called again after the kill.",
        )

    def _cut_off_write(self) -> Finding:
        calls = self.observatory.calls.entries(MOVE)
        keys = {call["key"] for call in calls}
        effects = self.observatory.effects.count(MOVE)
        workers = len({call["pid"] for call in calls})
        return Finding(
            (len(calls), workers, len(keys), effects) == (2, 2, 1, 1),
            f"{MOVE}, cut off in the middle, was called {_times(len(calls))} by "
            f"{counted(workers, 'worker')} with {counted(len(keys), 'idempotency key')}, and took "
            f"effect {_times(effects)}.",
        )

    def _approved_write(self) -> Finding:
        calls, effects = (
            self.observatory.calls.count(NOTIFY),
            self.observatory.effects.count(NOTIFY),
        )
        wanted = 1 if self.is_approved else 0
        answer = "approved," if self.is_approved else "rejected"
        ran = f"ran {_times(calls)} and took effect {_times(effects)}" if calls else "and never ran"
        return Finding(
            (calls, effects) == (wanted, wanted),
            f"{NOTIFY} waited for approval, was {answer} {ran}.",
        )

    def _model_calls(self) -> Finding:
        rows = [row for row in self.steps if row.step_execution_id.startswith("RunModel-")]
        attempts = sum(row.attempts for row in rows)
        answers = self.snapshot.usage.model_calls
        return Finding(
            bool(rows) and attempts == len(rows) == answers,
            f"The model answered {_times(answers)} in {counted(attempts, 'attempt')}: the kill "
            "cost no model call.",
        )

    def _transcript(self) -> Finding:
        state = self.snapshot.state
        turns = state.turn_number if state else 0
        numbers = [message.sequence for message in self.snapshot.messages]
        is_whole = numbers == list(range(1, len(numbers) + 1)) and self.answer is not None
        return Finding(
            is_whole and turns == 1 and state is not None and state.last_turn_error is None,
            f"The session stored {counted(len(numbers), 'message')} without a gap in "
            f"{counted(turns, 'turn')}, from your message to the answer.",
        )


def _end(exit_status: int | None) -> str:
    if exit_status is not None and exit_status < 0:
        return f"was ended by {signal.Signals(-exit_status).name}"
    return f"ended with exit status {exit_status}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
