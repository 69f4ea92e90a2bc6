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
        ("begins = np.cumsum([0, *held[:-1]])", "begins = np.cumsum([0, *held[:-1]]) // 2"),
        ("np.maximum.reduceat(expiry, begins)", "np.minimum.reduceat(expiry, begins)"),
        (" and first.batch is piece.batch", ""),
        ("self.begin + self.rows)", "self.begin + 1)"),
        ("first, last = groups[0][0], groups[-1][1]", "first, last = 0, groups[-1][1]"),
        ("slice(first.begin, first.begin + rows)", "slice(first.begin, first.begin + first.rows)"),
        ("(first.key, first.begin + rows) == (piece.key, piece.begin)", "first.key == piece.key"),
        ("if self._shared is None or self._key != first.key:", "if self._shared is None:"),
        ("                self._sharing[key] = left\n", "                pass\n"),
        ("            if left:\n                self._sharing", "            if False:\n                self._sharing"),
        ("if together and end - together[0][0] > most:", "if together and end - begin > most:"),
    ),
    "spill/ledger.py": (
        ("return min([self._until(join, self.since(join)), *map(self.since, self._below[join])])",
         "return self._until(join, self.since(join))"),
        ("return min([cut, *map(self.since, self._below[join])])", "return cut"),
        ("if covers[k] < covers[j]]", "if covers[k] > covers[j]]"),
        (" and oldest > overtaken:", ":"),
        ("[min(bound, self._since.get((join, g), END)) for g in groups]", "[bound for g in groups]"),
        ("            del self._since[group]\n", "            pass\n"),
        ("(*own[:k], *by, *own[k + 1 :])", "(*own[:k], *by)"),
        ("FAR_PAST, late=True))", "FAR_PAST))"),
        ("            if part.late and not part.pieces[1 - side]:", "            if not part.pieces[1 - side]:"),
        ("_with(part, side, (*part.pieces[side], *pieces))", "_with(part, side, pieces)"),
        ("        parts.append(Part((pieces, ()) if side == LEFT else ((), pieces), FAR_PAST, late=True))\n"
         "        self._note(group, FAR_PAST)\n",
         "        parts.append(Part((pieces, ()) if side == LEFT else ((), pieces), FAR_PAST, late=True))\n"),
    ),
    "spill/cleanup.py": (
        ("for pairs in match.find_timeless(side,", "for pairs in match.find_timeless(LEFT,"),
        ("good = (ts <= expiry) & ~met", "good = (ts < expiry) & ~met"),
        ("good = (ts <= expiry) & ~met", "good = ts <= expiry"),
        (" & ~newer.late[at[side]]", " & newer.late[at[side]]"),
        ("met = (newer.tuples.ts[at[side]] < older", "met = (newer.tuples.ts[at[side]] <= older"),
        ("(newer.tuples.ts[at[side]] <", "(older.tuples.ts[at[1 - side]] <"),
        ("        sources.begin(match.aliases)\n", ""),
        ("ts = np.maximum(left.ts[at[LEFT]], right.ts[at[RIGHT]])", "ts = left.ts[at[LEFT]]"),
        ("            rounds.append([Part((left, right), since=0)])\n", ""),
        ("own.order[begin:end], axis=1)", "np.arange(begin, end), axis=1)"),
        ("found.take(order_ties(found.ts, np.array(rows)))", "found"),
        ("return self.store(alias).gather(ROW, rows).values.astype(np.int64, copy=False)", "return rows"),
        ("        return np.minimum(ts + self.life[alias], FOREVER)\n",
         "        return super().expiry(alias, rows, ts)\n"),
        ("np.maximum.reduceat(expiry", "np.minimum.reduceat(expiry"),
        ("np.argsort(found.ts, kind=\"stable\")", "np.arange(len(found))"),
        ("rounds = [[parts[k] for parts in groups if k < len(parts)] for k in range(max(map(len, groups)))]",
         "rounds = [[part for parts in groups for part in parts]]"),
    ),
    "spill/cleaning.py": (
        ("            found = found.take(found.ts >= self.delivered)\n", ""),
        ("found.take(found.ts >= self.delivered)", "found.take(found.ts > self.delivered)"),
        ("self._ledger.add((j, g), Part((sides[LEFT], sides[RIGHT]), cut))", "pass"),
        ("piece.begin), piece.last)) < bound:", "piece.begin), piece.last)) <= bound:"),
        ("if min(piece.last, known.get((piece.key, piece.begin), piece.last)) < bound:", "if piece.last < bound:"),
        ("            self._enter_late(above[0])\n", ""),
        ("unwritten.append((number, *alive(held, expiry, bound)))", "living[number].append(piece)"),
        ("unwritten.append((number, *alive(held, expiry, bound)))", "pass"),
        ("                living[number] += pieces\n", "                living[number] = list(pieces)\n"),
        ("                turn, tuples = [], 0\n", ""),
        ("                most -= tuples\n", ""),
        ("        yield turn, tuples\n\n", "\n"),
    ),
    "spill/leaving.py": (
        ("            state.take_out(state.in_groups(chosen))\n", ""),
        ("alive = tuples.expiry >= bounds[of]", "alive = tuples.expiry > bounds[of]"),
        ("state.mark_rows(alias, kept_from,", "state.mark_rows(alias, 2**62,"),
        ("            self._unreleased[self._sources.query.source(alias).stream.name] = None\n", "            pass\n"),
        ("store.release(~held)", "store.release(held)"),
        ("            batch, expiry = batch.take(rows), expiry[rows]\n", "            pass\n"),
        ("        if not all(wanted):", "        if False:"),
        ("chunk.side, piece, own)", "chunk.side, piece, ())"),
        ("held.append((groups[number], piece))", "held.append((number, piece))"),
        ("yield begin, min(begin + step, n)", "yield begin, min(begin + step, n - 1)"),
        ("        self.waiting_bytes -= size\n", ""),
        (" + PIECE_BYTES * len(groups)\n", "\n"),
        ("return size + PIECE_BYTES * len(chunk.pieces)", "return size"),
        ("return size + PIECE_BYTES * len(chunk.pieces)", "return PIECE_BYTES * len(chunk.pieces)"),
        (" + self.waiting_bytes - waited", ""),
        ("        del self._unreleased[name]\n", "        self._unreleased.clear()\n"),
    ),
    "spill/instalments.py": (
        ("self._due = [own | more for own, more in zip(self._due, due, strict=True)]\n        self._at = 0",
         "self._due = [own | more for own, more in zip(self._due, due, strict=True)]"),
        ("sorted(self._due[j] | self._ledger.late(j))", "sorted(self._due[j])"),
        ("self._due[j].difference_update(cleaned)", "self._due[j].clear()"),
        ("done.setdefault(j, []).extend(cleaned)", "done[j] = cleaned"),
        ("        self._tell(cut, done)\n", ""),
        ("            spent += tuples\n", ""),
        ("            self._end = self._before + self._patience\n", "            pass\n"),
        ("max(CLEAN_TUPLES, int(share * self._left()))", "CLEAN_TUPLES"),
        ("        self._before = cut\n        self._clean", "        self._clean"),
        ("int(life * HELD_SHARE)", "life"),
    ),
    "spill/spilling.py": (
        ("join.purge(self._purged_to[j], self._kept_from)", "join.purge(self._purged_to[j])"),
        ("row = store.hi - 1 - max(", "row = store.hi - max("),
        ("- max(self._sources.rows_windows[alias], self._budget.due_rows)",
         "- min(self._sources.rows_windows[alias], self._budget.due_rows)"),
        ("state.newer_in_groups(since)", "state.group_sizes()"),
        ("            join.sort_late()\n", "            pass\n"),
        ("min([cut, *(self._ledger.since(j) for j in range(len(self._joins)))]))", "cut)"),
        ("max(self._kept_from, min([cut, *(self._ledger.since(j) for j in range(len(self._joins)))]))",
         "min([cut, *(self._ledger.since(j) for j in range(len(self._joins)))])"),
        ("max(self._purged_to[j], min(cut, self._ledger.hold(j)))", "cut"),
        ("        self._kept_from = self.hold(cut)\n", ""),
    ),
    "spill/grouped.py": (
        ("        state.bury()\n", ""),
    ),
    "spill/spills.py": (
        ("found.setdefault(name, []).append((numbers, Batch(batch.ts, columns)))",
         "found[name] = [(numbers, batch)]"),
        ("or alias in tree.sources.tables:", "or False:"),
        ("            self._results += self.active.take()\n", ""),
        ("first = first[numbers >= store.lo]", "first = np.argsort(np.concatenate([own for own, _ in pieces]))"),
        ("numbers[at] != rows)", "numbers[at] < 0)"),
        ("return int(numbers[0]), Batch", "return store.hi, Batch"),
    ),
    "join.py": (
        ("for held in (state.older, state):", "for held in (state,):"),
        ("            self.states[side] = whole\n", "            pass\n"),
    ),
}  # fmt: skip
"""Per file under operators/."""

SPILLING_TESTS: dict[str, list[str]] = {
    file: [
        "spill/test_leaving.py",
        "spill/test_instalments.py",
        "spill/test_spill_timelines.py",
        "spill/test_spilling.py",
        "spill/test_spill_properties.py",
        "spill/test_spill_deaths.py",
    ]
    for file in SPILLING
    if file != "join.py"
}
"""Of each file, the tests most likely to notice."""
