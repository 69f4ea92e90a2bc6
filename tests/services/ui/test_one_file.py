"""The page of a plan as one file: what is in it, and how Chromium shows it from disk."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operators.explain.analyze import analyses
from operators.plan.choose import Statistics, choose_plan, declared_statistics
from operators.plan.plan import parse_plan
from schemas.language.program import parse_program
from schemas.query import Query
from services.ui.documents.one_file import expected, measured, page_file
from tests.operators.tiny import chain
from tests.services.ui.pages import NEEDS_CHROMIUM, Shown, Visit
from tests.services.ui.running import BUSY, Running

HOSTILE = "</script><script>document.title='gone'</script><img src=x onerror=alert(1)><!--"

DECLARED = Statistics(rates=dict.fromkeys("ABCD", 100.0))


def plan_only(query: Query, statistics: Statistics | None = None) -> dict[str, Any]:
    known = statistics or declared_statistics(query)
    return expected(query, choose_plan(query, known), known)


def hostile_query() -> Query:
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, s STRING, at TIMESTAMP) WITH (timestamp = 'at', rate = 50);\n"
        for name in "ab"
    )
    where = f"A.k = B.k AND A.s <> '{HOSTILE.replace(chr(39), chr(39) * 2)}'"
    return parse_program(f"{streams}SELECT A.k FROM a A, b B WHERE {where} WINDOW RANGE 1 SECOND").queries[0]


LOOKED_UP = """
CREATE STREAM o (k BIGINT, cur STRING, at TIMESTAMP) WITH (timestamp = 'at');
CREATE STREAM p (k BIGINT, at TIMESTAMP) WITH (timestamp = 'at');
CREATE TABLE rates (cur STRING PRIMARY KEY, rate BIGINT) WITH (topic = 'rates');
CREATE TABLE names (k BIGINT PRIMARY KEY, name STRING) WITH (topic = 'names');
SELECT R.rate AS r, names.name AS n FROM p P [RANGE 1 SECOND], o O [RANGE 1 SECOND],
  rates FOR SYSTEM_TIME AS OF O._ts AS R, names FOR SYSTEM_TIME AS OF O._ts AS names
WHERE O.k = P.k AND R.cur = O.cur AND names.k = O.k
"""


def running_document(seconds: int = 5, silent: tuple[str, ...] = ()) -> dict[str, Any]:
    running = Running(2)
    for _ in range(seconds):
        running.second()
    running.migrate("(((A D) C) B)")
    running.decide(1, "it saves 90% of the work")
    running.second()
    snapshot = running.live.snapshot()
    found = analyses(running.query, snapshot.observations, DECLARED)
    return measured(running.query, found, snapshot.decisions, silent)


def embedded(page: str) -> Any:
    """The document in a page."""
    (text,) = re.findall(r'<script type="application/json" id="document">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_nothing_is_loaded_and_the_policy_allows_what_is_there_only() -> None:
    page = page_file(plan_only(chain(3)))
    assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=", page) == []
    assert re.findall(r"^\s*(?:import|export)\b", page, re.MULTILINE) == []
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (script, style)]
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', page)
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_a_hostile_text_ends_no_script() -> None:
    document = plan_only(hostile_query())
    assert HOSTILE.replace("'", "''") in document["text"]
    page = page_file(document)
    assert page.count("</script>") == 2
    assert embedded(page) == document


def test_a_plan_that_does_not_run_has_expected_figures_only() -> None:
    query = chain(3)
    found = plan_only(query, Statistics(rates={"A0": 100.0, "A1": 100.0, "A2": 100.0}))
    assert found["basis"].startswith("Expected, by declared statistics: ")
    assert found["tasks"] == found["decisions"] == found["migrations"] == []
    (plan,) = found["plans"]
    nodes = {node["id"]: node for node in plan["nodes"]}
    assert len(nodes) == 5
    assert (nodes["A0"]["expected_per_s"], nodes["A0"]["expected_alive"]) == (100, pytest.approx(1))
    assert all(node["expected_per_s"] > 0 and node["per_s"] is node["alive"] is None for node in nodes.values())
    assert plan_only(query)["basis"].startswith("Expected, by assumed statistics: ")


def test_a_source_names_the_tables_in_which_it_is_looked_up() -> None:
    (plan,) = plan_only(parse_program(LOOKED_UP).queries[0])["plans"]
    nodes = {node["id"]: node for node in plan["nodes"]}
    assert [(one["table"], one["alias"], one["by"]) for one in nodes["O"]["lookups"]] == [
        ("rates", "R", "look up rates as of O._ts: R.cur = O.cur"),
        ("names", "names", "look up names as of O._ts: names.k = O.k"),
    ]
    assert nodes["P"]["lookups"] == []


def test_a_running_query_has_measured_figures_tasks_and_decisions() -> None:
    found = running_document(silent=("task 2: has reported nothing for a while",))
    assert found["basis"] == "Measured in the running query, lately"
    assert found["problem"] == "task 2: has reported nothing for a while"
    assert [(task["task"], task["busy"]) for task in found["tasks"]] == [
        (0, pytest.approx(BUSY)),
        (1, pytest.approx(BUSY)),
    ]
    assert min(task["results"] for task in found["tasks"]) > 0
    assert [(one["number"], one["made"]) for one in found["decisions"]] == [(1, True)]
    assert [one["to"] for one in found["migrations"]] == ["(((A D) C) B)"]
    assert all(node["per_s"] is not None for plan in found["plans"] for node in plan["nodes"])


def test_figures_beyond_all_numbers_are_unknown() -> None:
    query = chain(60, star=True)
    endless = Statistics(rates={source.alias: 1e12 for source in query.sources})
    found = embedded(page_file(expected(query, parse_plan(str(choose_plan(query, endless)), query), endless)))
    assert any(node["expected_per_s"] is None for node in found["plans"][0]["nodes"])


Opened = Callable[..., Shown]


@pytest.fixture
def opened_file(visit: Visit, tmp_path: Path) -> Opened:
    """Opens the page of a document from disk, with the settings of a browser's context."""

    def open_file(document: dict[str, Any], **context: Any) -> Shown:
        path = tmp_path / "plan.html"
        path.write_text(page_file(document), "utf-8")
        shown = visit(path.as_uri(), **context)
        shown.until("#query", document["query"])
        return shown

    return open_file


