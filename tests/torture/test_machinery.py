"""Checks that the tools for faults work, and stop on request: the proxy, the clock, the full disk."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.background import free_port
from services.broker.settings import HOST
from tests.torture.clock import Clock, library
from tests.torture.cluster import fill, mount_memory
from tests.torture.proxy import Proxy

pytestmark = pytest.mark.unmeasured


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it receives."""

    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of an echo server."""
    with socketserver.ThreadingTCPServer((HOST, 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Proxy(free_port(), server.server_address[:2])  # type: ignore[arg-type]
        yield made
        made.close()
        server.shutdown()


def connected(proxy: Proxy) -> socket.socket:
    """A connection through the proxy."""
    return socket.create_connection((HOST, proxy.port), timeout=20)


def test_the_proxy_passes_everything(proxy: Proxy) -> None:
    data = os.urandom(300_000)
    with connected(proxy) as line, line.makefile("rb") as answers:
        threading.Thread(target=line.sendall, args=(data,)).start()
        assert answers.read(len(data)) == data
        for setting in ({"delay_s": 0.05}, {"bytes_per_s": 20_000}):
            for name, value in setting.items():
                setattr(proxy, name, value)
            line.sendall(data[:2000])
            assert answers.read(2000) == data[:2000]
            proxy.heal()


def test_the_proxy_is_dark(proxy: Proxy) -> None:
    """Nothing passes while the proxy is dark, and everything afterwards."""
    with connected(proxy) as line:
        proxy.dark = True
        line.sendall(b"hello")
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(5)
        proxy.heal()
        line.settimeout(20)
        assert line.recv(5) == b"hello"


def test_the_proxy_cuts(proxy: Proxy) -> None:
    """A connection ends without all of its bytes, whether data passes or not; the next connection is complete."""
    for sent in (b"", b"x" * 100_000):
        with connected(proxy) as line:
            line.sendall(b"!")
            assert line.recv(1) == b"!"
            proxy.cut()
            got = 0
            try:
                line.sendall(sent)
                while data := line.recv(65536):
                    got += len(data)
            except ConnectionError:
                pass
            assert got < max(1, len(sent))
    with connected(proxy) as line:
        line.sendall(b"again")
        assert line.recv(5) == b"again"


@pytest.mark.skipif(library() is None, reason="no C compiler")
def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """Only the wall clock jumps, forwards and backwards; waits take as long as they should."""
    clock = Clock(tmp_path / "clock")
    program = (
        "import sys, threading, time\n"
        "for _ in sys.stdin:\n"
        "    before = time.monotonic()\n"
        "    time.sleep(0.01), threading.Event().wait(0.01)\n"
        "    print(time.time(), time.monotonic() - before, flush=True)\n"
    )
    environment = {**os.environ, **clock.environment}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def asked() -> float:
            child.stdin.write("\n")
            child.stdin.flush()
            now, waited = map(float, child.stdout.readline().split())
            assert 0.02 <= waited < 20
            return now

        first = asked()
        clock.step(86_400)
        assert asked() >= first + 86_400
        clock.step(-80_000)
        assert asked() < first + 86_400 - 1_000
        child.stdin.close()


def test_a_full_disk(tmp_path: Path) -> None:
    """First there is no room for a byte, and then there is."""
    if not mount_memory(tmp_path, "1m"):
        pytest.skip("file systems cannot be mounted")
    try:
        filler = fill(tmp_path)
        with (tmp_path / "more").open("wb", buffering=0) as out, pytest.raises(OSError, match="No space left"):
            out.write(b"a byte")
        filler.unlink()
        (tmp_path / "more").write_bytes(bytes(10_000))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
