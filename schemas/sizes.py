"""Parses and formats sizes in bytes: `64MiB`, `2GB`, `500000`."""

from __future__ import annotations

import re
from decimal import Decimal

from schemas.errors import UsageError

MAX_BYTES = 2**53

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_ACCEPTED = "a number of bytes, or a number and a unit, such as 64MiB, 1.5GiB or 500MB"


def parse_size(text: str) -> int:
    """Bytes of a size, rounded down.

    Raises:
        UsageError: not a size, negative, or more than MAX_BYTES.
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"a size is {_ACCEPTED}; got {text!r}")
    amount = Decimal(match[1])
    if amount > MAX_BYTES or amount * unit > MAX_BYTES:
        raise UsageError(f"a size is at most {MAX_BYTES} bytes; got {text!r}")
    return int(amount * unit)


def unit_hint(text: str | None) -> str:
    """A warning for a size that looks as if its unit is missing (a bare number below 1 MiB); empty for other sizes."""
    if text is None or not text.strip().isdigit() or parse_size(text) >= 1 << 20:
        return ""
    size = text.strip()
    return f"{size} is {size} bytes; is its unit missing, as in {size}MiB?"


def format_size(size: float) -> str:
    """A size for people, in the largest unit that leaves at least 1: `64 MiB`, `1.5 GiB`, `900 B`."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"
