"""A worker's HTTP pages: /metrics for Prometheus, /healthz for a supervisor that restarts unhealthy workers.

`weir worker` opens `Pages` before anything else. A separate thread serves them as long as the process runs: also while
Kafka cannot be reached, while one plan takes over from another, and while the event loop is busy. The worker reports to
them what it waits for, and gives them its `TaskManager` once it has one.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from services.process.http_port import HttpHandler, HttpServer, listen
from services.worker.health_problem import shown_time


class Health(Protocol):
    """The health of the tasks, as `services.worker.task_manager.TaskManager` knows it. Called in threads."""

    @property
    def joined(self) -> bool:
        """Whether the group has assigned tasks (or none) to this worker."""
        ...

    def unhealthy_reason(self) -> str:
        """What is wrong; empty when all tasks are healthy."""
        ...

    def status(self) -> list[dict[str, Any]]:
        """What /healthz reports of each task."""
        ...


class Metrics(Protocol):
    """The worker's metrics, `services.process.metrics.WorkerMetrics`."""

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        ...


@dataclass(frozen=True, slots=True)
class Wait:
    """What the worker waits for instead of running its tasks.

    Attributes:
        status: "starting" or "stopping".
        what: what it waits for.
        since_s: by the wall clock, in seconds since 1970.
    """

    status: str
    what: str
    since_s: float


class Pages:
    """The HTTP port and its pages; a context manager that closes it. Methods may be called from any thread.

    Args:
        bind: the address.
        port: 0 for none: then nothing is served.

    Attributes:
        query: the query's name; empty until it is known.
        metrics: None until there are any.
        connection_problem: why the worker has no connection to Kafka, which keeps all tasks from their work; empty
            while it has one. What keeps single tasks from their work is in the `Health`.
    """

    def __init__(self, bind: str = "127.0.0.1", port: int = 0) -> None:
        """Listen.

        Raises:
            WeirError: the port is taken, or the address is not this machine's.
        """
        self.query = ""
        self.metrics: Metrics | None = None
        self.connection_problem = ""
        self._health: Health | None = None
        self._wait = Wait("starting", "its program to be loaded", time.time())
        self._server = listen(_Server, bind, port, _Handler, pages=self) if port else None
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def waits_for(self, what: str, status: str = "starting") -> None:
        """The worker runs no tasks now; `what` is what it waits for."""
        self._health = None
        if (status, what) != (self._wait.status, self._wait.what):
            self._wait = Wait(status, what, time.time())

    def runs(self, health: Health) -> None:
        """The worker runs tasks now; /healthz reports their health."""
        self.waits_for("the consumer group to say which tasks this worker has")
        self._health = health

    def health(self) -> tuple[HTTPStatus, dict[str, Any]]:
        """The status code and document of /healthz."""
        health = self._health
        tasks = [] if health is None else health.status()
        told: dict[str, Any] = {"status": "ok", "query": self.query, "tasks": tasks, "problem": ""}
        if health is None or not health.joined:
            wait = self._wait
            told |= {"status": wait.status, "waits_for": wait.what, "since": shown_time(wait.since_s)}
        else:
            told["problem"] = "; ".join(filter(None, (self.connection_problem, health.unhealthy_reason())))
            if told["problem"]:
                told["status"] = "ill"
        return HTTPStatus.OK if told["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE, told


class _Server(HttpServer):
    pages: Pages


class _Handler(HttpHandler):
    server: _Server

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
