"""The page of a group of queries, in a real browser: what they share, how they come and go, and changes by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from schemas.errors import UsageError
from tests.services.ui.pages import IN_BROWSER, Visit, serving
from tests.services.ui.running import BEGIN_MS, RunningGroup

pytestmark = IN_BROWSER


def started() -> RunningGroup:
    running = RunningGroup()
    for _ in range(6):
        running.second()
    return running


def test_streams_operators_and_queries_are_drawn(visit: Visit) -> None:
    running = started()
    with serving(running) as server:
        shown = visit(server.address)
        shown.until("#query", "g")
        assert shown.page.locator("g.node").count() == 2 + 2 + 3
        assert shown.page.locator("path.edge").count() == 2 * 2 + 3
        shared = shown.page.locator("g.node", has_text="shared by 2 queries")
        shared.focus()
        shown.page.keyboard.press("Enter")
        shown.until("#node", "near, wide")
        shown.until("#node pre", "operator over L, R, shared by 2 queries")
        assert shown.page.locator("#what-if").is_hidden()
        assert shown.page.locator("#rows").is_hidden()
        assert shown.problems() == []
        shown.keep("group")
        assert shown.errors == []


def test_last_records_are_those_of_the_chosen_query(visit: Visit) -> None:
    running = started()
    asked: list[Mapping[str, str]] = []

    def rows(given: Mapping[str, str]) -> dict[str, object]:
        asked.append(dict(given))
        topic = given.get("query", f"g.{given['kind']}")
        text = f'{{"of": "{topic}"}}'
        value = {"text": text, "hex": False, "bytes": len(text), "cut": False}
        found = {"topic": topic, "partition": 0, "offset": 7, "time": BEGIN_MS, "key": None, "value": value}
        if given["kind"] != "results":
            found |= {"reason": "late", "origin": None}
        return {"kind": given["kind"], "topic": topic, "complete": True, "hidden": False, "note": "", "rows": [found]}

    with serving(running, {"rows": rows}) as server:
        shown = visit(server.address)
        shown.until("#query", "g")
        shown.page.locator("#rows").scroll_into_view_if_needed()
        chooser = shown.page.get_by_label("of query")
        first, second = chooser.locator("option").all_inner_texts()[:2]
        shown.until("#rows-panel", f"{first}[0]@7")
        chooser.select_option(second)
        shown.until("#rows-panel", f"{second}[0]@7")
        assert shown.problems() == []
        shown.keep("group-rows")
        shown.page.get_by_role("tab", name="Late").click()
        shown.until("#rows-panel", "g.late[0]@7")
        assert chooser.is_hidden()
        assert "query" not in asked[-1]
        shown.page.get_by_role("tab", name="Results").click()
        shown.until("#rows-panel", f"{second}[0]@7")
        running.drop(second)
        running.second()
        running.second()
        shown.until("#rows-panel", f"{first}[0]@7")
        assert shown.errors == []


def test_queries_come_and_go(visit: Visit) -> None:
    running = started()
    with serving(running) as server:
        shown = visit(server.address)
        shown.until("g.node", "near")
        running.registered["last"] = running.all["last"]
        running.second()
        shown.until('g.node[data-id="query last"]', "does not run")
        running.add("last")
        running.drop("near")
        running.second()
        running.second()
        shown.until('g.node[data-id="query last"]', "/s")
        shown.page.locator('g.node[data-id="query near"]').wait_for(state="detached", timeout=15_000)
        assert shown.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(visit: Visit, scheme: str) -> None:
    with serving(started()) as server:
        shown = visit(server.address, color_scheme=scheme, viewport={"width": 360, "height": 800})
        shown.until("#chart-rates p", "now")
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360
        assert shown.problems() == []
        shown.keep(f"group-{scheme}-360")


def test_a_query_is_dropped_with_the_token_of_the_address(visit: Visit) -> None:
    running = started()

    def drop(given: Mapping[str, str]) -> dict[str, str]:
        if given["query"] == "lone":
            raise UsageError("lone stays")
        running.drop(given["query"])
        return {"said": f"Dropped {given['query']}"}

    with serving(running, changes={"drop": drop}) as server:
        shown = visit(server.address)
        shown.until("#query", "g")
        assert "token" not in shown.page.url
        form = shown.page.get_by_role("form", name="Drop a query")
        form.get_by_label("Query").select_option("near")
        form.get_by_role("button").click()
        shown.until("form [role=status]", "Dropped near")
        form.get_by_label("Query").select_option("lone")
        form.get_by_role("button").click()
        shown.until("form [role=status]", "Not done: lone stays")
        assert shown.problems() == []
        shown.keep("change")
        other = visit(server.address.partition("#")[0])
        other.until("#changes", "open the address with the token")
        assert other.page.locator("form").count() == 0
