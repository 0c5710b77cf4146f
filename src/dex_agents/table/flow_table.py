"""A flow as a table of rows, which checks itself and draws itself, and knows no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from dex_agents.encoding import require_codec
from dex_agents.errors import FlowDefinitionError, UndeclaredError, UndeclaredStepError
from dex_agents.table.facts import AttemptFacts
from dex_agents.table.persistence import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Loadable,
    PersistenceRow,
    Stream,
)
from dex_agents.table.steps import (
    Decision,
    Movement,
    Rpc,
    RpcResult,
    Step,
    StepContext,
    StepOptions,
    Timer,
    Wait,
)

__all__ = ("FlowTable",)

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_ROWS = (Attribute, AttributeMap, Channel, ChannelMap, Stream)


def _no_facts(_step: str, _context: StepContext, _input: Any) -> AttemptFacts:
    return AttemptFacts()


@dataclass(frozen=True)
class FlowTable:
    """Everything that an engine must know to run a flow.

    Attributes:
        flow_type: Names this kind of flow; letters, digits, ``.``, ``_`` and ``-``.
        steps: The Step rows; the first is the start Step.
        rpcs: The RPC rows.
        persistence: The Attributes, Channels and Streams.
        facts: Describes an attempt to telemetry: ``(step, context, input)``.

    Raises:
        FlowDefinitionError: With everything that is wrong with the rows.
    """

    flow_type: str
    steps: tuple[Step[Any], ...]
    rpcs: tuple[Rpc[Any, Any], ...] = ()
    persistence: tuple[PersistenceRow, ...] = ()
    facts: Callable[[str, StepContext, Any], AttemptFacts] = field(
        default=_no_facts, compare=False, repr=False
    )
    _steps: dict[str, Step[Any]] = field(init=False, compare=False, repr=False)
    _rpcs: dict[str, Rpc[Any, Any]] = field(init=False, compare=False, repr=False)
    _rows: dict[str, PersistenceRow] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steps", {step.name: step for step in self.steps})
        object.__setattr__(self, "_rpcs", {rpc.name: rpc for rpc in self.rpcs})
        object.__setattr__(
            self, "_rows", {getattr(row, "name", ""): row for row in self.persistence}
        )
        if problems := list(_problems(self)):
            raise FlowDefinitionError(self.flow_type, problems)

    @property
    def rows(self) -> Mapping[str, PersistenceRow]:
        """The Attributes, Channels and Streams by name."""
        return self._rows

    @property
    def start_step(self) -> Step[Any]:
        """The Step that a new flow begins with."""
        return self.steps[0]

    def step(self, name: str) -> Step[Any]:
        """Return a Step row by name; ``KeyError`` when there is none."""
        return self._steps[name]

    def rpc(self, name: str) -> Rpc[Any, Any]:
        """Return an RPC row by name; ``KeyError`` when there is none."""
        return self._rpcs[name]

    def has_step(self, name: str) -> bool:
        """Return whether the table has a Step of this name."""
        return name in self._steps

    def declares(self, row: PersistenceRow) -> bool:
        """Return whether a row, or the map that it is an instance of, is in the table."""
        owner = getattr(row, "map", None) or row
        found = self._rows.get(owner.name)
        return found is owner or found == owner

    def require_wait(self, source: Step[Any], wait: Wait) -> None:
        """Raise unless a wait can be stored, and can end.

        Raises:
            UndeclaredError: It waits on a Channel that the table does not declare.
            ValueError: It has no group of conditions, or a group names a condition
                that the wait does not have.
        """
        for condition in wait.conditions:
            if not isinstance(condition, Timer) and not self.declares(condition.channel):
                raise UndeclaredError(source.name, condition.channel.name)
        if not wait.candidates:
            raise ValueError(f"{source.name} waits for no group of conditions; it would never end.")
        positions = range(len(wait.conditions))
        if not all(each in positions for group in wait.candidates for each in group):
            raise ValueError(f"{source.name} waits for a condition that its wait does not have.")

    def require_decision(self, source: Step[Any], decision: Decision) -> None:
        """Raise unless a decision goes on or ends, and names Steps that it may name.

        Raises:
            UndeclaredStepError: It goes where its row may not go, or cancels what there is not.
            ValueError: It decides nothing, or both.
        """
        if not decision.next_steps and decision.close is None:
            raise ValueError(
                f"{source.name} decided nothing; return Decision.dead_end() to end a branch."
            )
        if decision.next_steps and decision.close is not None:
            raise ValueError(f"{source.name} decided both to end its branch and to go on.")
        self._require_targets(source, decision.next_steps)
        self._require_steps(source.name, decision.cancel_steps)
        self._require_steps(source.name, decision.cancel_sibling_steps)

    def require_result(self, source: Rpc[Any, Any], result: RpcResult[Any]) -> None:
        """Raise `UndeclaredStepError` when an RPC names a Step that it may not name."""
        self._require_targets(source, result.next_steps)
        self._require_steps(source.name, result.cancel_steps)

    def _require_targets(
        self, source: Step[Any] | Rpc[Any, Any], movements: tuple[Movement, ...]
    ) -> None:
        for movement in movements:
            if movement.step not in source.next_steps:
                raise UndeclaredStepError(source.name, movement.step)
            options = movement.options
            while options is not None:
                if options.failure_step is not None:
                    route = f"The failure route of {movement.step}"
                    self._require_steps(route, (options.failure_step,))
                options = options.failure_options

    def _require_steps(self, source: str, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._steps:
                raise UndeclaredStepError(source, name)

    def to_mermaid(self) -> str:
        """Return the flow as a Mermaid flowchart: solid for next Steps, dotted for failures."""
        lines = ["flowchart TD", f"    start([start]) --> {self.start_step.name}"]
        lines += [f"    {rpc.name}[/{rpc.name}/]" for rpc in self.rpcs if rpc.next_steps]
        for source in _sources(self):
            lines += [f"    {source.name} --> {target}" for target in source.next_steps]
        for step in self.steps:
            if step.options.failure_step:
                lines.append(f"    {step.name} -. used up .-> {step.options.failure_step}")
        lines += [
            f"    {step.name} --> ended([branch ends])"
            for step in self.steps
            if not step.next_steps
        ]
        return "\n".join(lines) + "\n"


def _sources(table: FlowTable) -> list[Step[Any] | Rpc[Any, Any]]:
    """Return every row that may go to a Step."""
    return [*table.steps, *table.rpcs]


def _problems(table: FlowTable) -> Iterator[str]:
    """Yield everything that is wrong with a table, so that its author mends it in one go."""
    if not table.steps:
        yield "it has no Steps"
        return
    if strangers := [row for row in table.persistence if not isinstance(row, _ROWS)]:
        # Nothing else can be said of a table whose rows are not rows.
        yield from (
            f"{row!r} is not an Attribute, a Channel, a map of them, or a Stream"
            for row in strangers
        )
        return
    yield from _name_problems(table)
    yield from _target_problems(table)
    yield from _load_problems(table)
    yield from _type_problems(table)
    yield from _number_problems(table)


def _name_problems(table: FlowTable) -> Iterator[str]:
    named = [("flow type", table.flow_type)]
    named += [("Step", step.name) for step in table.steps]
    named += [("RPC", rpc.name) for rpc in table.rpcs]
    named += [(type(row).__name__, row.name) for row in table.persistence]
    for kind, name in named:
        allowed = _NAME_CHARACTERS if kind != "Stream" else _NAME_CHARACTERS | {"/"}
        if not name or not set(name) <= allowed:
            yield f"{kind} {name!r} is not a name: use letters, digits, '.', '_' and '-'"
    for kinds, names in (
        ("Steps", [step.name for step in table.steps]),
        ("RPCs", [rpc.name for rpc in table.rpcs]),
        ("Attributes, Channels or Streams", [row.name for row in table.persistence]),
    ):
        yield from (
            f"{count} {kinds} are called {name}"
            for name, count in Counter(names).items()
            if count > 1
        )
    for row in table.persistence:
        if getattr(row, "map", None) is not None:
            yield f"{row.name} is one instance; declare its map {row.name.split('/')[0]}"


def _target_problems(table: FlowTable) -> Iterator[str]:
    known = {step.name for step in table.steps}
    for source in _sources(table):
        yield from (
            f"{source.name} may go to {target}, which is no Step of the table"
            for target in source.next_steps
            if target not in known
        )
    for step in table.steps:
        failure_step = step.options.failure_step
        if failure_step is not None and failure_step not in known:
            yield f"{step.name} fails to {failure_step}, which is no Step of the table"
        elif failure_step is not None and table.step(failure_step).input != step.input:
            yield f"{step.name} fails to {failure_step}, which takes another input"
        yield from (
            f"the failure route of {step.name} fails to {name}, which is no Step of the table"
            for name in _further_routes(step.options)
            if name not in known
        )
    yield from (
        f"the failure route of {step.name} leads round in a circle"
        for step in table.steps
        if _comes_back(table, step.options)
    )
    yield from (
        f"{name} can never be reached from {table.start_step.name} or an RPC"
        for name in sorted(known - _reachable(table))
    )


def _further_routes(options: StepOptions) -> Iterator[str]:
    """Yield where the failure routes of a failure route lead, by its own options."""
    route = options.failure_options
    while route is not None:
        if route.failure_step is not None:
            yield route.failure_step
        route = route.failure_options


def _comes_back(table: FlowTable, start: StepOptions) -> bool:
    """Return whether failure routes lead back to where they began, so that they never end."""
    seen: list[StepOptions] = []
    options = start
    while options.failure_step is not None and table.has_step(options.failure_step):
        if any(options is each for each in seen):
            return options is start
        seen.append(options)
        options = options.failure_options or table.step(options.failure_step).options
    return False


def _reachable(table: FlowTable) -> set[str]:
    reached: set[str] = set()
    frontier = [table.start_step.name]
    frontier += [target for rpc in table.rpcs for target in rpc.next_steps]
    while frontier:
        name = frontier.pop()
        if name in reached or not table.has_step(name):
            continue
        reached.add(name)
        step = table.step(name)
        frontier += step.next_steps
        if step.options.failure_step:
            frontier.append(step.options.failure_step)
        frontier += _further_routes(step.options)
    return reached


def _load_problems(table: FlowTable) -> Iterator[str]:
    for name, options in _all_options(table):
        for row in (*options.loads, *options.locks):
            if not table.declares(row):
                yield f"{name} loads or locks {row.name}, which the table does not declare"
        yield from _useless_loads(name, options.loads)
    for rpc in table.rpcs:
        for row in (*rpc.loads, *rpc.locks):
            if not table.declares(row):
                yield f"{rpc.name} loads or locks {row.name}, which the table does not declare"
        yield from _useless_loads(rpc.name, rpc.loads)
        if rpc.is_read_only and (rpc.locks or rpc.next_steps):
            yield f"{rpc.name} is read-only, so it can neither lock nor go to a Step"


def _useless_loads(name: str, loads: tuple[Loadable, ...]) -> Iterator[str]:
    for row in loads:
        if isinstance(row, Attribute) and row.map is None:
            yield f"{name} loads {row.name}, but plain Attributes are always loaded"


def _all_options(table: FlowTable) -> Iterator[tuple[str, StepOptions]]:
    for step in table.steps:
        yield step.name, step.options
        route = step.options.failure_options
        while route is not None:
            yield f"the failure route of {step.name}", route
            route = route.failure_options


def _type_problems(table: FlowTable) -> Iterator[str]:
    typed: list[tuple[str, Any]] = [(step.name, step.input) for step in table.steps]
    typed += [(rpc.name, tp) for rpc in table.rpcs for tp in (rpc.input, rpc.output)]
    typed += [(row.name, row.type) for row in table.persistence]
    for name, tp in typed:
        try:
            require_codec(tp)
        except (TypeError, NameError) as error:
            yield f"{name} has type {getattr(tp, '__name__', tp)}, which cannot be encoded: {error}"
    for row in table.persistence:
        if row.type is NoneType:
            yield f"{row.name} can only hold None, which means that it has no value"


def _number_problems(table: FlowTable) -> Iterator[str]:
    for name, options in _all_options(table):
        times = (options.execute_timeout, options.wait_for_timeout, options.heartbeat_timeout)
        if not all(each > 0 for each in times):  # NaN is not
            yield f"{name} has a timeout that is not above 0 seconds"
        retry = options.retry
        if retry.max_attempts < 0 or not retry.coefficient >= 1:
            yield f"{name} retries with max_attempts below 0 or a coefficient below 1"
        seconds = (retry.initial_seconds, retry.max_seconds, retry.total_seconds)
        if not all(each >= 0 for each in seconds):
            yield f"{name} retries with negative seconds"
    for row in table.persistence:
        if isinstance(row, Stream) and row.capacity_bytes <= 0:
            yield f"Stream {row.name} has a capacity that is not above 0 bytes"
