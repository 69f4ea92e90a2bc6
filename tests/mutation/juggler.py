"""Small errors in the operator for many queries, per file: see `tests.mutation.mutants`.

Left out because nobody could see them: what bounds candidates too little, since every list is evaluated on them
afterwards; which order is chosen, since all give the same.
"""

from __future__ import annotations

JUGGLER: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/juggler.py": (
        ("    return begin, steps\n", "    return max(begin - 1, 0), steps\n"),
        ("before[first + b, w] | after[last + b, w])", "before[first + b, w])"),
        ("before[first + b, w] | after[last + b, w])", "after[last + b, w])"),
        ("                if first <= p < last:", "                if first < p < last:"),
        ("& relevant[i, w] & ~satisfied[i, w]", "& ~satisfied[i, w]"),
        ("                    k = place[w * 64 + bit]", "                    k = place[bit]"),
        ("            if alive[i, w]:\n                out[i]", "            if alive[i, 0]:\n                out[i]"),
    ),
    "kernels/juggler_probe.py": (
        ("low, high = 0, max(high, edge)", "low, high = 0, edge"),
        ("sorted_is_x else ((op <= 1) == (f < 0))", "sorted_is_x else op <= 1"),
        ("            if low[i] <= ts[e] <= high[i]:", "            if ts[e] <= high[i]:"),
        ("        if not found_is_x:", "        if False:"),
        ("            if alive[i, w] & ~asked:", "            if False:"),
        ("last >= 0 and not _asked(alive, masks, i, last):", "last > count and not _asked(alive, masks, i, last):"),
        ("e < hi and ring_ts[e & mask] <= high[i]:", "e < hi and ring_ts[e & mask] < high[i]:"),
    ),
}
"""Per file under operators/."""

JUGGLER_TESTS: dict[str, list[str]] = dict.fromkeys(JUGGLER, ["juggler/test_juggler_properties.py"])
"""Of each file, the tests most likely to notice."""
