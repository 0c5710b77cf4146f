"""Every span, attribute, metric and log event that telemetry emits, with what it means.

``gen_ai.*`` follows the OpenTelemetry GenAI conventions, standalone release
0.1.0; all of them are in development there, so a minor release of ours may
rename them. Names of our own begin with ``dex_agents``. A rename is a change of
this file, and ``docs/signals.md`` is made from it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ("Instrument", "LogEvent", "Metric", "SpanName")

INSTRUMENTATION = "dex_agents"
CONVENTIONS = "GenAI semantic conventions 0.1.0"


# Attributes

SESSION_ID = "dex_agents.session.id"
TURN_ID = "dex_agents.turn.id"
TOOL_CALL_ID = "dex_agents.tool_call.id"
STEP_ID = "dex_agents.step.id"
STEP_KIND = "dex_agents.step.kind"
STEP_PHASE = "dex_agents.step.phase"
STEP_ATTEMPT = "dex_agents.step.attempt"
STEP_OUTCOME = "dex_agents.step.outcome"
WORKER_ID = "dex_agents.worker.id"
BACKEND_NAME = "dex_agents.backend.name"
TURN_OUTCOME = "dex_agents.turn.outcome"
RESUMED_FROM = "dex_agents.resumed_from"
TOOL_EFFECT = "dex_agents.tool.effect"
TOOL_STATUS = "dex_agents.tool.status"
APPROVAL_RESULT = "dex_agents.approval.result"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
OPERATION_NAME = "gen_ai.operation.name"
CONVERSATION_ID = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_MODALITY = "gen_ai.token.modality"  # noqa: S105 - of model tokens
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
GEN_AI_TOOL_CALL_ID = "gen_ai.tool.call.id"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

ATTRIBUTES = {
    SESSION_ID: "The session.",
    TURN_ID: "`turn-<n>`.",
    TOOL_CALL_ID: "The tool call that a Step is about.",
    STEP_ID: "The Step execution, `<Step>-<n>`, the same for all its attempts.",
    STEP_KIND: "The Step, such as `CallTool`.",
    STEP_PHASE: "`wait_for` or `execute`.",
    STEP_ATTEMPT: "Which attempt, from 1.",
    STEP_OUTCOME: "`completed`, `suspended` (it waits now), `retrying`, `failed`, or `canceled`.",
    WORKER_ID: "The worker that ran the attempt. Not told on Dex.",
    BACKEND_NAME: "`memory`, `sqlite`, `dex`.",
    TURN_OUTCOME: "How a stretch of a turn ended: `completed`, `failed`, or `suspended`.",
    RESUMED_FROM: "What scheduled the first Step of a stretch that goes on with a turn.",
    TOOL_EFFECT: "`read`, `idempotent_write`, `non_idempotent_write`, `unclassified`.",
    TOOL_STATUS: "How a tool call ended: `succeeded`, `failed`, `rejected`, `outcome_unknown`.",
    APPROVAL_RESULT: "`approved`, `rejected`, or `expired`.",
    ERROR_TYPE: "The qualified class name of an error; the same on span, metric and log.",
    EXCEPTION_TYPE: "As `error.type`.",
    EXCEPTION_MESSAGE: "Only with content capture: a message may quote content.",
    EXCEPTION_STACKTRACE: "Where it and its causes were raised; no messages, no locals.",
    OPERATION_NAME: "`invoke_agent`, `chat`, or `execute_tool`.",
    CONVERSATION_ID: "The session.",
    AGENT_NAME: "The flow type.",
    PROVIDER_NAME: "As the runner describes its model call, else `unknown`.",
    REQUEST_MODEL: "As the runner describes its model call.",
    RESPONSE_MODEL: "As the runner describes its model call.",
    RESPONSE_ID: "As the runner describes its model call.",
    FINISH_REASONS: "As the runner describes its model call.",
    INPUT_TOKENS: "Of this model call, cached ones included.",
    OUTPUT_TOKENS: "Of this model call, reasoning included.",
    CACHE_READ_TOKENS: "Of this model call, if not 0.",
    CACHE_WRITE_TOKENS: "Of this model call, if not 0.",
    REASONING_TOKENS: "Of this model call, if not 0.",
    TOKEN_MODALITY: "Always `unknown`: usage does not tell.",
    TOOL_NAME: "The tool.",
    TOOL_TYPE: "Always `function`.",
    GEN_AI_TOOL_CALL_ID: "The tool call.",
    INPUT_MESSAGES: "Only with content capture.",
    OUTPUT_MESSAGES: "Only with content capture.",
    TOOL_ARGUMENTS: "Only with content capture.",
    TOOL_RESULT: "Only with content capture.",
}
"""Every attribute of spans, metrics and log records, with what it means."""

TAGS = {"turn_id": TURN_ID, "tool_call_id": TOOL_CALL_ID}
"""The span attribute of each tag that a table may give; log lines have the tag itself."""

UNKNOWN = "unknown"

# Values of STEP_OUTCOME and TURN_OUTCOME
COMPLETED = "completed"
SUSPENDED = "suspended"
RETRYING = "retrying"
FAILED = "failed"
CANCELED = "canceled"


# Spans


class SpanName(Struct, frozen=True):
    """One kind of span.

    Attributes:
        name: As it stands on the span, with a placeholder for what differs.
        kind: The OpenTelemetry span kind.
        meaning: What it covers.
        attributes: What it may carry.
    """

    name: str
    kind: str
    meaning: str
    attributes: tuple[str, ...]


_STEP_SPAN = (
    SESSION_ID,
    TURN_ID,
    STEP_ID,
    STEP_KIND,
    STEP_PHASE,
    STEP_ATTEMPT,
    STEP_OUTCOME,
    WORKER_ID,
    BACKEND_NAME,
    ERROR_TYPE,
)

SPANS = (
    SpanName(
        "invoke_agent {agent}",
        "INTERNAL",
        "An active stretch of a turn in one process: from its first attempt to its last before "
        "the turn ends or waits. Parent of the spans below, child of the message's sender.",
        (
            OPERATION_NAME,
            AGENT_NAME,
            CONVERSATION_ID,
            SESSION_ID,
            TURN_ID,
            TURN_OUTCOME,
            RESUMED_FROM,
            BACKEND_NAME,
            ERROR_TYPE,
        ),
    ),
    SpanName(
        "chat {model}",
        "CLIENT",
        "One attempt of `RunModel`: one model call. `chat` alone if the runner names no model.",
        (
            *_STEP_SPAN,
            OPERATION_NAME,
            AGENT_NAME,
            CONVERSATION_ID,
            PROVIDER_NAME,
            REQUEST_MODEL,
            RESPONSE_MODEL,
            RESPONSE_ID,
            FINISH_REASONS,
            INPUT_TOKENS,
            OUTPUT_TOKENS,
            CACHE_READ_TOKENS,
            CACHE_WRITE_TOKENS,
            REASONING_TOKENS,
            INPUT_MESSAGES,
            OUTPUT_MESSAGES,
        ),
    ),
    SpanName(
        "execute_tool {tool}",
        "INTERNAL",
        "One attempt of `CallTool` or `CallSingleAttemptTool`.",
        (
            *_STEP_SPAN,
            OPERATION_NAME,
            AGENT_NAME,
            CONVERSATION_ID,
            TOOL_CALL_ID,
            TOOL_NAME,
            TOOL_TYPE,
            GEN_AI_TOOL_CALL_ID,
            TOOL_STATUS,
            TOOL_ARGUMENTS,
            TOOL_RESULT,
        ),
    ),
    SpanName(
        "{Step}",
        "INTERNAL",
        "One attempt of any other Step, under its name.",
        (*_STEP_SPAN, TOOL_CALL_ID, TOOL_STATUS, APPROVAL_RESULT),
    ),
)
"""Every kind of span."""


# Metrics


class Instrument(StrEnum):
    """What a metric is measured with."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "up-down counter"


