"""Event times in options: milliseconds or ISO 8601, from 1970 on."""

from __future__ import annotations

import pytest

from schemas.timestamps import parse_event_time


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("86400000", 86_400_000),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:04.5Z", 4500),
        ("1970-01-01T01:00+01:00", 0),
    ],
)
def test_accepted(text: str, ms: int) -> None:
    assert parse_event_time(text) == ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not of the form YYYY-MM-DD"),
        ("soon", "'soon' is not of the form YYYY-MM-DD"),
        ("+5", "'+5' is not of the form"),
        ("5 ", "'5 ' is not of the form"),
        ("\u0665", "is not of the form"),
        ("1970-02-30", "'1970-02-30' is no date"),
        ("-5", "the event time '-5' is before 1970"),
        ("1969-12-31T23:59:59.999Z", "the event time '1969-12-31T23:59:59.999Z' is before 1970"),
        ("1970-01-01T00:59+01:00", "is before 1970"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        parse_event_time(text)
