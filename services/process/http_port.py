"""Opens an HTTP port whose requests threads serve: for a worker's pages, and for the page of `weir ui`."""

from __future__ import annotations

import errno
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, TypeVar

from schemas.errors import WeirError

REQUEST_S = 10.0
"""How long a client may take over its request."""


class HttpServer(ThreadingHTTPServer):
    """A server that ends with the process and reports nothing about its clients."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without the name server look-up of `HTTPServer`."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: a client that went away is no fault of the server."""


class HttpHandler(BaseHTTPRequestHandler):
    """A request, of which nothing is logged: a client that asks every few seconds would fill the log."""

    timeout = REQUEST_S
    server_version, sys_version = "weir", ""

    def log_message(self, *given: Any) -> None:
        """Log nothing."""


Server = TypeVar("Server", bound=HttpServer)


def listen(kind: type[Server], bind: str, port: int, handler: type[HttpHandler], **attributes: object) -> Server:
    """Open a port; port 0 is a free one.

    Args:
        attributes: of the server, which the handler uses.

    Raises:
        WeirError: the port is taken, or the address is not this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # A new class, since the constructor does not take the address family.
        server = type(kind.__name__, (kind,), {"address_family": family, **attributes})(address, handler)
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
    assert isinstance(server, kind)
    return server
