"""A real browser for tests of the page: Debian's Chromium, driven by Playwright. The fixtures are in conftest.py.

`make browser` installs Chromium. With WEIR_SCREENSHOTS=FOLDER tests leave pictures there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from operators.plan.choose import declared_statistics
from services.ui.documents.group_picture import explained, group_picture
from services.ui.documents.picture import Document, NodeWords, picture
from services.ui.options import PageOptions
from services.ui.serve import page_of, serve_page
from services.ui.server import Answer, PageServer
from tests.services.ui.running import Running, RunningGroup

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make browser` installs it")

IN_BROWSER = [pytest.mark.deep, NEEDS_CHROMIUM]
"""The marks of tests that need a browser."""

BESIDE_OTHERS = 8
"""Other tests run on the same cores, so that times may be so many times as long."""

HOSTILE = "<script>document.title='gone'</script><img src=x onerror=alert(1)>"


@dataclass
class Shown:
    """A page in the browser.

    Attributes:
        errors: what the browser has complained about.
        requests: what the page has loaded.
        running: what it shows; None where the test serves it.
    """

    page: Any
    errors: list[str]
    requests: list[str]
    running: Any = None

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def until(self, selector: str, words: str) -> None:
        """Wait until an element has some words."""
        self.page.locator(selector).filter(has_text=words).first.wait_for(timeout=15_000)

    def keep(self, name: str) -> None:
        """Keep a screenshot, if that is asked for."""
        if folder := os.environ.get("WEIR_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)

    def problems(self) -> list[tuple[str, str]]:
        """What Axe finds wrong for people who do not see or do not use a mouse."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]


Visit = Callable[..., Shown]
"""Opens an address in a context of its own: `visit(address, color_scheme="dark")`."""

Opened = Callable[..., Shown]
"""Serves and opens the page of what runs in this process: `opened(running, answers, color_scheme="dark")`."""


def star(seconds: int = 20, tasks: int = 2) -> Running:
    """A query that has run for a while."""
    running = Running(tasks)
    for _ in range(seconds):
        running.second()
    return running


def serving(
    running: Running | RunningGroup,
    answers: Mapping[str, Answer] | None = None,
    changes: Mapping[str, Answer] | None = None,
) -> PageServer:
    """Serve the page of what runs in this process."""
    more = dict(answers or {})
    if isinstance(running, Running):
        expected = declared_statistics(running.query)
        words = NodeWords(running.query)
        draw: Callable[[Any], Document] = lambda snapshot: picture(running.query, snapshot, expected, words)  # noqa: E731
    else:
        draw = lambda snapshot: group_picture("g", running.registered, snapshot)  # noqa: E731
        more["operator"] = lambda given: {
            "text": explained(given["query"], running.registered, running.live.snapshot())
        }
    return serve_page(page_of(running.live, draw, more, changes or {}), PageOptions(changes=bool(changes)))
