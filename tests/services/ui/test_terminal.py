"""What `weir top` shows in a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

from operators.plan.choose import declared_statistics
from services.ui.terminal import group_screen, query_screen
from tests.services.ui.running import Running, RunningGroup


def text(screen: RenderableType) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(screen)
    return console.export_text()


def test_a_query_has_its_headline_its_plan_and_its_tasks() -> None:
    running = Running(2)
    for _ in range(4):
        running.second()
    running.second(health={1: {"problem": "disk full", "since": "12:00"}})
    found = text(query_screen(running.query, running.live.snapshot(), declared_statistics(running.query)))
    assert found.startswith("Final up to ")
    assert "held by task 1, which failed: disk full" in found
    assert "hash join (((A B) C) D)" in found
    assert re.search(r"^ +1 +running .* 25% .* disk full$", found, re.MULTILINE)


def test_a_group_has_its_queries_with_their_results() -> None:
    running = RunningGroup()
    for _ in range(4):
        running.second()
    found = text(group_screen(running.live.snapshot()))
    assert re.search(r"^near +juggler, shared +\S+ \S* *\d", found, re.MULTILINE)
    assert re.search(r"^lone +\w+ ", found, re.MULTILINE)
    assert re.search(r"^ +0 +running ", found, re.MULTILINE)
