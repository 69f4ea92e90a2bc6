"""Durations in options: `250ms`, `1s`, `5m`, `2h`, `1d`."""

from __future__ import annotations

import pytest

from schemas.durations import MAX_DURATION_MS, duration_ms, format_duration, parse_duration
from schemas.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("1s", 1000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
        ("1.5s", 1500),
        (".5 s", 500),
        (" 5 MINUTES ", 300_000),
        ("1 minute", 60_000),
        ("6sec", 6000),
        (f"{MAX_DURATION_MS}ms", MAX_DURATION_MS),
    ],
)
def test_accepted(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "a duration is a number and a unit, such as 250ms"),
        ("5", "got '5'"),
        ("ms", "got 'ms'"),
        ("5 fortnights", "unknown unit 'fortnights'"),
        ("5m 3s", "got '5m 3s'"),
        ("-1s", "not negative; got '-1s'"),
        ("0.5ms", "whole number of milliseconds; got 0.5 ms"),
        (f"{MAX_DURATION_MS + 1}ms", "at most 104249991 DAYS"),
        ("9" * 10_000 + "d", "at most 104249991 DAYS"),
        ("nan s", "got 'nan s'"),
        ("٣s", "got '٣s'"),
    ],
)
def test_refused(text: str, piece: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert piece in str(caught.value)


def test_a_sign_is_for_windows_to_judge() -> None:
    assert duration_ms("-5", "SECONDS") == -5000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (1, "1 MILLISECOND"),
        (1500, "1500 MILLISECONDS"),
        (60_000, "1 MINUTE"),
        (90_000, "90 SECONDS"),
        (10_800_000, "3 HOURS"),
        (172_800_000, "2 DAYS"),
    ],
)
def test_written_in_the_largest_unit(ms: int, text: str) -> None:
    assert format_duration(ms) == text
    assert parse_duration(text) == ms
