"""Exact sums: wide fixed-point numbers to which values are added and from which they are subtracted again.

`operators.aggregate` calls these functions. A sum is a row of int64 digits, digit j worth 2**(32 j) units. Each value
changes three digits at most, and subtracting it reverses the addition exactly. So the digits depend only on the
multiset of values, not on their order or on values subtracted since. Digits are not normalised while they change; with
up to 2**30 values none overflows. Rounding happens once, when a sum is read: to the nearest DOUBLE, ties to even, as in
Python's `math.fsum`.

Sources: Kulisch, "Computer Arithmetic and Validity", 2008, 8 (the exact accumulator). Cost: about 10 ns per value,
100 ns per reading.
"""

from __future__ import annotations

import math

import numpy as np

from operators.kernels.ordered import I8
from schemas.columns import I64, Mask
from schemas.compiled import compiled

UNIT_OF_DOUBLES = -1074
"""The exponent of a DOUBLE's unit: 2**-1074 is the smallest positive DOUBLE. A BIGINT's unit is 1."""

_LOW = np.int64(0xFFFFFFFF)
_SIGN = np.int64(-(2**63))


@compiled
def order_codes(bits: I64) -> I64:
    """Map DOUBLE bits to int64 codes in the order of the values, and back: the map is its own inverse."""
    out = np.empty(bits.shape[0], np.int64)
    for i in range(bits.shape[0]):
        out[i] = bits[i] if bits[i] >= 0 else bits[i] ^ np.int64(0x7FFFFFFFFFFFFFFF)
    return out


@compiled
def _parts(code: np.int64, doubles: bool) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """A value as sign, low and high 32 bits of its magnitude, and the exponent of its lowest bit in units."""
    if not doubles:
        # -(2**63) has no positive int64, but its bits are those of its magnitude.
        magnitude = np.uint64(code) if code >= 0 else np.uint64(0) - np.uint64(code)
        low = np.int64(magnitude & np.uint64(0xFFFFFFFF))
        return (np.int64(1) if code >= 0 else np.int64(-1)), low, np.int64(magnitude >> np.uint64(32)), np.int64(0)
    sign = np.int64(1) if code >= 0 else np.int64(-1)
    bits = code if code >= 0 else ~code
    exponent = bits >> 52
    mantissa = bits & np.int64(0xFFFFFFFFFFFFF)
    if exponent == 0:
        exponent = np.int64(1)
    else:
        mantissa |= np.int64(1) << 52
    return sign, mantissa & _LOW, mantissa >> 32, exponent - 1


@compiled
def digit_range(slots: I64, valid: Mask, codes: I64, doubles: bool) -> tuple[int, int]:
    """The first digit and one past the last digit that the valid values of these slots reach; (0, 0) if all are 0."""
    low, high = 1 << 30, -1
    for i in range(slots.shape[0]):
        if valid[slots[i]] and codes[slots[i]] != 0:
            _, _, _, place = _parts(codes[slots[i]], doubles)
            low = min(low, place >> 5)
            high = max(high, (place >> 5) + 3)
    if high < 0:
        return 0, 0
    return low, high


@compiled
def exact_events(
    digits: I64,
    first: int,
    counts: I64,
    slots: I64,
    signs: I8,
    groups: I64,
    ends: I64,
    valid: Mask,
    codes: I64,
    doubles: bool,
    unit: int,
    out: tuple[I64, I64, Mask, I64],
) -> None:
    """Add and subtract values, touch by touch, and read each touched group's sum after its touch.

    Args:
        digits: (groups, d) digits `first` .. first + d of every group's sum, changed.
        counts: (groups,) the number of values in it, changed.
        slots .. ends: see `ordered_events`.
        valid, codes: by slot.
        doubles: whether codes are those of DOUBLEs; see `order_codes`.
        unit: the exponent of a digit's unit.
        out: filled; see `exact_sums`.
    """
    at = 0
    for touch in range(groups.shape[0]):
        group = groups[touch]
        while at < ends[touch]:
            slot = slots[at]
            if valid[slot]:
                change = np.int64(signs[at])
                counts[group] += change
                if codes[slot] == 0:
                    at += 1
                    continue  # 0.0 has the least exponent, for which there may be no digit.
                sign, low, high, place = _parts(codes[slot], doubles)
                change *= sign
                digit = (place >> 5) - first
                shift = place & 31
                low <<= shift
                high <<= shift
                digits[group, digit] += change * (low & _LOW)
                digits[group, digit + 1] += change * ((low >> 32) + (high & _LOW))
                digits[group, digit + 2] += change * (high >> 32)
            at += 1
        _read(digits, group, first, counts, unit, out, touch)


@compiled
def exact_sums(
    digits: I64, first: int, counts: I64, groups: I64, unit: int, out: tuple[I64, I64, Mask, I64]
) -> None:
    """Read the sums of (n,) groups.

    Args:
        out: (n,) arrays to fill: the bits of the nearest DOUBLE (infinite if the sum is out of range), the sum in units
            as int64, whether the sum fits that int64, and the number of values.
    """
    for i in range(groups.shape[0]):
        _read(digits, groups[i], first, counts, unit, out, i)


@compiled
def _read(
    digits: I64, group: int, first: int, counts: I64, unit: int, out: tuple[I64, I64, Mask, I64], i: int
) -> None:
    width = digits.shape[1]
    work = np.empty(width + 2, np.int64)
    sign = 1
    for attempt in range(2):
        carry = np.int64(0)
        for j in range(width):
            total = sign * digits[group, j] + carry
            work[j] = total & _LOW
            carry = total >> 32
        work[width] = carry & _LOW
        work[width + 1] = (carry >> 32) & _LOW
        if carry >= 0 or attempt == 1:
            break
        sign = -1
    top = width + 1
    while top > 0 and work[top] == 0:
        top -= 1
    length = 0
    while work[top] >> length:
        length += 1
    length += 32 * top
    out[1][i] = 0
    out[2][i] = first == 0 and length <= 63
    if out[2][i]:
        whole = np.int64(0)
        for j in range(top, -1, -1):
            whole = (whole << 32) | work[j]
        out[1][i] = sign * whole
    elif first == 0 and sign < 0 and length == 64:
        # The one magnitude of 64 bits that fits is 2**63, below zero.
        lowest = work[top] == np.int64(0x80000000)
        for j in range(top):
            lowest = lowest and work[j] == 0
        out[1][i] = _SIGN
        out[2][i] = lowest
    # The top 54 bits, one more than a mantissa has, and whether anything is below them.
    kept = np.int64(0)
    drop = max(length - 54, 0)
    for j in range(top, drop // 32, -1):
        kept = (kept << 32) | work[j]
    inside = drop & 31
    lowest_digit = drop // 32
    kept = (kept << (32 - inside)) | (work[lowest_digit] >> inside)
    rest = work[lowest_digit] & ((np.int64(1) << inside) - 1)
    for j in range(lowest_digit):
        rest |= work[j]
    if drop or length == 54:
        # Here `kept` has 54 bits: round the last one off.
        half = kept & 1
        kept >>= 1
        if half and (rest or kept & 1):
            kept += 1
        drop += 1
    value = np.empty(1, np.float64)
    value[0] = sign * math.ldexp(float(kept), drop + 32 * first + unit)
    out[0][i] = value.view(np.int64)[0]
    out[3][i] = counts[group]
