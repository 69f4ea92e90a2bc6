"""Scanners of single values in a byte buffer, shared by the JSON and the CSV decoder.

Every buffer ends with a newline, which no value may contain: each loop stops there, so no scanner
compares its position with the buffer's length. (CSV's quoted fields, which may contain newlines, are
delimited before these scanners see them.) Positions are int64; -1 means "not found" or "not of this form".
"""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.columns import I64, U8
from schemas.compiled import compiled

BIGINT: Final = 0
DOUBLE: Final = 1
STRING: Final = 2
BOOLEAN: Final = 3
TIMESTAMP: Final = 4

# The outcome for a slot (one field of one record) or a whole record.
DECODED: Final = 0
BLANK: Final = 1  # the record holds nothing but white space
UNSURE: Final = 2  # bad, or so rare that it is left to the record-at-a-time path

_TEN: Final = np.uint64(10)
_EXACT_MANTISSA: Final = np.uint64(1 << 53)
_POWERS: Final = np.array([10.0**e for e in range(23)])


@compiled
def byte(data: U8, p: int) -> np.int64:
    """The byte at `p`, signed: Numba would make a double of an unsigned byte minus a signed number."""
    return np.int64(data[p])


@compiled
def skip_space(data: U8, p: int) -> int:
    """First position at or after `p` that is not a blank, tab or carriage return."""
    c = data[p]
    while c == 32 or c == 9 or c == 13:
        p += 1
        c = data[p]
    return p


@compiled
def literal(data: U8, p: int) -> tuple[int, int]:
    """`true`, `false` or `null` at `p`: the position after it (or -1) and 1, 0 or -1."""
    c = data[p]
    if c == 116 and data[p + 1] == 114 and data[p + 2] == 117 and data[p + 3] == 101:
        return p + 4, 1
    if c == 110 and data[p + 1] == 117 and data[p + 2] == 108 and data[p + 3] == 108:
        return p + 4, -1
    if c == 102 and data[p + 1] == 97 and data[p + 2] == 108 and data[p + 3] == 115 and data[p + 4] == 101:
        return p + 5, 0
    return -1, 0


@compiled
def scan_number(data: U8, p: int) -> tuple[int, bool, bool, np.uint64, int, int]:
    """Scan a number by JSON's grammar at `p`.

    Returns:
        position after it or -1, whether it has a fraction or exponent, whether it has a minus sign, its
        digits as an integer (meaningful up to 19 significant digits), the power of ten that these digits
        are to be multiplied by, and how many digits are significant.
    """
    negative = data[p] == 45
    if negative:
        p += 1
    mantissa = np.uint64(0)
    digits = 0
    power = 0
    decimal = False
    d = byte(data, p) - 48
    if d == 0:
        p += 1
        d = byte(data, p) - 48
        if 0 <= d <= 9:
            return -1, decimal, negative, mantissa, power, digits
    elif 1 <= d <= 9:
        while 0 <= d <= 9:
            mantissa = mantissa * _TEN + np.uint64(d)
            digits += 1
            p += 1
            d = byte(data, p) - 48
    else:
        return -1, decimal, negative, mantissa, power, digits
    if data[p] == 46:
        decimal = True
        p += 1
        start = p
        d = byte(data, p) - 48
        while 0 <= d <= 9:
            mantissa = mantissa * _TEN + np.uint64(d)
            if digits > 0 or d > 0:
                digits += 1
            p += 1
            d = byte(data, p) - 48
        if p == start:
            return -1, decimal, negative, mantissa, power, digits
        power = start - p
    if data[p] == 101 or data[p] == 69:
        decimal = True
        p += 1
        sign = data[p]
        if sign == 43 or sign == 45:
            p += 1
        start = p
        exponent = 0
        d = byte(data, p) - 48
        while 0 <= d <= 9:
            exponent = min(exponent * 10 + d, 100_000)
            p += 1
            d = byte(data, p) - 48
        if p == start:
            return -1, decimal, negative, mantissa, power, digits
        power += -exponent if sign == 45 else exponent
    return p, decimal, negative, mantissa, power, digits


