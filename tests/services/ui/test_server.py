"""The page's server: its files, its headers, its events, and what it refuses."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from schemas.errors import UsageError, WeirError
from services.ui.server import FILES, FORM_BYTES, PAGE, POLICY, Page, PageServer

STATE = {"query": "q", "text": "<script>alert(1)</script>"}


def history(since: int, most: int) -> dict[str, list[float]]:
    return {"second": [float(second) for second in range(5) if second > since], "inputs": [1.0]}


PAGE_SHOWN = Page(lambda: STATE, history)


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("127.0.0.1", 0, PAGE_SHOWN, {"Wall.Example"}) as running:
        yield running


def get(server: PageServer, path: str, host: str | None = None) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer, answer.read()


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_served_with_a_strict_policy(server: PageServer, path: str) -> None:
    answer, body = get(server, f"/{path}")
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert body == (PAGE / path).read_bytes()


def test_the_page_has_no_script_or_style_of_its_own_and_loads_nothing_from_elsewhere() -> None:
    html = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)[^>]*>|<style|\sstyle=|\son\w+=", html) == []
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) - {"data:,"} <= set(FILES)
    for path in PAGE.iterdir():
        if not path.name.endswith(".js"):
            continue
        name, code = path.name, path.read_text()
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", code), name
        assert all(found in FILES for found in re.findall(r'from "\./([^"]+)"', code))


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
    assert json.loads(body) == {"state": STATE, "history": history(0, 0), "offers": []}


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
    for host in ("localhost:1234", "10.0.0.7:80", "[::1]:80", "weir", "wall.example:8088", "WALL.example"):
        assert get(server, "/state", host)[0].status == 200, host
    assert get(server, "/nothing")[0].status == 404


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(WeirError, match="is taken by another program"):
            PageServer("127.0.0.1", taken.getsockname()[1], PAGE_SHOWN)


@dataclass
class Changed:
    """A server that may change something.

    Attributes:
        given: what changes were made with.
    """

    server: PageServer
    given: list[Mapping[str, str]]

    @property
    def token(self) -> str:
        return self.server.address.partition("#token=")[2]

    def post(self, path: str = "/migrate", body: str = "plan=%28A+B%29", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.server.address).port, timeout=10)
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def changing() -> Iterator[Changed]:
    given: list[Mapping[str, str]] = []

    def migrate(fields: Mapping[str, str]) -> dict[str, str]:
        given.append(fields)
        if not fields["plan"]:
            raise UsageError("no plan")
        return {"said": "done"}

    page = Page(lambda: STATE, history, changes={"migrate": migrate})
    with PageServer("127.0.0.1", 0, page, changes=True) as running:
        yield Changed(running, given)


def test_a_change_needs_the_token_of_the_printed_address(changing: Changed) -> None:
    assert len(changing.token) >= 32
    assert changing.post(X_Weir_Token=changing.token) == (200, b'{"said":"done"}')
    assert changing.given == [{"plan": "(A B)"}]
    for headers in ({}, {"X_Weir_Token": ""}, {"X_Weir_Token": changing.token[:-1]}, {"X_Weir_Token": "\xe4"}):
        assert changing.post(**headers)[0] == 403
    assert len(changing.given) == 1


def test_no_other_site_can_change_anything(changing: Changed) -> None:
    port = urlsplit(changing.server.address).port
    own = {"X_Weir_Token": changing.token, "Host": f"127.0.0.1:{port}"}
    assert changing.post(**own, Origin=f"http://127.0.0.1:{port}")[0] == 200
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        assert changing.post(**own, Origin=origin)[0] == 403, origin
    assert changing.post(X_Weir_Token=changing.token, Host="evil.example")[0] == 403
    assert len(changing.given) == 1


def test_what_is_wrong_with_a_change_is_told(changing: Changed) -> None:
    assert changing.post(body="plan=", X_Weir_Token=changing.token) == (400, b"no plan\n")
    assert changing.post("/drop", X_Weir_Token=changing.token)[0] == 404
    assert changing.post("/q/other/migrate", X_Weir_Token=changing.token)[0] == 404
    long = {"X_Weir_Token": changing.token, "Content_Length": str(FORM_BYTES + 1)}
    assert changing.post(**long)[0] == 413


def test_nothing_can_be_changed_unless_that_is_allowed(server: PageServer) -> None:
    assert "#" not in server.address
    answer, body = Changed(server, []).post()
    assert answer == 403
    assert b"--allow-changes" in body


def test_answers_are_given_the_parameters_and_say_what_is_wrong() -> None:
    def past(given: Mapping[str, str]) -> dict[str, str]:
        if "ms" not in given:
            raise UsageError("which?")
        return dict(given)

    with PageServer("127.0.0.1", 0, Page(lambda: STATE, history, answers={"past": past})) as running:
        assert json.loads(get(running, "/past?ms=5&x=%3C")[1]) == {"ms": "5", "x": "<"}
        answer, body = get(running, "/past")
        assert (answer.status, body) == (400, b"which?\n")
        assert json.loads(get(running, "/state")[1])["offers"] == ["past"]


def test_events_are_packed_for_those_who_can_unpack_them(server: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
    connection.request("GET", "/events", headers={"Accept-Encoding": "gzip, br"})
    answer = connection.getresponse()
    assert answer.headers["Content-Encoding"] == "gzip"
    unpacker, text = zlib.decompressobj(wbits=31), b""
    while text.count(b"\n\n") < 2:
        text += unpacker.decompress(answer.read1(1000))
    connection.close()
    first, second = (json.loads(event.removeprefix(b"data: ")) for event in text.split(b"\n\n")[:2])
    assert first["state"] == second["state"] == STATE
