"""The page's server: its files, its headers, its events, and what it refuses."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from schemas.errors import WeirError
from services.ui.server import FILES, PAGE, POLICY, PageServer

STATE = {"query": "q", "text": "<script>alert(1)</script>"}


def history(since: int, most: int) -> dict[str, list[float]]:
    return {"second": [float(second) for second in range(5) if second > since], "inputs": [1.0]}


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("127.0.0.1", 0, lambda: STATE, history, {"wall.example"}) as running:
        yield running


def get(server: PageServer, path: str, host: str | None = None) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer, answer.read()


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_served_with_a_strict_policy(server: PageServer, path: str) -> None:
    answer, body = get(server, path)
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert body == (PAGE / FILES[path][0]).read_bytes()


def test_the_page_has_no_script_or_style_of_its_own_and_loads_nothing_from_elsewhere() -> None:
    html = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)[^>]*>|<style|\sstyle=|\son\w+=", html) == []
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) - {"data:,"} <= set(FILES)
    for name in ("weir.js", "plan.js", "charts.js", "format.js"):
        code = (PAGE / name).read_text()
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", code), name
        assert all(f"/{found}" in FILES for found in re.findall(r'from "\./([^"]+)"', code))


def test_vendored_libraries_are_unchanged() -> None:
    table = (PAGE / "vendor" / "README.md").read_text()
    rows = re.findall(r"^\| (\S+\.(?:js|css)) \|.*\| ([0-9a-f]{64}) \|$", table, re.MULTILINE)
    there = {path.name for path in (PAGE / "vendor").iterdir()}
    assert {name for name, _ in rows} == there - {"README.md", "uPlot.LICENSE"}
    for name, digest in rows:
        assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == digest


def test_the_state_comes_with_the_history(server: PageServer) -> None:
    answer, body = get(server, "/state")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"state": STATE, "history": history(0, 0)}


def test_events_follow_one_another(server: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    found: list[Any] = []
    while len(found) < 2:
        line = answer.readline()
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
    connection.close()
    assert [one["state"] for one in found] == [STATE, STATE]


def test_a_page_of_another_site_cannot_read_it_by_a_name_that_resolves_to_loopback(server: PageServer) -> None:
    assert get(server, "/state", "evil.example:80")[0].status == 403
    assert get(server, "/state", "evil.example")[0].status == 403
    for host in ("localhost:1234", "10.0.0.7:80", "[::1]:80", "weir", "wall.example:8088"):
        assert get(server, "/state", host)[0].status == 200, host
    assert get(server, "/nothing")[0].status == 404


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(WeirError, match="is taken by another program"):
            PageServer("127.0.0.1", taken.getsockname()[1], lambda: STATE, history)
