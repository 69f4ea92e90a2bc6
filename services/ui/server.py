"""Serves the page of a query: its files, its state as JSON, and what is new as server-sent events.

Everything is read-only. The page has no script or style in its HTML and loads nothing from elsewhere, which the
Content-Security-Policy enforces. A request under a public host name is refused, unless the operator has given that
name: a page of another site could otherwise read this one by a name of its own that resolves to this address.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from services.process.http_port import HttpHandler, HttpServer, listen

PAGE = resources.files("services.ui") / "page"

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/weir.css": ("weir.css", "text/css; charset=utf-8"),
    "/weir.js": ("weir.js", "text/javascript; charset=utf-8"),
    "/format.js": ("format.js", "text/javascript; charset=utf-8"),
    "/plan.js": ("plan.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/vendor/uPlot.iife.min.js": ("vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/vendor/uPlot.min.css": ("vendor/uPlot.min.css", "text/css; charset=utf-8"),
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

EVERY_S = 1.0
"""How often an event is sent."""

ROWS = 600
"""Of the history that a page gets when it is opened, at most."""

State = Callable[[], dict[str, Any]]
History = Callable[[int, int], dict[str, list[float]]]


class PageServer:
    """The server; a context manager that closes it.

    Args:
        bind, port: the address; port 0 takes a free one.
        names: public host names under which the page is reached.
        state: what the page shows now (`services.ui.picture`).
        history: the seconds after one, and how many rows at most (`services.ui.timeline.Timeline.columns`).

    Attributes:
        address: of the page, as a URL.
    """

    def __init__(self, bind: str, port: int, state: State, history: History, names: Collection[str] = ()) -> None:
        """Listen.

        Raises:
            WeirError: the port is taken, or the address is not this machine's.
        """
        shared = {"state": staticmethod(state), "history": staticmethod(history), "names": frozenset({bind, *names})}
        self._server = listen(_Server, bind, port, _Handler, closing=threading.Event(), **shared)
        host, number = self._server.server_address[:2]
        shown = str(host) if ":" not in str(host) else f"[{host!s}]"
        self.address = f"http://{shown}:{number}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    def __enter__(self) -> PageServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(HttpServer):
    state: State
    history: History
    names: frozenset[str]
    closing: threading.Event


class _Handler(HttpHandler):
    server: _Server

    def do_GET(self) -> None:
        """Serve a file, the state, or events."""
        path = self.path.partition("?")[0]
        if not self._is_addressed():
            told = b"this host name is not known: `weir ui --http-name` gives those under which the page is reached\n"
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", told)
        elif path in FILES:
            name, kind = FILES[path]
            self._answer(HTTPStatus.OK, kind, (PAGE / name).read_bytes())
        elif path == "/state":
            document = {"state": self.server.state(), "history": self.server.history(0, ROWS)}
            self._answer(HTTPStatus.OK, "application/json", _json(document))
        elif path == "/events":
            self._events()
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there are /, /state and /events\n")

    def _is_addressed(self) -> bool:
        """Return whether the client asked for an address, for a name without a domain, or for a given name."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return "." not in host or host in self.server.names or _is_address(host)

    def _events(self) -> None:
        """Send the state and the new seconds until the client goes or the server ends."""
        self.close_connection = True
        self._head(HTTPStatus.OK, "text/event-stream", None)
        since = int(time.time()) - 60
        while not self.server.closing.is_set():
            history = self.server.history(since, 0)
            since = int(max(history["second"], default=since))
            self.wfile.write(b"data: " + _json({"state": self.server.state(), "history": history}) + b"\n\n")
            self.wfile.flush()
            self.server.closing.wait(EVERY_S)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