@pytest.mark.deep
@NEEDS_CHROMIUM
def test_a_plan_is_drawn_and_a_node_chosen_by_keyboard(opened_file: Opened) -> None:
    shown = opened_file(plan_only(chain(3)))
    assert shown.page.locator("g.node").count() == 5
    assert shown.page.locator("path.edge").count() == 5
    assert "~1 k/s [RANGE 10 MILLISECON…" in shown.page.locator('g.node[data-id="A0"]').text_content()
    assert shown.text("h1").startswith("Expected, by assumed statistics: ")
    assert not shown.page.locator("#tasks").is_visible()
    shown.page.locator('g.node[data-id="A0"]').focus()
    shown.page.keyboard.press("Enter")
    assert "Alive, expected" in shown.text("#node")
    assert shown.page.evaluate("document.activeElement.dataset.id") == "A0"
    shown.keep("one-file-expected")
    shown.page.keyboard.press("Enter")
    assert not shown.page.locator("#node").is_visible()
    assert shown.errors == []
    assert shown.requests == [shown.page.url]


@pytest.mark.deep
@NEEDS_CHROMIUM
def test_tables_are_drawn_before_the_source_that_is_looked_up_in_them(opened_file: Opened) -> None:
    shown = opened_file(plan_only(parse_program(LOOKED_UP).queries[0]))
    tables = shown.page.locator("g.looked-up")
    assert [table.locator("text").first.text_content() for table in tables.all()] == ["rates R", "names"]
    assert shown.page.locator("path.edge").count() == 5
    boxes = [table.bounding_box() for table in (*tables.all(), *shown.page.locator("g.node").all())]
    for n, one in enumerate(boxes):
        apart = [one["x"] + one["width"] <= b["x"] or one["y"] + one["height"] <= b["y"] for b in boxes[n + 1 :]]
        behind = [b["x"] + b["width"] <= one["x"] or b["y"] + b["height"] <= one["y"] for b in boxes[n + 1 :]]
        assert all(a or b for a, b in zip(apart, behind, strict=True)), "boxes lie on each other"
    source = shown.page.locator('g.node[data-id="O"]')
    assert "look up rates as of O._ts: R.cur = O.cur" in source.get_attribute("aria-label")
    source.focus()
    shown.page.keyboard.press("Enter")
    assert "rates as of O._ts: R.cur = O.cur" in shown.text("#node")
    shown.keep("one-file-lookups")
    assert shown.errors == []


@pytest.mark.deep
@NEEDS_CHROMIUM
def test_measured_figures_tasks_and_changes_are_shown(opened_file: Opened) -> None:
    shown = opened_file(running_document())
    assert "of a core" in shown.text("#plans")
    shown.page.locator("g.node[data-id]").last.focus()
    shown.page.keyboard.press("Space")
    assert "Selectivity" in shown.text("#node")
    assert shown.page.locator("#tasks tbody tr").count() == 2
    assert "Changed the plan at 1970-01-01 00:00:05" in shown.text("#changes")
    assert "Predicted: 90 % saved, pause 4 ms" in shown.text("#changes")
    assert "Plan change by jisc to (((A D) C) B)" in shown.text("#changes")
    shown.keep("one-file-measured")
    assert shown.errors == []
    assert shown.requests == [shown.page.url]


@pytest.mark.deep
@NEEDS_CHROMIUM
def test_hostile_values_are_text_and_no_other_script_runs(opened_file: Opened) -> None:
    shown = opened_file(plan_only(hostile_query()) | {"problem": HOSTILE})
    assert shown.text("#problem") == HOSTILE
    assert HOSTILE.replace("'", "''") in shown.text("#text")
    shown.page.locator('g.node[data-id="A"]').focus()
    shown.page.keyboard.press("Enter")
    assert "<img src=x" in shown.text("#node")
    assert shown.page.locator("script").count() == 2
    assert shown.page.locator("img").count() == 0
    assert shown.errors == []
    shown.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = 1'}))"
    )
    assert shown.page.title() != "1"
    assert "Content Security Policy" in " ".join(shown.errors)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.deep
@NEEDS_CHROMIUM
def test_it_fits_screens_and_axe_finds_nothing(opened_file: Opened, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # axe is a script that the policy does not know.
    size = {"width": width, "height": 800}
    shown = opened_file(running_document(), color_scheme=scheme, viewport=size, bypass_csp=True)
    shown.page.locator("g.node").last.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    red = int(shown.page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")
    found = Axe().run(shown.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    shown.keep(f"one-file-{scheme}-{width}")
