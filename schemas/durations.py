"""Parses and writes durations: `250ms`, `5m` in options, `250 MILLISECONDS`, `5 MINUTES` in queries.

Every duration is a whole number of milliseconds. Limit: 2**53 ms (285,616 years), so that an event time
plus a duration always fits int64.
"""

from __future__ import annotations

import re
from decimal import Decimal

from schemas.errors import UsageError

MAX_DURATION_MS = 2**53

_UNIT_MS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1000, "millisecond": 1}
_OTHER_NAMES = {
    **{f"{unit}s": unit for unit in _UNIT_MS},
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
_DURATION = re.compile(r"\s*([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))\s*([A-Za-z]+)\s*")
_ACCEPTED = "a number and a unit, such as 250ms, 1s, 5m, 2h, 1d or 5 MINUTES"


def parse_duration(text: str) -> int:
    """Milliseconds of a duration written in either form; 0 is accepted, a negative one is not.

    Raises:
        UsageError: not a duration, not a whole number of milliseconds, negative or too long.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"a duration is {_ACCEPTED}; got {text!r}")
    ms = duration_ms(match[1], match[2])
    if ms < 0:
        raise UsageError(f"a duration is not negative; got {text!r}")
    return ms


def duration_ms(number: str, unit: str) -> int:
    """Milliseconds of `number` (a decimal numeral, maybe signed) in `unit` (short or long, any case).

    Raises:
        UsageError: an unknown unit, a fraction of a millisecond, more than `MAX_DURATION_MS`, or an exponent that
            Decimal cannot represent.
    """
    folded = unit.lower()
    size = _UNIT_MS.get(_OTHER_NAMES.get(folded, folded))
    if size is None:
        raise UsageError(f"unknown unit {unit!r}; a duration is {_ACCEPTED}")
    # Decimal rounds at 28 digits, so refuse what is far too long before multiplying.
    try:
        amount = Decimal(number)
        too_long = abs(amount) > MAX_DURATION_MS or abs(amount * size) > MAX_DURATION_MS
    except ArithmeticError:
        raise UsageError(f"a duration has no exponent of so many digits; got {number} {unit}") from None
    if too_long:
        days = MAX_DURATION_MS // _UNIT_MS["day"]
        raise UsageError(f"a duration is at most {days} DAYS; got {number} {unit}")
    ms = amount * size
    if ms != int(ms):
        raise UsageError(f"a duration is a whole number of milliseconds; got {number} {unit}")
    return int(ms)


def format_duration(ms: int) -> str:
    """The duration as the language writes it, in the largest unit that it is a multiple of: `5 MINUTES`."""
    unit, length = next((unit, length) for unit, length in _UNIT_MS.items() if ms % length == 0)
    count = ms // length
    return f"{count} {unit.upper()}{'' if count == 1 else 'S'}"