@compiled
def as_integer(negative: bool, mantissa: np.uint64, digits: int) -> tuple[bool, np.int64]:
    """Whether a scanned integer fits int64, and its value."""
    if digits > 19:
        return False, np.int64(0)
    if mantissa >> np.uint64(63):
        # Only -2**63 has a magnitude that needs the 64th bit.
        smallest = negative and mantissa == np.uint64(1) << np.uint64(63)
        return smallest, np.int64(mantissa)
    value = np.int64(mantissa)
    return True, -value if negative else value


@compiled
def as_double(
    decimal: bool, negative: bool, mantissa: np.uint64, power: int, digits: int
) -> tuple[bool, float]:
    """The nearest double of a scanned number where one exact product or quotient gives it, else False.

    Digits below 2**53 and powers of ten up to 10**22 are exact doubles, so that one IEEE operation on
    them rounds once, correctly (Clinger, PLDI 1990). An integer has no sign of zero: `-0` is 0.
    """
    if digits > 19 or mantissa > _EXACT_MANTISSA or power > 22 or power < -22:
        return False, 0.0
    value = np.float64(mantissa)
    if power < 0:
        value /= _POWERS[-power]
    else:
        value *= _POWERS[power]
    if negative and (decimal or mantissa != np.uint64(0)):
        value = -value
    return True, value


@compiled
def _two(data: U8, p: int) -> int:
    """Two decimal digits at `p`, or -1."""
    a = byte(data, p) - 48
    b = byte(data, p + 1) - 48
    if 0 <= a <= 9 and 0 <= b <= 9:
        value: int = a * 10 + b
        return value
    return -1


