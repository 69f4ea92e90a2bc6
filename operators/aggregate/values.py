"""The values of one aggregated expression in living results, counted, summed and sorted per group: `Values`.

Only the structures that some aggregate needs are kept. Every number read from here is a function of the multiset of a
group's living values: counts and sums are exact (`operators.kernels.exact`), order statistics come from sorted
multisets (`operators.kernels.ordered`). So no number depends on the order of results, on epochs, or on how long a task
has run.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.aggregate.groups import grown
from operators.aggregate.lifetimes import Events
from operators.kernels.exact import UNIT_OF_DOUBLES, digit_range, exact_events, exact_sums, order_codes
from operators.kernels.groups import count_touches
from operators.kernels.ordered import NOTHING, ordered_events, ordered_quantiles
from schemas.columns import I64, Column, Mask
from schemas.errors import InvariantError
from schemas.query import Aggregate, Type

SUMMED = frozenset({"SUM", "AVG"})
SORTED = frozenset({"MIN", "MAX", "MEDIAN"})

_HALF = 2**52
"""Below this magnitude a DOUBLE can represent every half."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The aggregates of n groups, each after one touch or as they are now.

    Attributes:
        counts: (n,) number of values that are not null.
        nearest: (n,) the sum as the nearest DOUBLE, see `exact_sums`; None if no aggregate needs sums. So are `whole`
            and `fits`.
        whole: (n,) the sum as an int64.
        fits: (n,) whether the sum fits an int64.
        quantiles: (4, n) codes, see `ordered_quantiles`; None if no aggregate needs them.
    """

    counts: I64
    nearest: npt.NDArray[np.float64] | None
    whole: I64 | None
    fits: Mask | None
    quantiles: I64 | None


class Values:
    """The values of one argument by slot, and their aggregates by group.

    Args:
        type: the argument's type.
        functions: the aggregate functions applied to the argument.
        slots: number of slots.
        groups: number of groups.
    """

    def __init__(self, type: Type, functions: Set[str], slots: int, groups: int) -> None:
        self._type = type
        self._doubles = type is Type.DOUBLE
        self._summed, self._sorted = bool(functions & SUMMED), bool(functions & SORTED)
        self._unit = UNIT_OF_DOUBLES if self._doubles else 0
        self._codes: I64 = np.zeros(slots, np.int64)
        self._valid: Mask = np.zeros(slots, np.bool_)
        self._counts: I64 = np.zeros(groups, np.int64)
        self._first_digit = 0
        self._digits: I64 = np.zeros((groups, 0 if self._doubles else 3), np.int64)
        self._roots = np.full(groups, NOTHING, np.int32)
        self._nodes = np.full((3, slots if self._sorted else 0), NOTHING, np.int32)

    def reserve(self, slots: int, groups: int) -> None:
        """Make room for so many slots and groups."""
        if slots > len(self._codes):
            self._codes, self._valid = grown(self._codes, slots), grown(self._valid, slots)
            if self._sorted:
                self._nodes = grown(self._nodes, slots, NOTHING)
        if groups > len(self._counts):
            self._counts, self._roots = grown(self._counts, groups), grown(self._roots, groups, NOTHING)
            self._digits = np.ascontiguousarray(grown(self._digits.T, groups).T)

    def put(self, slots: I64, column: Column) -> None:
        """Store the argument's values of the results that have just got these slots."""
        self._valid[slots] = column.mask()
        if self._type is Type.DOUBLE:
            self._codes[slots] = order_codes((column.values.astype(np.float64) + 0.0).view(np.int64))
        elif self._type is not Type.STRING:
            self._codes[slots] = column.values.astype(np.int64)
        if self._summed:
            self._widen(slots)

    def _widen(self, slots: I64) -> None:
        """Widen the digits of the exact sums so that they cover all these values."""
        low, high = digit_range(slots, self._valid, self._codes, self._doubles)
        width = self._digits.shape[1]
        if width:
            low, high = min(low, self._first_digit) if high else self._first_digit, max(high, self._first_digit + width)
        if high - low > width:
            digits = np.zeros((len(self._digits), high - low), np.int64)
            digits[:, self._first_digit - low : self._first_digit - low + width] = self._digits
            self._digits, self._first_digit = digits, low

    def apply(self, events: Events) -> Reading:
        """Add and remove values; return the reading of each touched group after its touch."""
        n = len(events)
        where = events.slots, events.signs, events.groups, events.ends, self._valid
        quantiles = None
        if self._sorted:
            quantiles = ordered_events(self._roots, *where, self._codes, self._nodes)
        if not self._summed:
            changes = events.signs.astype(np.int64) * self._valid[events.slots]
            totals = np.add.reduceat(changes, np.append(0, events.ends[:-1]))
            _, counts = count_touches(self._counts, events.groups, totals)
            return Reading(counts, None, None, None, quantiles)
        out = _room(n)
        digits = self._digits, self._first_digit, self._counts
        exact_events(*digits, *where, self._codes, self._doubles, self._unit, out)
        return Reading(out[3], out[0].view(np.float64), out[1], out[2], quantiles)

    def read(self, groups: I64) -> Reading:
        """Return the reading of groups now."""
        quantiles = ordered_quantiles(self._roots, groups, self._codes, self._nodes) if self._sorted else None
        if not self._summed:
            return Reading(self._counts[groups], None, None, None, quantiles)
        out = _room(len(groups))
        exact_sums(self._digits, self._first_digit, self._counts, groups, self._unit, out)
        return Reading(out[3], out[0].view(np.float64), out[1], out[2], quantiles)

    def column(self, aggregate: Aggregate, reading: Reading) -> Column:
        """Return an aggregate of this argument as a column."""
        counts, quantiles = reading.counts, reading.quantiles
        some = counts > 0
        if aggregate.function == "COUNT":
            return Column(Type.BIGINT, counts)
        if quantiles is not None and aggregate.function in SORTED:
            return _masked(aggregate.type, self._order_statistic(aggregate.function, quantiles), some)
        if reading.nearest is None or reading.whole is None or reading.fits is None:
            raise InvariantError(f"{aggregate.function} was not asked for of this argument")
        if aggregate.function == "SUM" and not self._doubles:
            return _masked(Type.BIGINT, reading.whole, some & reading.fits)
        finite = some & np.isfinite(reading.nearest)
        sums = np.where(finite, reading.nearest, 0.0)
        return _masked(Type.DOUBLE, sums if aggregate.function == "SUM" else sums / np.maximum(counts, 1), finite)

    def _order_statistic(self, function: str, quantiles: I64) -> npt.NDArray[Any]:
        least, greatest, low, high = quantiles
        if function != "MEDIAN":
            codes = least if function == "MIN" else greatest
            return _doubles(codes) if self._doubles else codes
        if self._doubles:
            return _mean_of_doubles(_doubles(low), _doubles(high))
        return _mean_of_integers(low, high)

    def size_bytes(self) -> int:
        """Return the bytes of all arrays."""
        arrays = (self._codes, self._valid, self._counts, self._digits, self._roots, self._nodes)
        return sum(array.nbytes for array in arrays)