class Metric(Struct, frozen=True):
    """One metric.

    Attributes:
        name: Its name.
        instrument: What it is measured with.
        unit: As OpenTelemetry writes units.
        meaning: What it counts or measures.
        attributes: What it may be split by.
        buckets: The bounds that are advised for a histogram.
    """

    name: str
    instrument: Instrument
    unit: str
    meaning: str
    attributes: tuple[str, ...]
    buckets: tuple[float, ...] | None = None


def _doubling(first: float, count: int) -> tuple[float, ...]:
    return tuple(first * 2**i for i in range(count))


_CALL_SECONDS = _doubling(0.01, 14)
_STEP_SECONDS = _doubling(0.001, 20)
_WAITING_SECONDS = (1.0, 10.0, 60.0, 600.0, 3600.0, 4 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0)
_COUNTS = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0, 55.0)
_INFERENCE = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, AGENT_NAME)
_STEP = (STEP_KIND, STEP_PHASE, STEP_OUTCOME, AGENT_NAME, TOOL_NAME, BACKEND_NAME)


def _token_counter(name: str, meaning: str) -> Metric:
    attributes = (*_INFERENCE, TOKEN_MODALITY)
    return Metric(name, Instrument.COUNTER, "{token}", meaning, attributes)


INVOKE_AGENT_DURATION = Metric(
    "gen_ai.invoke_agent.duration",
    Instrument.HISTOGRAM,
    "s",
    "How long a stretch was, as its span; a turn that waited in between has several.",
    (AGENT_NAME, ERROR_TYPE),
    _doubling(0.1, 13),
)
INFERENCE_CALLS = Metric(
    "gen_ai.invoke_agent.inference_calls",
    Instrument.HISTOGRAM,
    "{inference_call}",
    "Attempts of model calls in a stretch.",
    (AGENT_NAME,),
    _COUNTS,
)
TOOL_CALLS = Metric(
    "gen_ai.invoke_agent.tool_calls",
    Instrument.HISTOGRAM,
    "{tool_call}",
    "Attempts of tool calls in a stretch.",
    (AGENT_NAME,),
    _COUNTS,
)
INFERENCE_DURATION = Metric(
    "gen_ai.client.inference.duration",
    Instrument.HISTOGRAM,
    "s",
    "How long an attempt of a model call took, as its span.",
    (*_INFERENCE, ERROR_TYPE),
    _CALL_SECONDS,
)
TOOL_DURATION = Metric(
    "gen_ai.execute_tool.duration",
    Instrument.HISTOGRAM,
    "s",
    "How long an attempt of a tool call took, as its span.",
    (TOOL_NAME, AGENT_NAME, ERROR_TYPE),
    _CALL_SECONDS,
)
USED_INPUT_TOKENS = _token_counter(
    "gen_ai.client.inference.usage.input_tokens", "Tokens sent, cached ones included."
)
USED_OUTPUT_TOKENS = _token_counter(
    "gen_ai.client.inference.usage.output_tokens", "Tokens received, reasoning included."
)
USED_CACHE_READ_TOKENS = _token_counter(
    "gen_ai.client.inference.usage.cache_read.input_tokens", "Tokens that a cache held."
)
USED_CACHE_WRITE_TOKENS = _token_counter(
    "gen_ai.client.inference.usage.cache_write.input_tokens", "Tokens that a cache took up."
)
USED_REASONING_TOKENS = _token_counter(
    "gen_ai.client.inference.usage.reasoning.output_tokens", "Tokens that went into reasoning."
)
CALL_INPUT_TOKENS = Metric(
    "gen_ai.client.inference.operation.input_tokens",
    Instrument.HISTOGRAM,
    "{token}",
    "Tokens sent in one model call.",
    _INFERENCE,
    tuple(float(4**i) for i in range(14)),
)
CALL_OUTPUT_TOKENS = Metric(
    "gen_ai.client.inference.operation.output_tokens",
    Instrument.HISTOGRAM,
    "{token}",
    "Tokens received in one model call.",
    _INFERENCE,
    tuple(float(4**i) for i in range(14)),
)
STEP_DURATION = Metric(
    "dex_agents.step.duration",
    Instrument.HISTOGRAM,
    "s",
    "How long an attempt took.",
    (*_STEP, ERROR_TYPE),
    _STEP_SECONDS,
)
STEP_ATTEMPTS = Metric(
    "dex_agents.step.attempts",
    Instrument.HISTOGRAM,
    "{attempt}",
    "Attempts that a `wait_for` or an `execute` took, once it is over. More than one is a retry.",
    _STEP,
    (1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0),
)
SCHEDULE_DELAY = Metric(
    "dex_agents.step.schedule_delay",
    Instrument.HISTOGRAM,
    "s",
    "From when an attempt could begin to when it did: slots, locks, workers. Not told on Dex.",
    (STEP_KIND, STEP_PHASE, AGENT_NAME, TOOL_NAME, BACKEND_NAME),
    _STEP_SECONDS,
)
TURN_WALL_DURATION = Metric(
    "dex_agents.turn.wall_duration",
    Instrument.HISTOGRAM,
    "s",
    "From a turn's user message to its end, all its waiting included.",
    (AGENT_NAME, TURN_OUTCOME, ERROR_TYPE, BACKEND_NAME),
    (0.1, 0.3, *_WAITING_SECONDS),
)
ACTIVE_SESSIONS = Metric(
    "dex_agents.session.active",
    Instrument.UP_DOWN_COUNTER,
    "{session}",
    "Sessions that a process is working on now.",
    (AGENT_NAME, BACKEND_NAME),
)
TOOL_OUTCOMES = Metric(
    "dex_agents.tool.outcomes",
    Instrument.COUNTER,
    "{tool_call}",
    "Tool calls that got their result.",
    (TOOL_NAME, TOOL_STATUS, TOOL_EFFECT, AGENT_NAME, BACKEND_NAME),
)
APPROVALS_PENDING = Metric(
    "dex_agents.approval.pending",
    Instrument.UP_DOWN_COUNTER,
    "{approval}",
    "Approvals asked for and not yet answered. One of a session that is stopped stays.",
    (TOOL_NAME, AGENT_NAME, BACKEND_NAME),
)
APPROVAL_WAIT = Metric(
    "dex_agents.approval.wait_duration",
    Instrument.HISTOGRAM,
    "s",
    "From the question to its answer, or to its deadline.",
    (TOOL_NAME, APPROVAL_RESULT, AGENT_NAME, BACKEND_NAME),
    _WAITING_SECONDS,
)
LEASE_TAKEOVERS = Metric(
    "dex_agents.lease.takeovers",
    Instrument.COUNTER,
    "{session}",
    "Sessions taken over from a worker that died in the middle of an attempt.",
    (BACKEND_NAME,),
)
QUEUE_DEPTH = Metric(
    "dex_agents.worker.queue_depth",
    Instrument.UP_DOWN_COUNTER,
    "{session}",
    "Sessions with work that waits for a free slot of their worker.",
    (BACKEND_NAME,),
)
COMMIT_DURATION = Metric(
    "dex_agents.commit.duration",
    Instrument.HISTOGRAM,
    "s",
    "How long SQLite took to make a group of changes durable.",
    (BACKEND_NAME,),
    _doubling(0.0001, 16),
)
COMMIT_BATCH = Metric(
    "dex_agents.commit.batch_size",
    Instrument.HISTOGRAM,
    "{change}",
    "Changes that one commit of SQLite made durable.",
    (BACKEND_NAME,),
    _doubling(1.0, 10),
)

