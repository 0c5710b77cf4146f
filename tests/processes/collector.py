"""A receiver of OTLP over HTTP on loopback, for the tests that let real processes export."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(Struct):
    """A span as it arrived; the identifiers are hexadecimal."""

    name: str
    pid: int
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    attributes: dict[str, Any]
    is_error: bool


class Collector:
    """What has arrived so far."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.spans: list[Span] = []

    def take(self, body: bytes) -> None:
        """Keep the spans of one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            pid = next(
                each.value.int_value
                for each in resource.resource.attributes
                if each.key == "process.pid"
            )
            self.spans += [
                _span(each, pid) for scope in resource.scope_spans for each in scope.spans
            ]


def _span(span: Any, pid: int) -> Span:
    attributes = {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }
    return Span(
        name=span.name,
        pid=pid,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=[link.span_id.hex() for link in span.links],
        attributes=attributes,
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Receive spans while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
