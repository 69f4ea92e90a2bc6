"""The last results, late records and dead letters on the page, in a real browser; see test_page.py."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.services.ui.pages import HOSTILE, IN_BROWSER, Opened, Shown, star
from tests.services.ui.running import BEGIN_MS

pytestmark = IN_BROWSER

TOPICS = {"results": "alarms", "late": "alarms.late", "dead": "alarms.dead"}

PANEL = "#rows-panel"


def row(kind: str, n: int, text: str | None = None, *, key: str | None = None, **more: Any) -> dict[str, Any]:
    shown = json.dumps({"n": n}) if text is None else text
    made = {
        "topic": TOPICS[kind],
        "partition": n % 3,
        "offset": n,
        "time": BEGIN_MS + n * 1000,
        "key": None if key is None else {"text": key, "hex": False, "bytes": len(key), "cut": False},
        "value": {"text": shown, "hex": False, "bytes": len(shown), "cut": False},
    }
    if kind != "results":
        made |= {"reason": "late", "origin": {"stream": "t", "topic": "in", "partition": 1, "offset": 70 + n}}
    return made | more


class Answers:
    """What `/rows` is answered with.

    Attributes:
        rows: by kind, the newest first.
        asked: the kinds that were asked for.
        more: other parts of the document.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {kind: [row(kind, n) for n in (3, 2, 1)] for kind in TOPICS}
        self.more: dict[str, Any] = {}
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def document(self, given: Mapping[str, str]) -> dict[str, Any]:
        kind = given["kind"]
        with self._lock:
            self.asked.append(kind)
            head = {"kind": kind, "topic": TOPICS[kind], "complete": True, "hidden": False, "note": ""}
            return head | {"rows": list(self.rows[kind])} | self.more


