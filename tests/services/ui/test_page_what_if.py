"""The comparison of plans on the page, in a real browser; see test_page.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from operators.plan.plan import Join, parse_plan, postorder
from services.ui.documents.what_if import UNMEASURED
from tests.services.ui.pages import HOSTILE, IN_BROWSER, Opened, Shown, star
from tests.services.ui.running import BEGIN_MS, Running
from tests.services.ui.test_page_rows import Answers as Rows

pytestmark = IN_BROWSER

RUNNING, BEST, OWN = "(((A B) C) D)", "(((A D) C) B)", "((A B) (C D))"
COMMAND = f"weir migrate QUERY --bootstrap localhost:9092 --plan '{BEST}'"
NOTHING: dict[str, Any] = {"note": UNMEASURED, "at": None, "tasks": 0, "plans": [], "change": None}


class Answers:
    """What `/what-if` is answered with.

    Attributes:
        asked: what was asked for, in order.
        more: other parts of the document.
        held: while it is not set, an answer about a plan waits.
    """

    def __init__(self) -> None:
        self.running: Running = star()
        self.asked: list[Mapping[str, str]] = []
        self.more: dict[str, Any] = {}
        self.held = threading.Event()
        self.held.set()

    def row(self, text: str, relative: float, **marks: bool) -> dict[str, Any]:
        plan = parse_plan(text, self.running.query)
        joins = [{"join": str(node), "per_s": 1234.5} for node in postorder(plan) if isinstance(node, Join)]
        none = {"running": False, "former": False, "best": False, "asked": False}
        return {"plan": text, "relative": relative, "cores": 0.08 * relative, "joins": joins} | none | marks

    def document(self, given: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append(given)
        rows = [
            self.row(BEST, 0.42, best=True),
            self.row("(((A C) D) B)", 0.7, former=True),
            self.row(RUNNING, 1.0, running=True),
        ]
        if "plan" in given:
            parse_plan(given["plan"], self.running.query)
            self.held.wait(10)
            rows.append(self.row(given["plan"], 3.0, asked=True))
        change = {
            "plan": BEST,
            "saving": 0.58,
            "certain": True,
            "command": COMMAND,
            "strategy": "jisc",
            "reason": "least work of the 5",
            "silence_s": 0.012,
            "work_s": 0.31,
        }
        return {"note": "", "at": BEGIN_MS, "tasks": 2, "plans": rows, "change": change} | self.more


@dataclass
class WhatIfShown(Shown):
    """A page with this comparison."""

    answers: Answers = field(default_factory=Answers)

    def compare(self) -> WhatIfShown:
        self.page.get_by_role("button", name="Compare plans").click()
        return self

    def own(self, plan: str) -> None:
        """Ask for a plan by keyboard."""
        self.page.get_by_label("A plan of your own").fill(plan)
        self.page.keyboard.press("Enter")

    def says(self, words: str) -> None:
        self.page.locator("#what-if").filter(has_text=words).first.wait_for(timeout=15_000)

    def rows(self) -> list[str]:
        return [str(one.inner_text()) for one in self.page.locator("#what-if tbody tr").all()]

    def keep(self, name: str) -> None:
        """Keep a screenshot, if that is asked for."""
        if folder := os.environ.get("WEIR_SCREENSHOTS"):
            self.page.locator("#what-if").screenshot(path=str(Path(folder) / f"what-if-{name}.png"))


OpenedWhatIf = Callable[..., WhatIfShown]


@pytest.fixture
def opened_what_if(opened: Opened) -> OpenedWhatIf:
    def open_page(answers: Answers, **context: Any) -> WhatIfShown:
        allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
        asked = {"what-if": answers.document, "rows": Rows().document}
        shown = opened(answers.running, asked, **(allowed | context))
        return WhatIfShown(shown.page, shown.errors, shown.requests, shown.running, answers)

    return open_page


def test_plans_are_compared_when_somebody_asks(opened_what_if: OpenedWhatIf) -> None:
    shown = opened_what_if(Answers())
    assert shown.page.locator("#what-if table").count() == 0
    assert shown.answers.asked == []
    shown.compare().says("As measured at 2026-11-29 12:00:00 in 2 tasks.")
    best, other, running = shown.rows()
    assert best.startswith(f"Best found {BEST}")
    assert running.startswith(f"Runs now {RUNNING}")
    assert other.startswith("Ran before (((A C) D) B)")
    assert "0.42 × now" in best
    assert "3.36\xa0%" in best
    assert "(A D) 1.23 k/s" in best
    widths = [float(one.get_attribute("width")) for one in shown.page.locator("#what-if .bar rect").all()]
    assert widths == sorted(widths)
    assert shown.page.locator("#what-if td[title='0.42']").count() == 1
    shown.says("would save 58 % of the work. The change by jisc would hold results up for about 12 ms and take 310 ms")
    shown.answers.more = {"tasks": 1, "change": None}
    shown.page.get_by_role("button", name="Refresh comparison").click()
    shown.says("in one task.")
    shown.says("The running plan is the best one found.")
    assert shown.page.locator("#what-if").get_by_role("button", name="Copy").count() == 0
    shown.keep("well")
    assert shown.errors == []


def test_the_command_is_copied(opened_what_if: OpenedWhatIf) -> None:
    shown = opened_what_if(Answers()).compare()
    button = shown.page.get_by_role("button", name="Copy the command")
    button.focus()
    shown.page.keyboard.press("Enter")
    shown.says("Copied.")
    assert shown.page.evaluate("navigator.clipboard.readText()") == COMMAND
    shown.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    shown.page.evaluate("document.execCommand = () => false")
    button.click()
    shown.says("copy it yourself")
    assert shown.page.evaluate("getSelection().toString()") == COMMAND


def test_a_plan_of_ones_own_is_compared_by_keyboard_and_a_wrong_one_is_told(opened_what_if: OpenedWhatIf) -> None:
    shown = opened_what_if(Answers()).compare()
    field = shown.page.get_by_label("A plan of your own")
    field.wait_for()
    assert field.input_value() == RUNNING
    shown.own("((A B) (C X))")
    shown.says("unknown alias 'X'; the query has A, B, C, D")
    assert field.get_attribute("aria-invalid") == "true"
    shown.says("As measured")
    assert shown.page.evaluate("document.activeElement.id") == "what-if-plan"
    shown.keep("wrong")
    shown.errors.clear()  # the browser tells of each answer that is no success
    shown.own(OWN)
    shown.says(f"Yours {OWN}")
    assert field.get_attribute("aria-invalid") is None
    assert shown.page.locator("#what-if-wrong").inner_text() == ""
    assert len(shown.rows()) == 4
    shown.page.get_by_role("button", name="Refresh comparison").click()
    shown.says("As measured")
    assert [given.get("plan") for given in shown.answers.asked] == [None, "((A B) (C X))", OWN, OWN]
    assert shown.errors == []


def test_an_answer_that_a_later_one_has_overtaken_is_not_shown(opened_what_if: OpenedWhatIf) -> None:
    shown = opened_what_if(Answers()).compare()
    shown.says("As measured")
    shown.answers.held.clear()
    shown.own(OWN)
    shown.page.get_by_label("A plan of your own").fill("")
    shown.page.keyboard.press("Enter")
    shown.says("As measured")
    with shown.page.expect_response(lambda answer: "plan=" in answer.url):
        shown.answers.held.set()
    assert len(shown.rows()) == 3


def test_what_is_not_certain_is_told(opened_what_if: OpenedWhatIf) -> None:
    answers = Answers()
    change = answers.document({})["change"]
    answers.more = {"change": change | {"certain": False, "saving": 0.03, "strategy": None}}
    shown = opened_what_if(answers).compare()
    shown.says("would save 3 % of the work, which is within the error of the estimates.")
    assert "hold results up" not in shown.page.locator("#what-if").inner_text()


def test_where_nothing_was_measured_it_says_what_to_do(opened_what_if: OpenedWhatIf) -> None:
    answers = Answers()
    answers.more = NOTHING
    shown = opened_what_if(answers).compare()
    shown.says("run the workers with --adapt")
    assert shown.page.locator("#what-if table").is_hidden()
    assert shown.page.get_by_label("A plan of your own").is_hidden()
    answers.more = {"change": None}
    shown.page.get_by_role("button", name="Refresh comparison").click()
    shown.says("The running plan is the best one found.")
    assert shown.errors == []


def test_values_are_text(opened_what_if: OpenedWhatIf) -> None:
    answers = Answers()
    change = answers.document({})["change"]
    answers.more = {"change": change | {"reason": HOSTILE, "command": HOSTILE}}
    shown = opened_what_if(answers).compare()
    shown.says(HOSTILE)
    assert shown.page.locator("main script, main img").count() == 0
    assert shown.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_the_screen_and_axe_finds_nothing(opened_what_if: OpenedWhatIf, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = opened_what_if(Answers(), color_scheme=scheme, viewport={"width": width, "height": 800}).compare()
    shown.says("As measured")
    shown.own("((A B) (C X))")
    shown.says("unknown alias")
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(shown.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    shown.keep(f"{scheme}-{width}")
