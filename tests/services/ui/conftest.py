"""Fixtures of tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from services.ui.server import Answer
from tests.services.ui.pages import CHROMIUM, Opened, Shown, Visit, serving
from tests.services.ui.running import Running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, since root may not have one; the page is ours.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    contexts: list[Any] = []

    def open_address(address: str, **context: Any) -> Shown:
        made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        contexts.append(made)
        page, errors, requests = made.new_page(), list[str](), list[str]()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return Shown(page, errors, requests)

    yield open_address
    for made in contexts:
        made.close()


@pytest.fixture
def opened(visit: Visit) -> Iterator[Opened]:
    with ExitStack() as servers:

        def open_page(running: Running, answers: Mapping[str, Answer] | None = None, **context: Any) -> Shown:
            shown = visit(servers.enter_context(serving(running, answers)).address, **context)
            shown.until("#query", running.query.name)
            shown.running = running
            return shown

        yield open_page
