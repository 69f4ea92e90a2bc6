"""Log lines: one per event, in either form."""

from __future__ import annotations

import json
import logging

from services.logs import LineFormatter


def record(message: str, **fields: object) -> logging.LogRecord:
    """A record as `Log` makes it."""
    made = logging.LogRecord("weir.task", logging.WARNING, "", 0, "%s", (message,), None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    made.fields = fields
    return made


def test_json() -> None:
    line = LineFormatter(as_json=True).format(record("two\nlines", task=3, reason='a "b"', seconds=1 / 3))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "weir.task",
        "message": "two\nlines",
        "task": 3,
        "reason": 'a "b"',
        "seconds": 0.333333,
    }


def test_text() -> None:
    line = LineFormatter(as_json=False).format(record("two\nlines", task=3, reason='a "b"', empty=""))
    assert line == '2023-11-14T22:13:20.250Z warning weir.task: two\\nlines task=3 reason="a \\"b\\"" empty=""'
