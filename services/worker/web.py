"""A worker's pages: /metrics for Prometheus, /healthz for whoever restarts sick workers.

A thread of their own serves them for as long as the process lives: while Kafka cannot be reached, while one plan takes
over from another, and while the event loop is busy. `weir worker` opens them first of all. The worker tells them what
it waits for, and hands them its roster once there is one.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Protocol

from schemas.errors import WeirError
from services.worker.health import shown_time

REQUEST_S = 10.0
"""How long a client may take over its request."""


class Health(Protocol):
    """Who knows how the tasks are: `services.worker.assignments.Roster`. Asked in threads.

    Attributes:
        joined: whether it is known which tasks there are.
    """

    joined: bool

    def illness(self) -> str:
        """What is wrong; empty when all is well."""
        ...

    def seen(self) -> list[dict[str, Any]]:
        """What to tell of each task."""
        ...


class Metrics(Protocol):
    """Who counts: `services.process.metrics.WorkerMetrics`."""

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        ...


@dataclass(frozen=True, slots=True)
class Wait:
    """What the worker waits for instead of running its tasks.

    Attributes:
        status: "starting", or "stopping".
        since_s: by the wall clock.
    """

    status: str
    what: str
    since_s: float


class Pages:
    """The HTTP port and what is told there; a context manager that closes it. Methods may be called from any thread.

    Args:
        bind: the address.
        port: 0 for none: then nothing is served.

    Attributes:
        query: its name, empty until it is known.
        metrics: None until there are any.
        trouble: what keeps all tasks from their work, such as Kafka that cannot be reached; empty for nothing.
    """

    def __init__(self, bind: str = "127.0.0.1", port: int = 0) -> None:
        """Listen.

        Raises:
            WeirError: the port is taken, or the address is not this machine's.
        """
        self.query = ""
        self.metrics: Metrics | None = None
        self.trouble = ""
        self._health: Health | None = None
        self._wait = Wait("starting", "its program to be loaded", time.time())
        self._server = _listen(bind, port, self) if port else None
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def waits_for(self, what: str, status: str = "starting") -> None:
        """The worker runs no tasks now, until it gets something."""
        self._health = None
        if (status, what) != (self._wait.status, self._wait.what):
            self._wait = Wait(status, what, time.time())

    def runs(self, health: Health) -> None:
        """From now on the tasks say how it is."""
        self.waits_for("the consumer group to say which tasks this worker has")
        self._health = health

    def health(self) -> tuple[HTTPStatus, dict[str, Any]]:
        """What /healthz answers."""
        health = self._health
        tasks = [] if health is None else health.seen()
        told: dict[str, Any] = {"status": "ok", "query": self.query, "tasks": tasks, "problem": ""}
        if health is None or not health.joined:
            wait = self._wait
            told |= {"status": wait.status, "waits_for": wait.what, "since": shown_time(wait.since_s)}
        else:
            told["problem"] = "; ".join(filter(None, (self.trouble, health.illness())))
            if told["problem"]:
                told["status"] = "ill"
        return HTTPStatus.OK if told["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE, told


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    pages: Pages

    def server_bind(self) -> None:
        """Bind, without asking name servers what the address is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is no trouble of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_S
    server_version, sys_version = "weir", ""

    def do_GET(self) -> None:
        """Serve a page."""
        path, pages = self.path.partition("?")[0], self.server.pages
        if path == "/healthz":
            status, told = pages.health()
            self._answer(status, "application/json", json.dumps(told, ensure_ascii=False).encode())
        elif path == "/metrics":
            page = b"" if pages.metrics is None else pages.metrics.page()
            self._answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", page)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthz and /metrics\n")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        """Nothing: who asks every few seconds would fill the log."""


def _listen(bind: str, port: int, pages: Pages) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # A class of its own, since the family cannot be given.
        server = type("_Server", (_Server,), {"address_family": family, "pages": pages})(address, _Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise WeirError(
                f"port {port} of {bind} is taken by another program: give another with --http-port, or 0 for none"
            ) from None
        why = error.strerror or str(error)
        raise WeirError(
            f"port {port} of {bind} cannot be opened ({why}): give an address of this machine with --http-bind, and a "
            "port that you may use with --http-port"
        ) from None
    assert isinstance(server, _Server)
    return server
