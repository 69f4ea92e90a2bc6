"""Errors in the engine of query groups, by file; see `tests.mutation.mutants`. Left out because nobody could see them:

- a part that is shared when there is one query to share it: it gives the same.
- `waiting >= WAITING_TUPLES` away: SELECT lists are computed at the end of the epoch, of more stored tuples.
- more left in memory while debts are settled, or before all are: that is room for blocks.
- choices of blocks joined that could be left out: what is found is looked at again, result by result.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "groups/engine.py": (
        ("            self._last |= of.cleaned()\n", ""),
        ("if query.name in self.names:", "if False:"),
        ("if known.get(stream.name) != stream:", "if False:"),
        ("        begun.process({}, self.cut)\n", ""),
        ("if len(self._shared.names) == 1:", "if False:"),
        ("self._apart.pop(name, None) is not None", "name in self._apart"),
        ("        self._input_tuples += len(batch)\n", ""),
        ("(seeing(query, floors), from_now=from_now)", "(seeing(query, floors), from_now=False)"),
        ("[seeing(query, (since or {}).get(query.name, {})) for query in queries]", "list(queries)"),
    ),
    "groups/aggregated.py": (
        ("self._aggregator.held(cut) - max", "cut - max"),
        ("held(cut) - max(lives) - 1", "held(cut) - max(lives)"),
        ("held(cut) - max(lives) - 1, 0)", "held(cut) - max(lives) - 1, 1)"),
        ("max(lives)", "min(lives)"),
        ("Tuples.concat(found, self._member.inputs), cut)", "Tuples.concat(found, self._member.inputs), cut - 1)"),
    ),
    "groups/apart.py": (
        ("return {self.name: self.engine.advance(cut)}", "return {self.name: self.engine.advance(cut - 1)}"),
        ("            if stream in epoch:\n", "            if stream in epoch and stream == self._streams[0]:\n"),
    ),
    "groups/shared.py": (
        (" or at == cut or budget is", " or budget is"),
        ("            self._budget.settle(self._cut)\n        from_now", "            pass\n        from_now"),
        ("            self._budget.settle(self._cut)\n        self._executor.drop",
         "            pass\n        self._executor.drop"),
        ("                found, waiting = {}, 0\n", "                waiting = 0\n"),
        (" if owed is None else owed", ""),
        ("self._sources.purge(at if", "self._sources.purge(0 if"),
        ("        self._executor.purge(cut)\n", ""),
        ("now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)", "now = cut"),
        ("np.full(len(rows), TABLE_TS)", "np.zeros(len(rows), np.int64)"),
        ("{name: self._results.get(name, 0) for name in self.names}", "dict.fromkeys(self.names, 0)"),
        ("            if table.name not in self._inputs:\n", "            if False:\n"),
        ("        self._cut = cut\n        return found", "        return found"),
        ("from_now = from_now or query.aggregation is not None", "from_now = bool(from_now)"),
        ("self._aggregated.get(m.name) or Aggregated", "Aggregated"),
        ("[one.horizon(stream, self._cut) for one in self._aggregated.values()]", "[None]"),
    ),
    "groups/budget.py": (
        ("        if left:\n            self._executor.rebuild(cut)\n", ""),
        ("return min(int(tuples / most), tuples // SLICE_LEAST)", "return 0"),
        ("        if cut != END:\n", "        if True:\n"),
        ("self.comparisons += operator.comparisons()", "pass"),
        ("self.peak_bytes = max(self.peak_bytes, used)", "pass"),
        ("self._spill.forget(self._sources, here(self._sources, cut), cut)", "pass"),
        ("        if self._spill.settled is None:\n            return False\n", ""),
        ("self._rounds.go_on(self._executor.group, self._executor.since, self._sources, cut, tuples)", "pass"),
    ),
    "groups/settling.py": (
        ("(tuples.ts >= self._begin.ts) & ", ""),
        (" & (tuples.ts < self.end.ts)", ""),
        ("late & (left_at <= tuples.ts)", "late"),
        ("until=min(last.until, part.until)", "until=part.until"),
        ("one.most + reach >= begin", "one.most + reach > begin"),
        ("_seeing(member, since.get(member.name, {}))", "member"),
        ("np.full(hi - lo, part.until)", "np.full(hi - lo, block.until)"),
        ("(old if i < first else new", "(blocks if i < first else new"),
        ("max(part.lo, block.lo), min(part.hi, block.hi)", "part.lo, part.hi"),
        ("lo, hi = max(store.lo, block.lo), block.hi", "lo, hi = max(store.lo, block.lo), store.hi"),
    ),
    "groups/rounds.py": (
        ("            self._spill.forget(sources, self._round.end, cut)\n", ""),
        ("            self._round, self._found = None, {}\n", "            self._round = None\n"),
        (" and self._credit > 0:", ":"),
        ("self._credit += RATE * tuples", "self._credit = RATE * tuples"),
        ("self._credit -= self._round.tuples / self._round.choices", "pass"),
        ("        self._credit = max(self._credit, 0.0)\n", ""),
        ("spill.dead_tuples(sources, cut) < DEAD_SHARE * spill.on_disk_tuples", "False"),
        ("self._until = spill.left_until(cut)", "self._until = cut"),
        ("self._until = self._spill.left_until(cut)", "self._until = cut"),
        (" or self._spill.settled.ts >= cut:", ":"),
        ("        given, self._given = self._given, {}\n", "        given = self._given\n"),
        ("self._round.work / max(self._round.tuples, 1)", "0.0"),
        ("self._found.setdefault(member.name, []).append", "self._given.setdefault(member.name, []).append"),
        ("self._until, self._credit = None, 0.0", "self._until = None"),
        ("        if not self._round.left:\n", "        if True:\n"),
    ),
    "groups/spill.py": (
        ("else min(cut, self.settled.ts)", "else cut"),
        ("self.settled = self.settled or (here", "self.settled = (here"),
        ("self.settled = to if self._parts else None", "self.settled = None"),
        ("self.settled.ts < mark.ts <= end", "mark.ts <= end"),
        ("            at = max(cut, self._until)\n", "            at = cut\n"),
        ("self.settled = Mark(events[-1].settled, {})", "self.settled = Mark(until, {})"),
        ("default=cut + 1) - 1", "default=cut + 1)"),
        ('self._events.append(SpillEvent(cut, "age", settled=to.ts))', "pass"),
        ("if part.most >= ts or part.hi > row)", "if part.most >= ts)"),
        ("        batch = Batch(batch.ts, columns | beside)\n", "        batch = Batch(batch.ts, columns)\n"),
    ),
    "groups/parts.py": (
        ("return executor == JUGGLER", "return True"),
        ("    except UsageError:\n        return False", "    except UsageError:\n        return True"),
    ),
}

GROUPS_TESTS = [
    "test_group_rounds.py", "test_query_groups.py", "test_group_deaths.py", "test_group_spill.py",
    "test_group_spill_deaths.py",
]
