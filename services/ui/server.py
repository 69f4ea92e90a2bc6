"""Serves the page of a query, or those of several: files, the state as JSON, and what is new as server-sent events.

The page has no script or style in its HTML and loads nothing from elsewhere, which the Content-Security-Policy
enforces. A request under a public host name is refused, unless the operator has given that name: a page of another site
could otherwise read this one by a name of its own that resolves to this address.

Nothing can be changed unless the operator allows it. A change needs a token, which only the operator has been told. It
is in a header of the request, which a page of another site cannot send.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from schemas.errors import WeirError
from services.process.http_port import HttpHandler, HttpServer, listen

PAGE = resources.files("services.ui") / "page"

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def _files() -> dict[str, tuple[Traversable, str]]:
    """Return the page's files with their types, by path."""
    there = [(path.name, path) for path in PAGE.iterdir()]
    there += [(f"vendor/{path.name}", path) for path in (PAGE / "vendor").iterdir()]
    kinds = ((name, path, TYPES.get(PurePosixPath(name).suffix)) for name, path in there)
    return {name: (path, f"{kind}; charset=utf-8") for name, path, kind in kinds if kind is not None}


FILES = _files()

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PREFIX = "/q/"
"""The pages of several queries are below it."""

TOKEN = "X-Weir-Token"
"""The header that has the token."""

FORM_BYTES = 1 << 20
"""A form may have so many bytes."""

EVERY_S = 1.0
"""How often an event is sent."""

ROWS = 600
"""Of the history that a page gets when it is opened, at most."""

State = Callable[[], dict[str, Any]]
History = Callable[[int, int], dict[str, list[float]]]
Answer = Callable[[Mapping[str, str]], Any]
"""Makes what a request is answered with, as values that JSON can encode, of the parameters in its address."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is shown of one query, or of one group.

    Attributes:
        state: what it shows now (`services.ui.documents.picture`).
        history: the seconds after one, and how many rows at most (`services.ui.watch.timeline.Timeline.columns`).
        answers: what it asks for when that is wanted, by path.
        changes: what changes something, by path; it is given the fields of a form.
    """

    state: State
    history: History
    answers: Mapping[str, Answer] = field(default_factory=dict)
    changes: Mapping[str, Answer] = field(default_factory=dict)


Find = Callable[[str], Page | None]
"""Returns the page of a name; None where there is none."""


class PageServer:
    """The server; a context manager that closes it.

    Args:
        bind, port: the address; port 0 takes a free one.
        shown: the page; or what finds pages by name, which are then at `/q/NAME/`.
        names: public host names under which it is reached.
        overview: of the pages that can be found, as values that JSON can encode; None where there is one page.
        changes: whether a page may change anything.

    Attributes:
        address: as a URL; where there may be changes, with the token that they need.
    """

    def __init__(
        self,
        bind: str,
        port: int,
        shown: Page | Find,
        names: Collection[str] = (),
        *,
        overview: Callable[[], Any] | None = None,
        changes: bool = False,
    ) -> None:
        """Listen.

        Raises:
            WeirError: the port is taken, or the address is not this machine's.
        """
        find = (lambda name: None if name else shown) if isinstance(shown, Page) else shown
        self._server = listen(
            _Server,
            bind,
            port,
            _Handler,
            find=staticmethod(find),
            overview=None if overview is None else staticmethod(overview),
            token=secrets.token_urlsafe(24) if changes else "",
            names=frozenset(name.lower() for name in (bind, *names)),
            closing=threading.Event(),
        )
        host, number = self._server.server_address[:2]
        named = str(host) if ":" not in str(host) else f"[{host!s}]"
        self.address = f"http://{named}:{number}/" + (f"#token={self._server.token}" if changes else "")
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    def __enter__(self) -> PageServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(HttpServer):
    find: Find
    overview: Callable[[], Any] | None
    token: str
    names: frozenset[str]
    closing: threading.Event