@dataclass
class RowsShown(Shown):
    """A page with these rows."""

    answers: Answers = field(default_factory=Answers)

    def look(self) -> None:
        """Bring the rows on the screen, and wait for them."""
        self.page.locator("#rows").scroll_into_view_if_needed()
        self.until("#rows .hint", "alarms")

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()

    def refresh(self) -> None:
        self.page.get_by_role("button", name="Refresh").click()

    def cells(self) -> list[list[str]]:
        found = self.page.locator(f"{PANEL} tbody tr").all()
        return [[str(cell.inner_text()) for cell in one.locator("td").all()] for one in found]

    def keep(self, name: str) -> None:
        """Keep a screenshot, if that is asked for."""
        if folder := os.environ.get("WEIR_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"rows-{name}.png"))


OpenedRows = Callable[..., RowsShown]


@pytest.fixture
def opened_rows(opened: Opened) -> OpenedRows:
    def open_page(answers: Answers, **context: Any) -> RowsShown:
        allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
        shown = opened(star(), {"rows": answers.document}, **(allowed | context))
        return RowsShown(shown.page, shown.errors, shown.requests, shown.running, answers)

    return open_page


def test_rows_are_read_only_when_somebody_looks_and_then_by_themselves(opened_rows: OpenedRows) -> None:
    shown = opened_rows(Answers())
    shown.until("#chart-rates p", "now")
    shown.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert shown.answers.asked == []
    shown.look()
    assert [cells[1] for cells in shown.cells()] == ["alarms[0]@3", "alarms[2]@2", "alarms[1]@1"]
    assert shown.cells()[0][2] == '{"n": 3}'
    shown.answers.rows["results"].insert(0, row("results", 4))
    shown.until(PANEL, "alarms[1]@4")
    assert len(shown.cells()) == 4
    shown.keep("results")
    assert shown.errors == []


def test_tabs_are_chosen_by_keyboard(opened_rows: OpenedRows) -> None:
    answers = Answers()
    answers.rows["dead"] = [row("dead", 9, reason="field 'k' is 'seven', BIGINT accepts an integer")]
    shown = opened_rows(answers)
    shown.look()
    shown.page.get_by_role("tab", name="Results").focus()
    for key, kind, words in [
        ("ArrowRight", "late", "late: behind the watermark of its partition"),
        ("ArrowRight", "dead", "field 'k' is 'seven', BIGINT accepts an integer"),
        ("ArrowRight", "results", "alarms[0]@3"),
        ("ArrowLeft", "dead", "from t: in[1]@79"),
        ("Home", "results", "alarms[0]@3"),
        ("End", "dead", "alarms.dead[0]@9"),
    ]:
        shown.page.keyboard.press(key)
        shown.until(PANEL, words)
        assert shown.page.evaluate("document.activeElement.id") == f"rows-{kind}"
        assert shown.page.get_by_role("tab", selected=True).get_attribute("id") == f"rows-{kind}"
        assert shown.page.locator("[role=tab][tabindex='0']").count() == 1
        assert shown.page.locator(PANEL).get_attribute("aria-labelledby") == f"rows-{kind}"
    assert shown.errors == []


def test_hostile_values_are_text(opened_rows: OpenedRows) -> None:
    answers = Answers()
    origin = {"stream": HOSTILE, "topic": HOSTILE, "partition": None, "offset": None}
    text = {"text": HOSTILE, "hex": False, "bytes": len(HOSTILE), "cut": False}
    headers = [{"name": HOSTILE, "value": text}, {"name": "of", "value": None}]
    answers.rows["results"] = [row("results", 1, HOSTILE, key=HOSTILE, headers=headers)]
    answers.rows["dead"] = [
        row("dead", 1, HOSTILE, reason=HOSTILE, origin=origin),
        row("dead", 0, reason="constructor"),
    ]
    answers.more = {"note": HOSTILE}
    shown = opened_rows(answers)
    shown.page.locator("#rows").scroll_into_view_if_needed()
    shown.until(PANEL, f"header {HOSTILE}")
    shown.until(PANEL, "header of: none")
    shown.until("#rows .hint", HOSTILE)
    shown.tab("Dead letters")
    shown.until(PANEL, f"from {HOSTILE}: {HOSTILE}")
    shown.until(PANEL, "constructor")
    assert shown.page.locator("main script, main img").count() == 0
    assert shown.page.title() != "gone"
    assert shown.errors == []


def test_a_row_is_copied_with_its_place(opened_rows: OpenedRows) -> None:
    shown = opened_rows(Answers())
    shown.look()
    shown.page.get_by_role("button", name="Copy alarms[2]@2").click()
    shown.until("#rows [role=status]", "Copied alarms[2]@2")
    assert shown.page.evaluate("navigator.clipboard.readText()") == 'alarms[2]@2 {"n": 2}'
    assert shown.errors == []


def test_a_row_is_copied_without_a_clipboard_of_its_own(opened_rows: OpenedRows) -> None:
    """A page that another machine serves over http has no `navigator.clipboard`."""
    shown = opened_rows(Answers())
    shown.page.evaluate("Object.defineProperty(navigator, 'kept', { value: navigator.clipboard })")
    shown.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    shown.look()
    button = shown.page.get_by_role("button", name="Copy alarms[2]@2")
    button.focus()
    shown.page.keyboard.press("Enter")
    shown.until("#rows [role=status]", "Copied alarms[2]@2")
    assert shown.page.evaluate("navigator.kept.readText()") == 'alarms[2]@2 {"n": 2}'
    assert shown.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Copy alarms[2]@2"
    assert shown.page.locator("textarea").count() == 0
    assert shown.errors == []


def test_hidden_values_are_said_to_be_hidden(opened_rows: OpenedRows) -> None:
    answers = Answers()
    for rows in answers.rows.values():
        for one in rows:
            del one["key"], one["value"]
    answers.more = {"hidden": True}
    shown = opened_rows(answers)
    shown.look()
    shown.until("#rows .hint", "Values and keys are hidden by --hide-values.")
    assert [cells[2] for cells in shown.cells()] == ["hidden by --hide-values"] * 3
    shown.page.get_by_role("button", name="Copy alarms[2]@2").click()
    shown.until("#rows [role=status]", "Copied alarms[2]@2")
    assert shown.page.evaluate("navigator.clipboard.readText()") == "alarms[2]@2"
    shown.keep("hidden")
    assert shown.errors == []


def test_what_is_missing_or_not_read_in_time_is_said(opened_rows: OpenedRows) -> None:
    answers = Answers()
    answers.more = {"complete": False}
    shown = opened_rows(answers)
    shown.look()
    shown.until("#rows .hint", "Not all was read in time")
    answers.more, answers.rows["results"] = {"note": "there is no topic 'alarms' yet"}, []
    shown.refresh()
    shown.until("#rows .hint", "there is no topic 'alarms' yet")
    shown.until("#rows [role=status]", "there is no topic 'alarms' yet")
    assert shown.page.locator(PANEL).is_hidden()
    answers.more = {}
    shown.refresh()
    shown.until("#rows .hint", "Topic alarms has no records.")
    assert shown.errors == []


def test_a_read_that_fails_is_told_and_the_rows_stay(opened_rows: OpenedRows) -> None:
    shown = opened_rows(Answers())
    shown.look()
    shown.page.route("**/rows?*", lambda route: route.abort())
    shown.refresh()
    shown.until("#rows .hint", "The records could not be read: ")
    assert len(shown.cells()) == 3


def test_nothing_jumps_when_rows_are_refreshed(opened_rows: OpenedRows) -> None:
    answers = Answers()
    long = json.dumps({"text": "words " * 100})
    answers.rows["results"] = [row("results", n, long if n % 5 == 0 else None) for n in range(49, -1, -1)]
    shown = opened_rows(answers)
    shown.look()
    button = shown.page.get_by_role("button", name="More").nth(2)
    button.click()
    place = "document.activeElement.getBoundingClientRect().top"
    below = "document.getElementById('text-title').getBoundingClientRect().top + scrollY"
    assert shown.page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    before = shown.page.evaluate(place), shown.page.evaluate(below)
    answers.rows["results"] = [row("results", n, long if n % 5 == 0 else None) for n in range(59, 9, -1)]
    shown.until(PANEL, "alarms[2]@59")
    after = shown.page.evaluate(place), shown.page.evaluate(below)
    assert after == pytest.approx(before, abs=1)
    assert shown.page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert [cells[1] for cells in shown.cells()] == [f"alarms[{n % 3}]@{n}" for n in range(59, 9, -1)]
    answers.rows["results"] = [row("results", 60)]
    shown.refresh()
    shown.until(PANEL, "alarms[0]@60")
    assert len(shown.cells()) == 1
    assert shown.errors == []


def test_the_focus_stays_at_the_rows_when_its_row_goes(opened_rows: OpenedRows) -> None:
    shown = opened_rows(Answers())
    shown.look()
    shown.page.get_by_role("button", name="Copy alarms[1]@1").focus()
    shown.answers.rows["results"] = [row("results", 4)]
    shown.until(PANEL, "alarms[1]@4")
    assert shown.page.evaluate("document.activeElement.id") == "rows-panel"


@pytest.mark.parametrize("kind", ["Results", "Dead letters"])
def test_a_narrow_screen_does_not_overflow(opened_rows: OpenedRows, kind: str) -> None:
    answers = Answers()
    endless = {"stream": "s" * 100, "topic": "o" * 200, "partition": 123, "offset": 10**15}
    for name, rows in answers.rows.items():
        rows.insert(0, row(name, 9, "x" * 2000, key="k" * 300, topic="t" * 249))
        if name != "results":
            rows[0] |= {"reason": "r" * 500, "origin": endless}
    shown = opened_rows(answers, viewport={"width": 320, "height": 700})
    shown.look()
    shown.tab(kind)
    shown.until(PANEL, "tttt")
    shown.page.get_by_role("button", name="More").last.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 320
    assert (
        shown.page.evaluate("(panel => panel.scrollWidth - panel.clientWidth)(document.querySelector('#rows-panel'))")
        <= 0
    )
    shown.keep(f"narrow-{kind}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing(opened_rows: OpenedRows, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    answers = Answers()
    answers.rows["late"].insert(0, row("late", 9, "x" * 500, key="k"))
    shown = opened_rows(answers, color_scheme=scheme, viewport={"width": width, "height": 800})
    shown.look()
    shown.tab("Late")
    shown.until(PANEL, "late: behind the watermark")
    shown.keep(f"late-{scheme}-{width}")
    found = Axe().run(shown.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
