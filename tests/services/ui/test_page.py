"""The page of a query in a real browser."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import asdict

import pytest

from operators.data.statistics import SpillStatistics
from operators.engine.engine import Engine
from operators.plan.choose import declared_statistics
from services.ui.documents.picture import picture
from tests.operators.tiny import chain
from tests.services.ui.pages import BESIDE_OTHERS, HOSTILE, IN_BROWSER, Opened, star
from tests.services.ui.running import BEGIN_MS, Running

pytestmark = IN_BROWSER

LONGEST_FRAME_MS = """new Promise(done => {
  let last = performance.now(), most = 0, n = 0;
  const tick = now => {
    most = Math.max(most, now - last);
    last = now;
    n++ < 150 ? requestAnimationFrame(tick) : done(most);
  };
  requestAnimationFrame(tick);
})"""
"""Over the time in which two or three events come."""


def test_it_shows_the_headline_the_plan_tasks_and_charts(opened: Opened) -> None:
    shown = opened(star())
    assert shown.text("h1").startswith("Final up to ")
    assert shown.page.locator("g.node").count() == 7
    assert shown.page.locator("path.edge").count() == 7
    assert shown.page.locator("#tasks tbody tr").count() == 2
    shown.until("#chart-rates p", "now 16 k/s, usually 16 k/s, at most 16 k/s")
    assert shown.page.locator("#charts canvas").count() >= 6
    shown.keep("well")
    assert shown.errors == []


def test_what_is_usual_is_what_was_before_nothing_became_final(opened: Opened) -> None:
    """A reader who came a minute after the trouble was told that no results are usual."""
    shown = opened(star())
    shown.until("#chart-rates p", ", usually ")
    assert "until" not in shown.text("#chart-rates p")
    usual = shown.text("#chart-rates p").split(", usually ")[1]
    for _ in range(30):
        shown.running.second(silent=True)
    shown.until("#chart-rates p", "now 0/s, usually until 12:00:")
    assert shown.text("#chart-rates p").endswith(usual)


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


def test_what_happened_is_told_in_a_list_and_at_the_charts(opened: Opened) -> None:
    running = star()
    running.second(health={1: {"problem": "disk full", "since": "2026-11-29T12:00:20Z"}})
    running.report(1, incarnation="b")
    running.decide(1, "it saves 90% of the work")
    running.decide(2, "it would not pay", made=False)
    running.migrate("(((A D) C) B)")
    for _ in range(5):
        running.second()
    shown = opened(running)
    shown.until("#happened", "F 2026-11-29 12:00:20 Failure: Task 1 on worker-1 failed: disk full")
    shown.until("#happened", "R 2026-11-29 12:00:21 Restart: Task 1 started again on worker-1")
    shown.until("#happened", "Plan change: to (((A D) C) B) by jisc")
    shown.until("#happened", "Decision to keep the plan: (((A B) C) D) instead of (((A D) C) B): it would not pay")
    texts = shown.page.locator("#happened li").all_inner_texts()
    assert sorted(text[0] for text in texts if not text.startswith("R")) == ["D", "F", "K", "P"]
    said = shown.page.locator("#chart-rates .said")
    assert said.is_hidden()
    shown.page.locator("#chart-pending").focus()
    shown.page.keyboard.press("Shift+Tab")
    shown.page.keyboard.press("Tab")
    told = shown.page.locator("#chart-pending .said")
    first = told.inner_text()
    shown.page.keyboard.press("ArrowLeft")
    assert told.inner_text() != first
    assert "arrow keys show others" in told.inner_text()
    shown.keep("marks")
    assert shown.errors == []


def test_the_mouse_near_a_mark_is_told_what_happened(opened: Opened) -> None:
    running = star()
    running.second(health={1: {"problem": "disk full", "since": "2026-11-29T12:00:20Z"}})
    for _ in range(5):
        running.second()
    shown = opened(running)
    shown.until("#happened", "Failure")
    # Of so short a history a minute is shown, and the failure is some seconds before its end.
    shown.page.locator("#chart-rates").scroll_into_view_if_needed()
    area = shown.page.locator("#chart-rates .u-over").bounding_box()
    last_s = shown.page.locator("#past-at").get_attribute("max")
    left = area["width"] * (1 - (int(last_s) - BEGIN_MS // 1000 - 20) / 60)
    shown.page.mouse.move(area["x"] + left - 2, area["y"] + 60)
    shown.until("#chart-rates .said", "F 2026-11-29 12:00:20 Failure: Task 1 on worker-1 failed: disk full")
    assert shown.page.locator("#chart-results .said").is_hidden()
    shown.page.mouse.move(area["x"] + 10, area["y"] + 60)
    shown.page.locator("#chart-rates .said").wait_for(state="hidden", timeout=10_000)
    assert shown.errors == []


def test_joins_have_a_line_each_and_memory_only_with_a_budget(opened: Opened) -> None:
    running = star(10)
    shown = opened(running)
    shown.until("#chart-joins .key", "((A B) C)")
    assert shown.page.locator("#chart-joins .key li:visible").count() == 3
    assert shown.page.locator("#chart-memory").count() == 0
    for number in range(6):
        running.second()
        running.report(0, spill=asdict(SpillStatistics("lazy", 8 << 20, used_bytes=number << 20, on_disk_tuples=9)))
    shown.until("#chart-memory .key", "budget 8 MiB")
    shown.keep("budget")
    assert shown.errors == []


def test_nodes_show_feedback_and_how_complete_states_are(opened: Opened) -> None:
    running = star()
    running.migrate("(((A D) C) B)", "parallel-track")
    running.engines[0].advance(running.engines[0].cut + 1)
    edge = {"consumer": "((A D) C)", "producer": "(A D)", "watching": False, "kept_back": 5, "suppressed": 40_000}
    running.report(0, feedback=[edge | {"saved_bytes": 1 << 20}])
    shown = opened(running)
    node = shown.page.locator('g.node[data-id="((A D) C)"]')
    assert "◐ left 0 %, right 0 %" in node.text_content()
    assert node.locator("rect.whole").count() == 2
    producer = shown.page.locator('g.node[data-id="(A D)"]')
    assert "‖ 5 kept" in producer.text_content()
    producer.click()
    shown.until("#node", "from ((A D) C): 5 tuples kept back now, about 40 k results not made")
    shown.until("#node", "saved 1 MiB of state")
    shown.until("#node", "it rests now")
    shown.until("#node", "Partition groups in memory")
    shown.keep("states")
    assert shown.errors == []


def test_a_task_that_reads_more_than_its_share_is_marked(opened: Opened) -> None:
    running = Running(3)
    running.second()
    for number, more in enumerate((100, 100, 1800)):
        read = running.engines[number].statistics().input_tuples
        running.report(number, input_tuples=read + more)
    shown = opened(running)
    shown.until("#tasks tbody tr:nth-child(3)", "90 %, 2.7 × an even share")
    assert "×" not in shown.text("#tasks tbody tr:nth-child(1)")
    assert shown.errors == []


def test_a_silent_partition_is_named(opened: Opened) -> None:
    running = star()
    topic = running.query.source("A").stream.topic
    waits = f"held back by {topic}[2]"
    for _ in range(3):  # the history shows seconds that are over
        running.second(health={0: {"silent": [(topic, 2, 41.0)], "waits_for": waits}})
    shown = opened(running)
    shown.until("h1", f"held by {topic} partition 2, silent for 41.0 s")
    shown.until("#advice", "idle_timeout")
    shown.until('g.node[data-id="A"]', "partition 2 silent")
    shown.until("#tasks tbody", "waits")
    shown.until("#happened", f"Results of task 0 wait for {topic} partition 2, silent since ")
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
    running.second(health={0: {"problem": HOSTILE, "since": "now"}})
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
    running = star()
    running.decide(1, "it saves 90% of the work")
    shown = opened(running, color_scheme=scheme)
    shown.page.locator('g.node[data-id="(A B)"]').click()
    assert shown.problems() == []


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
    assert shown.page.evaluate(LONGEST_FRAME_MS) < 250 * BESIDE_OTHERS
    shown.keep("hundred-joins")


def test_two_hundred_tasks_stay_fluent_and_take_little_of_the_network(opened: Opened) -> None:
    running = star(3, tasks=1)
    running.engines *= 200
    for _ in range(3):
        for number in range(200):
            running.report(number)
        running.now_ms += 1000
    shown = opened(running)
    assert shown.page.locator("#tasks tbody tr").count() == 200
    assert shown.page.evaluate(LONGEST_FRAME_MS) < 250 * BESIDE_OTHERS
    packer, sizes = zlib.compressobj(1, wbits=31), list[int]()
    expected = declared_statistics(running.query)
    for _ in range(5):
        for number in range(200):
            running.report(number)
        running.now_ms += 1000
        event = json.dumps(picture(running.query, running.live.snapshot(), expected)).encode()
        sizes.append(len(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)))
    assert max(sizes[1:]) < 20_000, "bytes of an event as it is sent"
