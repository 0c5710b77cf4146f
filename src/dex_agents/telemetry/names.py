"""Every name that telemetry uses, in one place.

``gen_ai.*`` follows the OpenTelemetry GenAI conventions, standalone release
0.1.0; all of them are in development there. Names of our own begin with
``dex_agents``. A rename is a change of this file.
"""

from __future__ import annotations

INSTRUMENTATION = "dex_agents"

# Attributes of spans
SESSION_ID = "dex_agents.session.id"
TURN_ID = "dex_agents.turn.id"
TOOL_CALL_ID = "dex_agents.tool_call.id"
STEP_ID = "dex_agents.step.id"
STEP_KIND = "dex_agents.step.kind"
STEP_PHASE = "dex_agents.step.phase"
STEP_ATTEMPT = "dex_agents.step.attempt"
STEP_OUTCOME = "dex_agents.step.outcome"
BACKEND_NAME = "dex_agents.backend.name"
ERROR_TYPE = "error.type"

TAGS = {"turn_id": TURN_ID, "tool_call_id": TOOL_CALL_ID}
"""The span attribute of each tag that a table may give."""

# Values of STEP_OUTCOME
COMPLETED = "completed"
SUSPENDED = "suspended"
RETRYING = "retrying"
FAILED = "failed"
CANCELED = "canceled"

# Log events
STEP_COMPLETED = "dex_agents.step.completed"
STEP_RETRYING = "dex_agents.step.retry_scheduled"
STEP_FAILED = "dex_agents.step.failed"
STEP_REFUSED = "dex_agents.step.result_refused"
STORE_UNAVAILABLE = "dex_agents.store.unavailable"
FLOW_UNREADABLE = "dex_agents.session.unreadable"
FLOW_TAKEN_OVER = "dex_agents.session.taken_over"