def _room(n: int) -> tuple[I64, I64, Mask, I64]:
    return np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.int64)


def _masked(type: Type, values: npt.NDArray[Any], valid: Mask) -> Column:
    return Column(type, values, None) if valid.all() else Column(type, np.where(valid, values, 0), valid)


def _doubles(codes: I64) -> npt.NDArray[np.float64]:
    return np.asarray(order_codes(codes), np.int64).view(np.float64)


def _mean_of_doubles(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the DOUBLE nearest to the mean. Where the sum loses a bit halving loses none, and the other way round."""
    with np.errstate(over="ignore"):
        total = a + b
    return np.asarray(np.where(np.isfinite(total), total / 2, a / 2 + b / 2))


def _mean_of_integers(a: I64, b: I64) -> npt.NDArray[np.float64]:
    """Return the DOUBLE nearest to the mean of two BIGINTs."""
    below, odd = (a & b) + ((a ^ b) >> 1), (a ^ b) & 1
    mean = below.astype(np.float64) + odd * 0.5
    for i in np.flatnonzero((odd == 1) & ((below >= _HALF) | (below < -_HALF))).tolist():
        # Rounded twice above; Python's division of whole numbers rounds once.
        mean[i] = (int(a[i]) + int(b[i])) / 2
    return mean
