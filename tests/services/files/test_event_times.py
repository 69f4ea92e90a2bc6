"""Event times for people to read."""

from __future__ import annotations

from schemas.messages.control import Done, MemberRecord
from schemas.timestamps import format_progress
from services.commands.migrate import _line
from services.commands.query import _state


def test_what_has_passed_no_tuple_is_at_the_beginning() -> None:
    """It was in 1970."""
    assert format_progress(0) == "the beginning"
    assert format_progress(1_700_000_000_000) == "2023-11-14T22:13:20Z"


def test_commands_do_not_speak_of_1970() -> None:
    """A plan that changed, and a query that began, before the first tuple."""
    changed = _line(Done(id="x", task=0, version=1, began_at=0, finished_at=1_700_000_000_000))
    assert changed.startswith("task 0: changed at the beginning, done at 2023-11-14T22:13:20Z")
    assert _state([MemberRecord(task=0, name="q", id="x", text="", began=0)]) == "runs since the beginning"
