"""A collector of traces that takes what OpenTelemetry's exporters send: OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Span:
    """A span that was received; `service` holds the attributes of the process. Times are ns since 1970."""

    id: bytes
    parent: bytes
    trace: bytes
    name: str
    began: int
    ended: int
    attributes: dict[str, Any]
    problem: str
    service: dict[str, Any]


class Collector:
    """Listens on loopback while it is entered.

    Attributes:
        address: for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        spans: received so far.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.collector = self
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def epochs(self) -> dict[bytes, Span]:
        """The spans of epochs received so far, by their ids."""
        return {span.id: span for span in list(self.spans) if span.name == "epoch"}

    def phases(self, epoch: Span) -> dict[str, Span]:
        """The children of an epoch received so far, by their names."""
        return {span.name: span for span in list(self.spans) if span.parent == epoch.id}

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep what an exporter has sent."""
        for resource in request.resource_spans:
            service = _plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    problem = span.status.message if span.status.code == Status.STATUS_CODE_ERROR else ""
                    self.spans.append(
                        Span(
                            span.span_id,
                            span.parent_span_id,
                            span.trace_id,
                            span.name,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            _plain(span.attributes),
                            problem,
                            service,
                        )
                    )


class _Server(ThreadingHTTPServer):
    collector: Collector


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Take a batch of spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.path == "/v1/traces"
        if known:
            self.server.collector.take(ExportTraceServiceRequest.FromString(body))
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def _plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {own.key: getattr(own.value, own.value.WhichOneof("value") or "string_value") for own in attributes}