class _Handler(HttpHandler):
    server: _Server

    def do_GET(self) -> None:
        """Serve a file, the state, events, or what the page asks for."""
        path, _, given = self.path.partition("?")
        name, rest = _parts(path)
        if not self._is_addressed():
            self._refuse(
                "this host name is not known: `weir ui --http-name` gives those under which the page is reached"
            )
        elif rest in FILES:
            file, kind = FILES[rest]
            self._answer(HTTPStatus.OK, kind, file.read_bytes())
        elif self.server.overview is not None and not name and rest in ("", "queries"):
            self._overview(self.server.overview, rest)
        elif (page := self.server.find(name)) is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such query\n")
        elif not rest:
            file, kind = FILES["index.html"]
            self._answer(HTTPStatus.OK, kind, file.read_bytes())
        elif rest == "state":
            offers = [*page.answers, *(page.changes if self.server.token else ())]
            document = {"state": page.state(), "history": page.history(0, ROWS), "offers": offers}
            self._answer(HTTPStatus.OK, "application/json", orjson.dumps(document))
        elif rest == "events":
            self._events(page, dict(parse_qsl(given)).get("since", ""))
        elif rest in page.answers:
            self._reply(page.answers[rest], dict(parse_qsl(given)))
        else:
            known = ", ".join(["state", "events", *page.answers])
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"there are {known}\n".encode())

    def do_POST(self) -> None:
        """Change something, if the operator's page asks for it."""
        name, rest = _parts(self.path)
        length = self.headers.get("Content-Length", "")
        origin = self.headers.get("Origin")
        if not self._is_addressed() or (origin and urlsplit(origin).netloc != self.headers.get("Host")):
            self._refuse("the request comes from another site")
        elif not self.server.token:
            self._refuse("nothing can be changed here: see --allow-changes")
        elif not hmac.compare_digest(self.headers.get(TOKEN, "").encode(), self.server.token.encode()):
            self._refuse("the token is wrong: open the address that `weir ui --allow-changes` has printed")
        elif (page := self.server.find(name)) is None or rest not in page.changes:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing to change\n")
        elif not length.isdecimal() or int(length) > FORM_BYTES:
            self.close_connection = True
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "text/plain", b"that is too long\n")
        else:
            form = self.rfile.read(int(length)).decode(errors="replace")
            self._reply(page.changes[rest], dict(parse_qsl(form, keep_blank_values=True)))

    def _overview(self, overview: Callable[[], Any], rest: str) -> None:
        if rest:
            self._answer(HTTPStatus.OK, "application/json", orjson.dumps(overview()))
        else:
            file, kind = FILES["overview.html"]
            self._answer(HTTPStatus.OK, kind, file.read_bytes())

    def _refuse(self, why: str) -> None:
        self.close_connection = True  # the body of the request has not been read
        self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"{why}\n".encode())

    def _reply(self, answer: Answer, given: Mapping[str, str]) -> None:
        try:
            document = answer(given)
        except WeirError as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", f"{error}\n".encode())
        else:
            self._answer(HTTPStatus.OK, "application/json", orjson.dumps(document))

    def _is_addressed(self) -> bool:
        """Return whether the client asked for an address, for a name without a domain, or for a given name."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return "." not in host or host in self.server.names or _is_address(host)

    def _events(self, page: Page, since: str) -> None:
        """Send the state and the new seconds until the client goes or the server ends.

        Args:
            since: the last second that the client has.
        """
        self.close_connection = True
        # One second's state differs little from that of the second before, so it takes little room after it.
        packed = "gzip" in self.headers.get("Accept-Encoding", "")
        packer = zlib.compressobj(1, wbits=31)
        self._head(HTTPStatus.OK, "text/event-stream", None, packed=packed)
        known = int(since) if since.isdecimal() else int(time.time())
        while not self.server.closing.is_set():
            history = page.history(known, ROWS)
            known = int(max(history["second"], default=known))
            event = b"data: " + orjson.dumps({"state": page.state(), "history": history}) + b"\n\n"
            self.wfile.write(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else event)
            self.wfile.flush()
            self.server.closing.wait(EVERY_S)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int | None, *, packed: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()


def _parts(path: str) -> tuple[str, str]:
    """Return the name of a page, empty for the only one, and the rest of a path."""
    if not path.startswith(PREFIX):
        return "", path.removeprefix("/")
    name, _, rest = path.removeprefix(PREFIX).partition("/")
    return unquote(name), rest


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