METRICS = tuple(each for each in dict(globals()).values() if isinstance(each, Metric))
"""Every metric."""


# Log events


class LogEvent(Struct, frozen=True):
    """One kind of log line, through structlog, or of log record, through OpenTelemetry.

    Attributes:
        name: In the past tense.
        level: Of the line, or the severity of the record.
        meaning: What has happened.
        keys: What it may carry.
    """

    name: str
    level: str
    meaning: str
    keys: tuple[str, ...]


_BOUND = ("session_id", "turn_id", "tool_call_id", "step_id", "attempt", "worker")

STEP_COMPLETED = LogEvent(
    "dex_agents.step.completed",
    "info",
    "An attempt returned.",
    (*_BOUND, "outcome", "duration"),
)
STEP_CANCELED = LogEvent(
    "dex_agents.step.canceled",
    "info",
    "An attempt was cancelled: its session was stopped, or its Step no longer wanted.",
    (*_BOUND, "outcome", "duration"),
)
STEP_RETRYING = LogEvent(
    "dex_agents.step.retry_scheduled",
    "warning",
    "An attempt failed, and another follows.",
    (*_BOUND, "outcome", "duration", "error_type", "stacktrace", "error"),
)
STEP_FAILED = LogEvent(
    "dex_agents.step.failed",
    "warning",
    "The last attempt failed; the failure route follows.",
    (*_BOUND, "outcome", "duration", "error_type", "stacktrace", "error"),
)
TURN_COMPLETED = LogEvent(
    "dex_agents.turn.completed",
    "info",
    "A turn gave its answer.",
    (*_BOUND, "wall_duration"),
)
TURN_FAILED = LogEvent(
    "dex_agents.turn.failed",
    "error",
    "A turn ended without an answer.",
    (*_BOUND, "wall_duration", "error_type"),
)
TURN_SUSPENDED = LogEvent(
    "dex_agents.turn.suspended",
    "debug",
    "Nothing of a turn is left to do here now: it waits.",
    ("session_id", "turn_id"),
)
TURN_RESUMED = LogEvent(
    "dex_agents.turn.resumed",
    "debug",
    "A turn goes on.",
    (*_BOUND, "resumed_from"),
)
RESULT_REFUSED = LogEvent(
    "dex_agents.step.result_refused",
    "warning",
    "A result came too late: another worker has the attempt, or it is over.",
    ("session_id", "backend", "error"),
)
STORE_UNAVAILABLE = LogEvent(
    "dex_agents.store.unavailable",
    "warning",
    "The store took nothing; the worker tries again.",
    ("session_id", "backend", "error"),
)
SESSION_UNREADABLE = LogEvent(
    "dex_agents.session.unreadable",
    "warning",
    "A session could not be read; the others go on.",
    ("session_id", "backend", "error"),
)
SESSION_TAKEN_OVER = LogEvent(
    "dex_agents.session.taken_over",
    "warning",
    "A session was taken over from a worker that died in the middle of an attempt.",
    ("session_id", "backend"),
)
REDACTION_FAILED = LogEvent(
    "dex_agents.telemetry.redaction_failed",
    "warning",
    "The redaction hook raised; the content was dropped.",
    ("backend", "key", "error_type"),
)
FACTS_FAILED = LogEvent(
    "dex_agents.telemetry.facts_failed",
    "warning",
    "A table's description of an attempt raised; the attempt goes on without it.",
    ("backend", "step_id", "error_type"),
)
CONTENT_UNREADABLE = LogEvent(
    "dex_agents.telemetry.content_unreadable",
    "warning",
    "What was to be captured could not be read; the Step goes on.",
    ("backend", "error_type"),
)
LOG_EVENTS = tuple(each for each in dict(globals()).values() if isinstance(each, LogEvent))
"""Every log line, written through structlog."""

_RECORD = (SESSION_ID, STEP_ID, STEP_ATTEMPT)

INFERENCE_EXCEPTION = LogEvent(
    "gen_ai.client.operation.exception",
    "warn",
    "What a model call raised.",
    (*_RECORD, EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE),
)
TOOL_EXCEPTION = LogEvent(
    "gen_ai.execute_tool.exception",
    "warn",
    "What a tool raised.",
    (*_RECORD, EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE),
)
STEP_EXCEPTION = LogEvent(
    "dex_agents.step.exception",
    "warn",
    "What any other Step raised.",
    (*_RECORD, EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE),
)
INFERENCE_DETAILS = LogEvent(
    "gen_ai.client.inference.operation.details",
    "debug",
    "A model call with its content; only with content capture on events.",
    SPANS[1].attributes,
)
RECORD_EVENTS = (INFERENCE_EXCEPTION, TOOL_EXCEPTION, STEP_EXCEPTION, INFERENCE_DETAILS)
"""Every log record, written through the OpenTelemetry Logs API."""
