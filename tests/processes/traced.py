"""Processes that export what they do: a worker, and clients that start and approve.

``python -m tests.processes.traced serve|start|approve URL SESSION``, with the
collector in ``OTLP``, the hours that have passed in ``HOURS``, and the folder
of logs and gates in ``DEX_TEST_STATE``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from dex_agents import AgentSessionClient
from dex_agents.executor import SystemClock
from dex_agents.telemetry.logs import add_trace_context
from dex_agents_sqlite import SqliteBackend
from tests.processes.conftest import LEASE_SECONDS
from tests.processes.flows import STATE_DIR, flow


def set_up() -> None:
    """Wire the SDK and structlog as docs/watching.md says."""
    provider = TracerProvider(resource=Resource.create({"process.pid": os.getpid()}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(os.environ["OTLP"])))
    trace.set_tracer_provider(provider)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            add_trace_context,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory((STATE_DIR / "log.jsonl").open("a")),
    )


async def serve(_sessions: AgentSessionClient, backend: SqliteBackend, _session: str) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with backend.worker([flow()], lease_seconds=LEASE_SECONDS, grace_seconds=0):
        sys.stdout.write(f"serving {os.getpid()}\n")
        sys.stdout.flush()
        await stopped.wait()


async def start(sessions: AgentSessionClient, _backend: SqliteBackend, session: str) -> None:
    """Start a session, as the handler of a request would."""
    with trace.get_tracer("app").start_as_current_span("POST /sessions"):
        await sessions.start_session(session, "go")


async def approve(sessions: AgentSessionClient, _backend: SqliteBackend, session: str) -> None:
    """Answer the question that waits, as the handler of a request would."""
    snapshot = await sessions.get_agent_snapshot(session)
    (interrupt,) = snapshot.pending_interrupts
    with trace.get_tracer("app").start_as_current_span("POST /approvals"):
        await sessions.resolve_interrupt(session, interrupt.interrupt_id, approved=True)


async def main(act: str, path: str, session: str) -> None:
    """Do one of them."""
    set_up()
    hours = float(os.environ["HOURS"])
    clock = SystemClock(lambda: time.time() + hours * 3600)
    async with SqliteBackend(path, clock=clock) as backend:
        acts = {"serve": serve, "start": start, "approve": approve}
        await acts[act](AgentSessionClient(backend, flow()), backend, session)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