@compiled
def days_of_civil(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a proleptic Gregorian date (years begin in March, in eras of 400)."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@compiled
def scan_iso(data: U8, p: int, end: int) -> tuple[bool, int]:
    """`schemas.timestamps.parse_iso` of the bytes p..end: whether they have its form, and the value."""
    if end - p < 10:
        return False, 0
    century, decade, month, day = _two(data, p), _two(data, p + 2), _two(data, p + 5), _two(data, p + 8)
    if century < 0 or decade < 0 or data[p + 4] != 45 or data[p + 7] != 45:
        return False, 0
    year = century * 100 + decade
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2:
        month_days = 29 if leap else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        month_days = 30
    else:
        month_days = 31
    if year < 1 or month < 1 or month > 12 or day < 1 or day > month_days:
        return False, 0
    seconds = days_of_civil(year, month, day) * 86400
    p += 10
    if p == end:
        return True, seconds * 1000
    if end - p < 6 or (data[p] != 84 and data[p] != 32) or data[p + 3] != 58:
        return False, 0
    hour, minute = _two(data, p + 1), _two(data, p + 4)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return False, 0
    seconds += hour * 3600 + minute * 60
    p += 6
    ms = 0
    if p < end and data[p] == 58:
        if end - p < 3:
            return False, 0
        second = _two(data, p + 1)
        if second < 0 or second > 59:
            return False, 0
        seconds += second
        p += 3
        if p < end and data[p] == 46:
            p += 1
            start = p
            weight = 100
            while p < end and 48 <= data[p] <= 57:
                ms += weight * (byte(data, p) - 48)
                weight //= 10
                p += 1
            if p == start:
                return False, 0
    if p < end and data[p] == 90:
        p += 1
    elif p < end and (data[p] == 43 or data[p] == 45):
        sign = 1 if data[p] == 45 else -1
        if end - p < 3:
            return False, 0
        zone_hour, zone_minute = _two(data, p + 1), 0
        p += 3
        if p < end:
            if data[p] == 58:
                p += 1
            if end - p != 2:
                return False, 0
            zone_minute = _two(data, p)
            p += 2
        if zone_hour < 0 or zone_hour > 23 or zone_minute < 0 or zone_minute > 59:
            return False, 0
        seconds += sign * (zone_hour * 3600 + zone_minute * 60)
    return p == end, seconds * 1000 + ms


@compiled
def pack_span(start: int, length: int, escaped: bool) -> int:
    """A slice of the buffer in one int64: 31 bits of start, 31 of length, one for "holds escapes"."""
    return (start << 32) | (length << 1) | (1 if escaped else 0)


@compiled
def is_text(data: U8, p: int, end: int) -> bool:
    """Whether the bytes are valid UTF-8."""
    while p < end:
        c = np.int64(data[p])
        p += 1
        if c < 0x80:
            continue
        least, more = 0x80, 0
        most = 0xBF
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
            if c == 0xE0:
                least = 0xA0
            elif c == 0xED:
                most = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                least = 0x90
            elif c == 0xF4:
                most = 0x8F
        if more == 0 or p + more > end:
            return False
        d = np.int64(data[p])
        if d < least or d > most:
            return False
        for k in range(1, more):
            if np.int64(data[p + k]) & 0xC0 != 0x80:
                return False
        p += more
    return True


@compiled
def _hex4(data: U8, p: int) -> int:
    """Four hexadecimal digits at `p`, or -1."""
    value = 0
    for k in range(4):
        c = byte(data, p + k)
        if 48 <= c <= 57:
            value = value * 16 + c - 48
        elif 97 <= c <= 102:
            value = value * 16 + c - 87
        elif 65 <= c <= 70:
            value = value * 16 + c - 55
        else:
            return -1
    return value


@compiled
def gather_strings(data: U8, spans: I64, doubled_quotes: bool, out: U8, offsets: I64) -> None:
    """Copy spans one after the other into `out`, undoing escapes; fill `offsets` (n + 1,).

    Spans with escapes have been checked by the scanner that made them. `doubled_quotes`: the escape is
    CSV's "" and not JSON's backslash. `out` has room for the spans' lengths; unescaping only shrinks.
    """
    q = 0
    offsets[0] = 0
    for i in range(len(spans)):
        span = spans[i]
        p = span >> 32
        end = p + ((span & 0xFFFFFFFF) >> 1)
        if not span & 1:
            while p < end:
                out[q] = data[p]
                p += 1
                q += 1
        elif doubled_quotes:
            while p < end:
                out[q] = data[p]
                p += 2 if data[p] == 34 else 1
                q += 1
        else:
            while p < end:
                c = byte(data, p)
                p += 1
                if c == 92:
                    c = byte(data, p)
                    p += 1
                    if c == 117:
                        c = _hex4(data, p)
                        p += 4
                        if 0xD800 <= c < 0xDC00:
                            c = 0x10000 + ((c - 0xD800) << 10) + _hex4(data, p + 2) - 0xDC00
                            p += 6
                        if c >= 0x10000:
                            out[q] = 0xF0 | (c >> 18)
                            out[q + 1] = 0x80 | ((c >> 12) & 0x3F)
                            out[q + 2] = 0x80 | ((c >> 6) & 0x3F)
                            out[q + 3] = 0x80 | (c & 0x3F)
                            q += 4
                        elif c >= 0x800:
                            out[q] = 0xE0 | (c >> 12)
                            out[q + 1] = 0x80 | ((c >> 6) & 0x3F)
                            out[q + 2] = 0x80 | (c & 0x3F)
                            q += 3
                        elif c >= 0x80:
                            out[q] = 0xC0 | (c >> 6)
                            out[q + 1] = 0x80 | (c & 0x3F)
                            q += 2
                        else:
                            out[q] = c
                            q += 1
                        continue
                    if c == 110:
                        c = 10
                    elif c == 116:
                        c = 9
                    elif c == 114:
                        c = 13
                    elif c == 98:
                        c = 8
                    elif c == 102:
                        c = 12
                out[q] = c
                q += 1
        offsets[i + 1] = q


@compiled
def scan_escape(data: U8, p: int) -> int:
    """A JSON escape whose backslash is at `p`: the position after it, or -1 (also for a lone surrogate)."""
    c = data[p + 1]
    if c == 117:
        unit = _hex4(data, p + 2)
        if unit < 0 or 0xDC00 <= unit < 0xE000:
            return -1
        p += 6
        if 0xD800 <= unit < 0xDC00:
            if data[p] != 92 or data[p + 1] != 117:
                return -1
            low = _hex4(data, p + 2)
            if low < 0xDC00 or low > 0xDFFF:
                return -1
            p += 6
        return p
    if c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116:
        return p + 2
    return -1
