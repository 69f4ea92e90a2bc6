"""Small errors in feedback, per file: see `tests.mutation.mutants`.

The catalogue leaves out errors that no test could notice:

- A guard's filter answers "perhaps" where it could answer "no", or a lattice node is not reported. The detector then
  misses sub-tuples, and results are the same.
- A price in `tuple_cost.py` or `tree_cost.py` is a little higher or lower.
- A stream's tuple that expires with the slice is left out of a filter that is built at the slice's end.
- The other one of two joins is observed: either choice is right.
- Late tuples are also joined at the consumer that kept them back: they have no partner there, or they would have
  returned earlier.
"""

from __future__ import annotations

from pathlib import PurePath

FEEDBACK: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/signatures.py": (
        ("        slot = (slot + 1) & mask\n    return slot", "        slot = slot + 1\n    return slot"),
        ("elif values[slot] < given[i]:", "elif values[slot] > given[i]:"),
        ("if ((at - home) & mask) >= ((at - hole) & mask):", "if at != home:"),
        ("            values[hole] = values[at]\n", ""),
        ("    values[hole] = VACANT\n", ""),
        ("            dropped += 1", "            dropped += 2"),
    ),
    "kernels/bloom.py": (
        ("        | one << ((h >> np.uint64(18)) & low)\n", ""),
        ("& pattern == pattern", "& pattern != 0"),
        ("|= _pattern(h)", "= _pattern(h)"),
        (
            "out[i] = blocks[np.int64((h >> np.uint64(24)) & last)]",
            "out[i] = blocks[np.int64((h >> np.uint64(23)) & last)]",
        ),
    ),
    "kernels/lattice.py": (
        ("if t < now - life:", "if t <= now - life:"),
        ("(t == now and not strict)", "(t == now and strict)"),
        ("(has_expiry and ring_expiry[slot] < now)", "(has_expiry and ring_expiry[slot] <= now)"),
        ("if int_nodes[k] >= 0 and fails(", "if int_nodes[k] > 0 and fails("),
        ("matched &= ~(1 << float_nodes[k])", "matched &= ~(1 << k)"),
        ("            if matched == full:\n                break\n", ""),
        ("dead[node ^ bit] = True", "dead[node] = True"),
        ("if node & bit and not dead[node ^ bit]:", "if node & bit and dead[node ^ bit]:"),
        ("        if seen[i, full]:\n            continue\n", ""),
    ),
    "kernels/blacklist.py": (
        ("        behind[entry] = heads[slot] - 1\n", "        behind[entry] = -1\n"),
        ("            begun += 1\n", "            begun = 1\n"),
        ("        if entry < 0:\n            continue\n", "        if entry <= 0:\n            continue\n"),
        ("        lists += 1\n", "        lists = 1\n"),
        ("        slot = (slot + 1) & mask\n    return slot", "        slot = slot + 1\n    return slot"),
        ("if ((at - home) & mask) >= ((at - hole) & mask):", "if at != home:"),
        ("            heads[hole] = heads[at]\n", ""),
        ("    heads[hole] = 0\n", ""),
        ("heads[_slot_of(signatures[i], pool, heads)] != 0", "heads[_slot_of(signatures[i], pool, heads)] > 1"),
    ),
    "feedback/signatures.py": (
        ("if self._handled >= self._count:", "if self._handled > 2 * self._count:"),
        ("self._expiry >= max(now, VACANT + 1)", "self._expiry > max(now, VACANT + 1)"),
        ("return np.unique(hashes[self.contains(hashes)])", "return hashes[self.contains(hashes)]"),
    ),
    "feedback/bloom.py": (
        ("return self.added > self.expected", "return self.added >= self.expected"),
        ("(needed - 1).bit_length()", "needed.bit_length() - 1"),
    ),
    "feedback/kinds.py": (
        ("terms = equalities or terms", "terms = terms"),
        ("<= set(aliases)]", "& set(aliases)]"),
        ("term.op if self.side == LEFT else MIRRORED[term.op]", "term.op"),
        ("if not all(kind.equal for kind in (self, *others)):", "if False:"),
        (
            "for k, kind in enumerate(kinds) if t in kind.terms), -1)",
            "for k, kind in enumerate(kinds) if t in kind.terms), 0)",
        ),
        ("return tuple(term.operand(1 - self.side) for", "return tuple(term.operand(self.side) for"),
    ),
    "feedback/blacklist.py": (
        ("self._expiry[entries] = VACANT", "pass"),
        ("self._expiry[entries] >= max(now, VACANT + 1)", "self._expiry[entries] > max(now, VACANT + 1)"),
        ('living[np.argsort(self._ts[living], kind="stable")]', "living"),
        ("if self._handled >= self._used and", "if self._handled > 3 * self._used and"),
        ("self._rows[self.aliases.index(alias), entries] >= first_row", "self._rows[0, entries] >= first_row"),
        ("math.ceil(need / MAX_FILLED), FIRST_CAPACITY)", "need - 1, FIRST_CAPACITY)"),
        ("self.signatures -= lists", "pass"),
        (
            "        if self.signatures == 0:\n            return Tuples.empty(self.aliases)\n",
            "        if self._count == 0:\n            return Tuples.empty(self.aliases)\n",
        ),
        (
            "kept, signatures = self._gather(living), self._signatures[living]",
            "kept, signatures = self._gather(living), self._signatures[: len(living)]",
        ),
    ),
    "feedback/waiting.py": (
        ("(found.expiry >= now)", "(found.expiry > now)"),
        ("        self.died += self._count - len(found)\n", ""),
        ('return found.take(np.argsort(found.ts, kind="stable"))', "return found"),
        ("if until >= now and last_row", "if until > now and last_row"),
        ("last_row >= self._first_row:", "last_row > self._first_row:"),
        ("int(tuples.expiry.max()), int(tuples.rows.max())", "int(tuples.expiry.min()), int(tuples.rows.max())"),
        ("int(tuples.expiry.max()), int(tuples.rows.max())", "int(tuples.expiry.max()), int(tuples.rows.min())"),
    ),
    "feedback/stem_guard.py": (
        ("        self.filter.add(hashes)\n", ""),
        ("seen.hashes[self.peer.position]", "seen.hashes[0]"),
        ("self._returned(self.take(hashes, now))", "self._returned(Tuples.empty((self.alias,)))"),
        (
            "signed.tuples.take(~perhaps), hashes[~perhaps], now)",
            "signed.tuples.take(~perhaps), hashes[: int((~perhaps).sum())], now)",
        ),
        ("[hashes[index] if len(hashes) else _NONE for", "[hashes for"),
        ("if self.static:", "if True:"),
        ("        return super().spent(latest, slices) + ordering\n", "        return super().spent(latest, slices)\n"),
        ("self.rebuild_due = max(MIN_HANDLED, REBUILD_AFTER * entries_read)", "self.rebuild_due = 10**9"),
        ("        self.filter = filter\n", ""),
    ),
    "feedback/payoff/guard.py": (
        ("brought_back = max(self.useless - self.lasting, 0.0)", "brought_back = 0.0"),
        (
            "self.remaining = min(self.remaining + earned - spent, self._budget + return_cost)",
            "self.remaining += earned - spent",
        ),
        ("self.watching = self.remaining >= 0.0", "self.watching = True"),
        ("return self.gain(tuple_cost) > MARGIN * self.spent", "return True"),
        ("before, self._counted = self._counted, self.done()", "before, self._counted = self._counted, self._counted"),
        ("        self._counted = self.done()\n        self.balance.start", "        self.balance.start"),
        (" + latest.late_slices * self._prices.late_slice\n", "\n"),
        ("spent, len(self.blacklist) * self.tuple_cost.returned)", "spent, 0.0)"),
        (" + slices * self.slice\n", "\n"),
        ("latest.returned * self.tuple_cost.returned + ", "0.0 + "),
    ),
    "feedback/payoff/tuple_cost.py": (
        ("DECAY * past + new", "past + new"),
        ("        self._totals = totals\n        self._sums = tuple", "        self._sums = tuple"),
        ("        self._totals = (0.0,) * len(self._totals)\n", "        pass\n"),
        ("+ self.met - BLACKLIST_NS", "- BLACKLIST_NS"),
        ("        self._sums.restart()\n", ""),
        ("self.own, self.met, self._sums = earlier.own, earlier.met,", "self._sums ="),
        ("2 * payoff.SAMPLED_TUPLES, observed)", "2 * payoff.SAMPLED_TUPLES)"),
    ),
    "feedback/path_guard.py": (
        ("self.counters.resume += before -", "self.counters.resume += 0 * before -"),
        ("suppressed=self.pruned", "suppressed=self.refused"),
    ),
    "feedback/payoff/path_controller.py": (
        ("payoff.FIRST_TRIAL_BUDGET if before is None else before.trial_budget", "payoff.FIRST_TRIAL_BUDGET"),
        ("0 if before is None else before._turn", "0"),
        ("return sum(self._arrived.values()) >= payoff.TUPLES_PER_UPDATE", "return True"),
        ("payoff.LOSS_SHARE * (work - self._work)", "work - self._work"),
        ("        self._work = work\n        for", "        for"),
        (
            "self.trial_budget -= guard.tuple_cost.returned * self._inputs.release(guard, now)",
            "self._inputs.release(guard, now)",
        ),
        ("        if self.trial_budget < cost:\n            return False\n", ""),
        ("        self.trial_budget -= cost\n", ""),
        ("        self.trial_budget -= budget\n", ""),
        ("                break\n", "                pass\n"),
        ("            self._turn += 1\n", ""),
        ("        self._arrived = dict.fromkeys(self._arrived, 0)\n        self._slices", "        self._slices"),
        (
            "        self._arrived = dict.fromkeys(self._arrived, 0)\n        self._slices = 0\n\n    def pay",
            "        self._arrived = dict.fromkeys(self._arrived, 0)\n\n    def pay",
        ),
        ("arrived + self._arrived[guard.observed_alias], slices", "0, slices"),
        (", slices=self._slices)", ")"),
    ),
    "feedback/tree.py": (
        (
            "            self._queue_return([watch.stop(guard, self._now)], watch.depth)\n",
            "            watch.stop(guard, self._now)\n",
        ),
        ("in (RIGHT, LEFT) if side is None or side == LEFT else (LEFT, RIGHT):", "in (LEFT, RIGHT):"),
        (
            "if late_suppressed is not None and late_suppressed.consumer_depth >= context.depth:",
            "if late_suppressed is not None:",
        ),
        ("            join.enter_late(observed, late_observed.tuples, self._now)\n", ""),
        ("tuples = Tuples.concat([held.tuples, tuples], tuples.aliases)", "pass"),
        ("min(consumer_depth, held.consumer_depth)", "max(consumer_depth, held.consumer_depth)"),
        ("self._late[id(node)] = LateTuples(tuples, min(", "self._late[id(node)] = LateTuples(tuples, max("),
        ("        if late is not None:\n            arrived.append(late.tuples)\n", ""),
        ("            self._queue_return(watch.release(now), watch.depth)\n", "            watch.release(now)\n"),
        ("        if self._guards and self._admitting:\n", "        if self._guards:\n"),
        ("self._unchecked_slices = min(CHECK_EVERY_SLICES - 1,", "self._unchecked_slices = min(0,"),
        ("self._unchecked_slices = min(CHECK_EVERY_SLICES - 1,", "self._unchecked_slices = min(10**6,"),
        (
            "if self._controller.watching or self._returned or not self._admitting:",
            "if self._controller.watching or not self._admitting:",
        ),
        ("                    state.retract(entries[lost])\n", "                    pass\n"),
        ("                    blacklist.drop(entries[lost])\n", "                    pass\n"),
        ("            if depth < watch.depth:\n", "            if depth <= watch.depth:\n"),
        ("            self._controller.recount()\n", "            pass\n"),
    ),
    "feedback/payoff/tree_controller.py": (
        ("                guard.start(0.0)\n", "                pass\n"),
        ("self.tuples >= due_tuples or work - self._work >= due_work", "self.tuples >= due_tuples"),
        ("self._update_factor = min(2 * self._update_factor, MAX_UPDATE_FACTOR)", "pass"),
    ),
    "feedback/tree_guard.py": (
        ("        self.unlisted.remove(hit)\n", ""),
        ("        self.unlisted, self.filter = Signatures(), Bloom()\n", ""),
        ("return self.blacklist.has(hashes) if self.lists_all else", "return hashes < 0 if self.lists_all else"),
        ("return added if self.lists_all else self.suspend(hashes, tuples.expiry)", "return added"),
    ),
    "feedback/watch.py": (
        ("lists_all = self._lattice is None and not self.static", "lists_all = self._lattice is None"),
        ("if arrives or len(self.state):", "if len(self.state):"),
        ("self.static = not suppressed_above and ", "self.static = "),
        ("                    guard.filter.add(hashes)\n", "                    pass\n"),
        (
            "self._rebuild_filter(guard, [self._living_observed(now), *arrived])",
            "self._rebuild_filter(guard, [self._living_observed(now)])",
        ),
        ("self._rebuild_filter(guard, [self._living_observed(now), *arrived])", "self._rebuild_filter(guard, arrived)"),
        ("return lost if valid is None else lost & valid", "return lost & False"),
        (
            "        self._rebuild_filter(guard, [self._living_observed(now)])\n        if guard.expected",
            "        if guard.expected",
        ),
        ("return self.idling or now - self._empty_since >= self._patience", "return True"),
        ("if lacking > MIN_TAKEOVER_SHARE and", "if lacking < MIN_TAKEOVER_SHARE and"),
        ("if len(tuples) * guard.tuple_cost.returned < MIN_TAKEOVER_NS:", "if True:"),
        ("self._patience = 0 if died >= returned else self._max_patience", "self._patience = 0"),
        ("        node = inside[0]\n", "        node = inside[0]\n        break\n"),
    ),
    "join/binary_join.py": (
        ("if state.first_at(int(late.ts.min())) == state.hi and", "if"),
        ("== state.hi and int(late.ts.max()) < now:", "== state.hi:"),
        ("late = late.take(np.lexsort((late.rows[0], late.ts)))", "pass"),
        ("np.lexsort((late.rows[0], late.ts))", "np.argsort(late.ts)"),
    ),
    "feedback/lattice.py": (
        ("if node >> bit & 1)", "if node >> bit & 2)"),
        ("minimal[:, node] for", "seen[:, node] for"),
        ("        for state in states:\n", "        for state in states[:1]:\n"),
        ("np.full(n, now), True, False", "probing.tuples.ts, False, True"),
    ),
    "feedback/stems.py": (
        ("idle = min(self._lives_until.values()) < now", "idle = min(self._lives_until.values()) <= now"),
        ("idle = min(self._lives_until.values()) < now", "idle = False"),
        (
            "self._lives_until[alias] = max(self._lives_until[alias], int(tuples.expiry[-1]))",
            "self._lives_until[alias] = int(tuples.expiry[0])",
        ),
        (
            "back: dict[str, list[Tuples]] = {alias: [part.tuples] for alias, part in old.items()}",
            "back: dict[str, list[Tuples]] = {}",
        ),
        ("for seen in (old, new):", "for seen in (new,):"),
        ("if guard.peer.watching:", "if guard.watching:"),
        ("            if guard.watching and len(signed):", "            if len(signed):"),
        ("        if len(late):\n            late = self._admit(alias, self._hashed(alias, late), now).tuples\n", ""),
        ("until = min(int(late.expiry.max()) + 1, FOREVER)", "until = min(int(late.expiry.max()), FOREVER)"),
        ("state.older_until = max(state.older_until, until)", "state.older_until = until"),
        ("self._let_in(alias, [self._idle[alias].take_all(now), *kept], now)", "self._let_in(alias, kept, now)"),
        ("for guard in self.guards:\n            guard.balance.watching = False\n", "pass\n"),
        ("good = valid if good is None else good & valid", "good = valid"),
        (
            "useless = ~guard.filter.contains(hashes) & (expiry >= now)",
            "useless = guard.filter.contains(hashes) & (expiry >= now)",
        ),
        ("state.keep(~np.isin(", "state.keep(np.isin("),
        ("            state.keep(~useless)\n", ""),
        ("held.take(held.expiry >= now)), now)", "held.take(held.expiry < now)), now)"),
        ("held = state.tuples()\n", "held = Tuples.empty((alias,))\n"),
        ("                    blacklist.purge_rows(alias, first_row)\n", "                    pass\n"),
        ("                self._idle[alias].purge_rows(first_row)\n", ""),
        ("self._let_in(guard.alias, [guard.release(now)], now)", "guard.release(now)"),
        ("            self._update_cost(guard)\n        self._con", "            pass\n        self._con"),
        ("        if self._merits_trial is None:\n            if", "        if True:\n            if"),
        ("            if not self._controller.pay(SCREEN_NS):\n                return False\n", ""),
        ("if np.count_nonzero(useless) <= COMPACT_SHARE * len(entries):", "if np.count_nonzero(useless) == 0:"),
        (
            "for guard in self._watching:\n            if guard.handled",
            "for guard in ():\n            if guard.handled",
        ),
    ),
}


def tests_of(file: str) -> list[str]:
    """The tests most likely to notice an error in a file, under tests/operators."""
    name = PurePath(file).stem
    if name == "binary_join":
        return ["feedback/test_late.py", "engine/test_engine.py"]
    if name in ("stem_guard", "stems"):
        return ["feedback/test_stems.py", "feedback/test_stems_properties.py"]
    if name == "path_guard":
        return ["feedback/test_path_controller.py", "feedback/test_stems.py"]
    if name in ("tree", "tree_controller", "tree_guard", "watch", "lattice") and "kernels" not in file:
        return ["feedback/test_paper_examples.py", "feedback/test_economy.py", "feedback/test_feedback_properties.py"]
    return [f"feedback/test_{name}.py"]
