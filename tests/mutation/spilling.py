"""Small errors in what spills, owes and cleans up, per file: see `tests.mutation.mutants`.

Left out because nobody could see it: a later deadline (`Ledger.due`) alone, or what a join owes itself left out of
`Ledger.hold` alone. Each is enough without the other.
"""

from __future__ import annotations

SPILLING: dict[str, tuple[tuple[str, str], ...]] = {
    "spill/part.py": (
        ("if ROW not in store.columns:", "if False:"),
        ("int(expiry[begin:end].max()), key)", "int(expiry[begin:end].min()), key)"),
        ("good: Mask = expiry >= bound", "good: Mask = expiry > bound"),
        ("yield begin, min(begin + step, len(batch))", "yield begin, min(begin + step - 1, len(batch))"),
    ),
    "spill/ledger.py": (
        ("return min([self._earliest(join)[1], *map(self.since, self._below[join])])",
         "return self._earliest(join)[1]"),
        ("return min([cut, *map(self.since, self._below[join])])", "return cut"),
        ("if covers[k] < covers[j]]", "if covers[k] > covers[j]]"),
    ),
    "spill/cleanup.py": (
        ("            if len(prepared[side]) and self._states[1 - side].hi:",
         "            if side and len(prepared[side]) and self._states[1 - side].hi:"),
        ("good = ts <= expiry", "good = ts < expiry"),
        ("        if not late:\n", "        if late:\n"),
        ("good &= times[side][0] >= since", "good &= times[side][0] > since"),
        ("good &= times[side][0] >= since", "good &= times[1 - side][0] >= since"),
        ("        sources.begin(match.aliases)\n", ""),
        ("np.maximum(times[0][0], times[1][0])", "times[0][0]"),
    ),
    "spill/spilling.py": (
        ("            found = found.take(found.ts >= self.delivered)\n", ""),
        ("found.take(found.ts >= self.delivered)", "found.take(found.ts > self.delivered)"),
        ("            state.take_out(memory.within(groups))\n", ""),
        ("merge.add(Part(self._in_memory(j, g, memory), cut), last=True)", "pass"),
        ("self._ledger.add((j, g), Part((left, right), cut))", "pass"),
        ("                if piece.last < bound:", "                if piece.last <= bound:"),
        ("            self._enter_late(j)\n", ""),
        ("FAR_PAST, late=True))", "FAR_PAST))"),
        ("self._sources.stores[name].release(~mask)", "self._sources.stores[name].release(mask)"),
    ),
    "spill/spills.py": (
        ("found.setdefault(name, []).append((numbers, Batch(batch.ts, columns)))",
         "found[name] = [(numbers, batch)]"),
        ("or alias in tree.sources.tables:", "or False:"),
        ("            self._results += self.active.take()\n", ""),
    ),
    "join.py": (
        ("for held in (state.older, state):", "for held in (state,):"),
    ),
}  # fmt: skip
"""Per file under operators/."""

SPILLING_TESTS: dict[str, list[str]] = {
    file: ["spill/test_spilling.py", "spill/test_spill_properties.py", "spill/test_spill_deaths.py"]
    for file in SPILLING
    if file != "join.py"
}
"""Of each file, the tests most likely to notice."""
