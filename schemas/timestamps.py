"""Parses event times: int64 milliseconds since 1970-01-01T00:00:00Z.

One text form is accepted everywhere (records, query literals, options), a subset of ISO 8601:

    YYYY-MM-DD[(T| )HH:MM[:SS[.fraction]][Z|+HH:MM|+HHMM|+HH]]

No zone means UTC. Digits of the fraction below a millisecond are dropped, toward the past. Years are
0001 to 9999; hour 24 and second 60 are refused. `schemas.codecs.kernels.scan.scan_iso` is the compiled
counterpart of `parse_iso`; a property test checks that the two agree.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

MAX_TIMESTAMP_MS: Final = 4_102_444_800_000
"""2100-01-01T00:00:00Z. A record whose event time is not in [0, MAX_TIMESTAMP_MS) is a dead letter, because one
absurd timestamp would carry the watermark past every correct tuple."""

ISO_FORM: Final = "YYYY-MM-DDTHH:MM:SS[.fff][Z|+HH:MM]"

_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_MILLISECONDS = re.compile(r"-?[0-9]+")
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def parse_iso(text: str) -> int:
    """Milliseconds of an ISO 8601 text in the form that the module's docstring gives.

    Raises:
        ValueError: another form, or a date or time that does not exist; the message says which.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form {ISO_FORM}")
    year, month, day, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError(f"{text!r} is no date: {error}") from None
    clock = [int(part or 0) for part in (hour, minute, second, zone_hour, zone_minute)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59 or clock[3] > 23 or clock[4] > 59:
        raise ValueError(f"{text!r} has an hour above 23 or a minute or second above 59")
    seconds = ((days * 24 + clock[0]) * 60 + clock[1]) * 60 + clock[2]
    shift = (clock[3] * 60 + clock[4]) * 60
    seconds += shift if sign == "-" else -shift
    return seconds * 1000 + int((fraction or "0")[:3].ljust(3, "0"))


def parse_event_time(text: str) -> int:
    """The event time in an option: milliseconds, or a text that `parse_iso` reads.

    Raises:
        ValueError: another form, a date or time that does not exist, or one before 1970; the message says which.
    """
    ms = int(text) if _MILLISECONDS.fullmatch(text) else parse_iso(text)
    if ms < 0:
        raise ValueError(f"the event time {text!r} is before 1970")
    return ms


def format_iso(ms: int) -> str:
    """`ms` as `YYYY-MM-DDTHH:MM:SS[.fff]Z` for people to read; the bare number outside years 1 to 9999."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return f"{text}.{ms % 1000:03d}Z" if ms % 1000 else f"{text}Z"


def format_progress(ms: int) -> str:
    """How far something has come in event time, for people to read: `the beginning` where no tuple has been passed."""
    return format_iso(ms) if ms > 0 else "the beginning"
