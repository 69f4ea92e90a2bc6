"""The page in a real browser: Debian's Chromium, driven by Playwright.

`make browser` installs Chromium. With WEIR_SCREENSHOTS=FOLDER each test leaves a picture there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from operators.engine.engine import Engine
from operators.plan.choose import declared_statistics
from services.ui.picture import picture
from services.ui.server import PageServer
from tests.operators.tiny import chain
from tests.services.ui.running import Running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make browser` installs it"),
]

BESIDE_OTHERS = 8
"""Other tests run on the same cores, so that times may be so many times as long."""

HOSTILE = "<script>document.title='gone'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, since root may not have one; the page is ours.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@dataclass
class Shown:
    """A page that shows a running query.

    Attributes:
        errors: what the browser has complained about.
    """

    page: Any
    running: Running
    errors: list[str]

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def until(self, selector: str, words: str) -> None:
        """Wait until an element has some words."""
        self.page.locator(selector).filter(has_text=words).first.wait_for(timeout=10_000)

    def keep(self, name: str) -> None:
        """Keep a screenshot, if that is asked for."""
        if folder := os.environ.get("WEIR_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


Opened = Callable[..., Shown]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens the page of a query, with the settings of a browser's context."""
    closing: list[Any] = []

    def open_page(running: Running, **context: Any) -> Shown:
        expected = declared_statistics(running.query)
        server = PageServer(
            "127.0.0.1", 0, lambda: picture(running.query, running.live.snapshot(), expected), running.live.timeline
        )
        made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        page, errors = made.new_page(), list[str]()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.address)
        page.locator("#query").filter(has_text=running.query.name).wait_for(timeout=10_000)
        closing.extend([lambda: server.__exit__(None, None, None), made.close])
        return Shown(page, running, errors)

    yield open_page
    for close in reversed(closing):
        close()


def star(seconds: int = 20, tasks: int = 2) -> Running:
    running = Running(tasks)
    for _ in range(seconds):
        running.second()
    return running


def test_it_shows_the_headline_the_plan_tasks_and_charts(opened: Opened) -> None:
    shown = opened(star())
    assert shown.text("h1").startswith("Final up to ")
    assert shown.page.locator("g.node").count() == 7
    assert shown.page.locator("path.edge").count() == 7
    assert shown.page.locator("#tasks tbody tr").count() == 2
    shown.until("#chart-rates p", "now 16 k/s")
    assert shown.page.locator("#charts canvas").count() >= 6
    shown.keep("well")
    assert shown.errors == []


def test_what_happens_appears_by_itself(opened: Opened) -> None:
    shown = opened(star())
    running = shown.running
    running.decide(1, "it saves 90% of the work and has paid for the change")
    running.migrate("(((A D) C) B)")
    running.second()
    running.second(health={1: {"silent": [("humidity", 2, 41.0)]}})
    shown.until("#plans", "(((A D) C) B)")
    shown.until("#decisions", "Changed the plan")
    shown.until("#decisions", "it saves 90% of the work")
    shown.until("#migrations", "Plan change by jisc")
    for _ in range(8):
        running.second(tasks={0})
    shown.until("h1", "held by task 1, which no worker runs")
    assert shown.page.locator("h1").get_attribute("data-tone") == "ill"
    shown.keep("dead-worker")
    assert shown.errors == []


def test_a_silent_partition_is_named(opened: Opened) -> None:
    running = star()
    running.second(health={0: {"silent": [("humidity", 2, 41.0)]}})
    shown = opened(running)
    shown.until("h1", "held by humidity partition 2, silent for 41.0 s")
    shown.keep("silent")


def test_a_node_is_chosen_by_keyboard_and_stays_chosen(opened: Opened) -> None:
    shown = opened(star())
    shown.page.locator('g.node[data-id="((A B) C)"]').focus()
    shown.page.keyboard.press("Enter")
    shown.until("#node", "A.v = C.k")
    shown.until("#node", "Selectivity")
    shown.running.second()
    time.sleep(1.5)
    assert shown.page.locator('g.node[data-id="((A B) C)"]').get_attribute("aria-pressed") == "true"
    assert shown.page.evaluate("document.activeElement.dataset.id") == "((A B) C)"
    shown.page.keyboard.press("Enter")
    assert shown.page.locator("#node").is_hidden()


def test_hostile_values_are_text(opened: Opened) -> None:
    running = star()
    running.decide(1, HOSTILE)
    running.second(health={0: {"problem": HOSTILE}})
    shown = opened(running)
    shown.until("h1", HOSTILE)
    shown.until("#decisions", HOSTILE)
    assert shown.page.locator("main script, main img, header script").count() == 0
    assert shown.page.title() != "gone"
    assert shown.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_narrow_and_wide_screens_in_light_and_dark(opened: Opened, scheme: str, width: int) -> None:
    shown = opened(star(), color_scheme=scheme, viewport={"width": width, "height": 800})
    shown.until("#chart-rates p", "now")
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    red = int(shown.page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")
    shown.keep(f"{scheme}-{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Opened, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    running = star()
    running.decide(1, "it saves 90% of the work")
    shown = opened(running, color_scheme=scheme)
    shown.page.locator('g.node[data-id="(A B)"]').click()
    found = Axe().run(shown.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_a_hundred_joins_open_in_a_second_and_stay_fluent(opened: Opened) -> None:
    running = Running(1)
    running.engines[0] = Engine(chain(101))
    running.query = running.engines[0].query
    running.live._name = running.query.name
    for _ in range(3):
        running.report(0)
        running.now_ms += 1000
    shown = opened(running)
    shown.page.locator("g.node").nth(200).wait_for(state="attached")
    loaded_ms = shown.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert loaded_ms < 1000 * BESIDE_OTHERS
    assert shown.page.locator("g.node").count() == 201
    drawn_ms = shown.page.evaluate(
        "new Promise(done => { let last = performance.now(), most = 0, n = 0; const tick = now => { most = "
        "Math.max(most, now - last); last = now; n++ < 150 ? requestAnimationFrame(tick) : done(most); }; "
        "requestAnimationFrame(tick); })"
    )
    assert drawn_ms < 250 * BESIDE_OTHERS
    shown.keep("hundred-joins")
