"""Going back in time on the page, in a real browser."""

from __future__ import annotations

from tests.services.ui.pages import IN_BROWSER, Visit, serving
from tests.services.ui.running import Running

pytestmark = IN_BROWSER


def test_the_slider_shows_the_plan_and_its_numbers_as_they_were(visit: Visit) -> None:
    running = Running()
    for _ in range(45):
        running.second()
    running.migrate("(((A D) C) B)")
    for _ in range(45):
        running.second()
    with serving(running) as server:
        shown = visit(server.address)
        shown.until("#plans", "(((A D) C) B)")
        slider = shown.page.get_by_label("Go back in time")
        slider.focus()
        for _ in range(50):
            shown.page.keyboard.press("ArrowLeft")
        shown.until("#plans", "(((A B) C) D)")
        shown.until("#past output", "12:00:3")
        shown.until("#tasks-title ~ .then", "As the tasks had reported at 2026-11-29 12:00:3")
        column = shown.page.locator("#tasks th").all_inner_texts().index("Results")
        then = int(shown.page.locator("#tasks tbody td").nth(column).get_attribute("title"))
        assert 0 < then < running.engines[0].statistics().results
        shown.keep("past")
        running.second()
        shown.page.wait_for_timeout(1500)
        assert "(((A B) C) D)" in shown.text("#plans"), "new events do not bring the present back"
        shown.page.get_by_role("button", name="Back to now").click()
        shown.until("#plans", "(((A D) C) B)")
        assert shown.text("#past output") == "now"
        assert shown.problems() == []
        assert shown.errors == []
