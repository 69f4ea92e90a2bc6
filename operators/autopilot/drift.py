"""Notices from the engine's counters that rates or selectivities have changed since the last measurement: `Watch`.

It sees a change of any rate, and of any selectivity that changes what the running plan does per tuple. Others only
regular measurements find.
"""

from __future__ import annotations

import math

from operators.engine.engine import Work

CLEARLY = math.log(1.25)
"""A ratio that differs by less than this factor has not drifted."""

ERRORS = 5.0
"""Standard errors by which a ratio must differ. Results come in clusters, so that errors are larger than counts say."""


class Watch:
    """Compares what has come and been done between looks with what had been since the last measurement."""

    def __init__(self) -> None:
        self._before: Work | None = None
        self._base: dict[str, tuple[float, float]] = {}

    def rebase(self) -> None:
        """Compare later looks with what comes from now on."""
        self._base = {}

    def drifted(self, now: Work) -> bool:
        """Return whether some ratio since the last call differs from that since the last `rebase`.

        What has come and been done meanwhile counts as usual for later calls, unless it differs.
        """
        before, self._before = self._before, now
        if before is None or now.cut <= before.cut:
            return False
        found, ratios = False, _ratios(before, now)
        for name, (count, of) in ratios.items():
            known, known_of = self._base.get(name, (0.0, 0.0))
            if known_of and of:
                difference = abs(math.log((count + 0.5) / of) - math.log((known + 0.5) / known_of))
                error = math.sqrt(1 / (known + 1) + 1 / (count + 1))
                found = found or difference > max(CLEARLY, ERRORS * error)
        if not found:
            for name, (count, of) in ratios.items():
                known, known_of = self._base.get(name, (0.0, 0.0))
                self._base[name] = known + count, known_of + of
        return found


def _ratios(before: Work, now: Work) -> dict[str, tuple[float, float]]:
    """Return counts, and what each is in proportion to while nothing changes: event time or tuples."""
    passed = float(now.cut - before.cut)
    tuples = float(now.tuples - before.tuples)
    pairs = enumerate(zip(now.selected, before.selected, strict=True))
    found = {f"arrivals {number}": (float(a - b), passed) for number, (a, b) in pairs}
    found["comparisons"] = float(now.comparisons - before.comparisons), tuples
    found["made"] = float(now.made - before.made), tuples
    return found
