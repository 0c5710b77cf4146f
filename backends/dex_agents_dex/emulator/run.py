"""One run of a flow: the machine's state, and what the wire keeps beside it."""

from __future__ import annotations

from typing import Any

from dex.dexpb import dex_pb2 as pb
from msgspec import Struct, field

from dex_agents.executor import Alarm, ChangeSignal, Lineage
from dex_agents.machine import Changes, FlowState
from dex_agents_dex.emulator.envelope import unpack, unwrap

__all__ = ("Note", "Run", "RunRecord")


class RunRecord(Struct):
    """What there is once in a run, beside the machine's header; messages are packed.

    Attributes:
        config: A `pb.FlowConfig`.
        request: The `pb.StartFlowRequest`.
        timeout_at: When the flow's own timeout is over.
        result: A `pb.FlowResult` without the outputs, once the run is closed.
        sticky: The pull worker that served the run last.
    """

    flow_id: str
    run_id: str
    request_id: str
    flow_type: str
    config: str
    request: str
    timeout_at: float | None = None
    result: str = ""
    sticky: str = ""


class Note(Struct):
    """What the wire keeps of one execution; messages are packed, and empty where there is none.

    Attributes:
        condition: The `pb.WaitingCondition` that ``wait_for`` returned.
        local_values: Its locals, each a `pb.Value`.
        heartbeat: The last heartbeat's `pb.Value`.
    """

    condition: str = ""
    local_values: dict[str, str] = field(default_factory=dict)
    heartbeat: str = ""


class Run:
    """A run in memory.

    Attributes:
        attributes: Values by physical name.
        notes: By execution.
        history: Every event of the wire's history.
        ended: The executions that completed or were cancelled.
        snapshots: The request of a call under way, which its retries repeat.
        changed: Notified after every transition.
        lineage: What its stored transitions follow.
    """

    def __init__(self, record: RunRecord, state: FlowState) -> None:
        self.record = record
        self.state = state
        self.attributes: dict[str, pb.Value] = {}
        self.notes: dict[str, Note] = {}
        self.history: list[pb.FlowHistoryEvent] = []
        self.ended: set[str] = set()
        self.snapshots: dict[str, Any] = {}
        self.changed = ChangeSignal()
        self.lineage = Lineage()
        self.alarm: Alarm | None = None

    @property
    def is_running(self) -> bool:
        """Whether the run is not closed."""
        return not self.record.result

    @property
    def target(self) -> pb.WorkerTarget:
        """Where the run's worker is."""
        return unpack(self.record.config, pb.FlowConfig).worker_target

    @property
    def status(self) -> Any:
        """The wire's status."""
        return pb.FLOW_STATUS_RUNNING if self.is_running else self.result().flow_status

    def result(self) -> pb.FlowResult:
        """Return how the run stands, with every output so far."""
        outputs = [unwrap(raw, pb.StepCompletionOutput) for raw in self.state.header.outputs]
        if self.is_running:
            return pb.FlowResult(flow_status=pb.FLOW_STATUS_RUNNING, results=outputs)
        result = unpack(self.record.result, pb.FlowResult)
        result.results.extend(outputs)
        return result

    def note(self, execution_id: str) -> Note:
        """Return the note of an execution."""
        return self.notes.setdefault(execution_id, Note())

    def follow(self, changes: Changes) -> None:
        """Take over what a transition wrote and ended."""
        for name, raw in changes.attributes.items():
            if raw is None:
                self.attributes.pop(name, None)
            else:
                self.attributes[name] = unwrap(raw, pb.Value)
        for execution_id, execution in changes.executions.items():
            if execution is None:
                self.ended.add(execution_id)
                self.notes.pop(execution_id, None)
                self.snapshots.pop(execution_id, None)
