"""Small errors in state spill, per file: see `tests.mutation.mutants`. Left out because nobody could see them:

- the key of a join's right side for that of its left in `Lineage`: they are equal in every result.
- all results traced where a sample would do: it only takes longer.
- groups of windows that are never due: `hold` keeps what they need until they are cleaned up after all.
- the last position's limit in `Productivity._positions`: only rounding passes it.
"""

from __future__ import annotations

SPILL: dict[str, tuple[tuple[str, str], ...]] = {
    "spill/productivity.py": (
        ("heights[k] + 1 for k", "heights[k] for k"),
        ("if inner <= outer]", "if inner == outer]"),
        ("            if key not in known:", "            if len(known) < 2:"),
        ("minlength=len(below) * self.groups).reshape(len(below), self.groups) * (n / m)",
         "minlength=len(below) * self.groups).reshape(len(below), self.groups)"),
        ("self.local[join] += counts[-1]", "self.local[join] += counts[0]"),
        ("        if final:\n", "        if not final:\n"),
        ("counts * self._entry_bytes[join]", "counts"),
        ("if state.aliases == join.aliases:", "if len(state.aliases) > 1:"),
        ("0.5 ** (share / HALF_LIFE)", "0.5"),
        ("(1.0 - share) ** self._fade", "(1.0 - share)"),
        ("counts[joins, groups] = 0.0", "pass"),
        ("* GOLDEN) % 1.0", "* 0.0)"),
        ("        self._samples += m\n", ""),
        ("where=True if self.owned is None else self.owned", "where=True"),
    ),
    "spill/strategies.py": (
        ("candidates.local / candidates.size_bytes", "candidates.local"),
        ("candidates.output / candidates.size_bytes", "candidates.local / candidates.size_bytes"),
        ("(candidates.size_bytes + candidates.inter_bytes)", "candidates.size_bytes"),
        ("(candidates.size_bytes + candidates.inter_bytes)", "(1.0 + candidates.inter_bytes)"),
        ("candidates.heights.astype(np.float64)", "0.0 * candidates.heights.astype(np.float64)"),
        ("Strategy(height, random=True)", "Strategy(height)"),
        ("(np.full(len(candidates), candidates.spill_number), candidates.joins,", "(candidates.joins,"),
        ('side="left")) + 1', 'side="right")) + 1'),
        ('side="left")) + 1', 'side="left"))'),
        ("candidates.joins, -candidates.size_bytes]", "candidates.joins, candidates.size_bytes]"),
        ("[candidates.groups, candidates.joins,", "[candidates.joins,"),
    ),
    "spill/worker_memory.py": (
        ("int(own_sizes[own < last].sum() + share *", "int(share *"),
        ("share * own_sizes[own == last].sum())", "own_sizes[own == last].sum())"),
        ("sizes[scores < last].sum()", "sizes[scores <= last].sum()"),
        ("        if wanted_bytes >= sizes.sum():\n            return int(own_sizes.sum())\n", ""),
        ("        self._shares.pop(share, None)\n", "        pass\n"),
        ("sum(share.used_bytes for share in list(self._shares))", "next(iter(self._shares)).used_bytes"),
        ("[own.candidates, *(share.candidates for share in list(self._shares) if share is not own)]",
         "[share.candidates for share in list(self._shares)]"),
    ),
    "spill/ledger.py": (
        ("if j == join), default=END)", "if j == join), default=FOREVER)"),
        ("self._least[group[0]] = min(self._least[group[0]], since)", "pass"),
        ("self._since[group] = min(self._since.get(group, END), since)", "self._since.setdefault(group, since)"),
        ("self._since[group] = min(self._since.get(group, END), since)", "self._since[group] = since"),
        ("            pairs += left * int(memory[j][1][g]) + right * int(memory[j][0][g])\n", ""),
        ("if not part.late:\n                    met", "if True:\n                    met"),
        ("                    met[part.since] = own[0] + a, own[1] + b\n", "                    pass\n"),
        ("met[part.since] = own[0] + a, own[1] + b", "met[part.since] = a, b"),
    ),
    "spill/exchange.py": (
        ("changed = ~self._owned & (", "changed = ("),
        (" | (now[1] > self._reported[1])", ""),
        ("        self._reported = (now[0].copy(), now[1].copy())\n", ""),
        ("sender = (message.task, message.incarnation, join)", "sender = (0, '', join)"),
        ("np.maximum(gained - before, 0.0)", "gained"),
        ("            before += gained\n", ""),
        ("np.where(self._owned[join], gained, 0.0)", "gained"),
        ("(message.output, message.inter_bytes), strict", "(message.inter_bytes, message.output), strict"),
    ),
}  # fmt: skip
"""Per file under operators/."""

SPILL_TESTS: dict[str, list[str]] = {
    "spill/productivity.py": ["spill/test_productivity.py", "spill/test_exchange.py"],
    "spill/ledger.py": ["spill/test_ledger.py", "spill/test_spill_properties.py"],
    "spill/exchange.py": ["spill/test_exchange.py"],
    "spill/strategies.py": ["spill/test_spill_strategies.py"],
    "spill/worker_memory.py": ["spill/test_worker_memory.py"],
}
"""Of each file, the tests most likely to notice."""
