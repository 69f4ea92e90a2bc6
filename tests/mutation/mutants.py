"""Small errors that the engine's tests must catch: each a text of the source and what it becomes.

Every kernel function has at least one, and so has every file that decides what a result is. Left out because
they change nothing that anyone could see:

- `pos + 8 <= end` as `<` in `string_words`: the last eight bytes are then mixed in as the tail.
- `slot + n <= capacity` as `<` in `ring_read`: the second half is then empty.
- `min(ring_ts[slot] + life, 2**62)` without the limit in `combine_pairs`: the probing tuple's expiry has it.
- `side="left"` as right in `slices`: a slice ends after a timestamp instead of before it, in all streams.
- no `if cut <= self.cut` in `Engine.advance`: nothing waits below the cut, so an empty epoch is processed.
- `strict=side == LEFT` as RIGHT in `BinaryJoin.process`: of two equal ts the other finds the one.
- stable sorts as quicksort: NumPy sorts short runs by insertion, which is stable.
- `part.marks[0].clock_after < horizon_ms` as `<=` in `forget`: it only asks whether there is work.
- no `ts < before` in `Jisc.everything`: what is joined with it is filtered by its ts again.
- no `and table` in `HybMig.process`: with nothing in the table all tuples are pruned.
- a state of JISC whose attempted keys are kept though another part of its key is asked for: two parts of one key that
  can both be counted lie in one input of the two plans, so they are the same part.
- a state's `_heads` of half the size after growth: longer chains, the same pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutation.aggregates import AGGREGATES
from tests.mutation.autopilot import AUTOPILOT
from tests.mutation.backlog import BACKLOG, SPILLING_BACKLOG
from tests.mutation.distributed import PLACED
from tests.mutation.feedback import FEEDBACK
from tests.mutation.fixed_memory import FIXED_MEMORY
from tests.mutation.groups import GROUPS
from tests.mutation.juggler import JUGGLER, JUGGLER_FEEDBACK
from tests.mutation.lookups import LOOKUPS
from tests.mutation.memory import MEMORY
from tests.mutation.repeats import REPEATS
from tests.mutation.spill import SPILL
from tests.mutation.spill_log import SPILL_LOG
from tests.mutation.spilling import SPILLING
from tests.mutation.tables import TABLES


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs exactly once in `file`, becomes `new`."""

    file: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """One line to tell it by."""

        def short(text: str) -> str:
            folded = " ".join(text.split())
            return folded if len(folded) <= 44 else folded[:41] + "..."

        return f"{self.file.removeprefix('operators/')}: {short(self.old)} -> {short(self.new) or 'nothing'}"


def _of(file: str, *changes: tuple[str, str]) -> list[Mutant]:
    return [Mutant(f"operators/{file}", old, new) for old, new in changes]


MUTANTS: list[Mutant] = [
    *_of(
        "kernels/hashing.py",
        ("0xC4CEB9FE1A85EC53", "0xC4CEB9FE1A85EC52"),
        ("_mix(acc[i] * np.uint64(0x9E3779B97F4A7C15) + words[i])", "_mix(acc[i] + words[i])"),
        ("if v == np.floor(v) and", "if v != np.floor(v) and"),
        ("np.uint64(end - pos) * np.uint64(0x9E3779B97F4A7C15)", "np.uint64(0)"),
        ("for b in range(end - pos):", "for b in range(end - pos - 1):"),
        ("out[i] = _mix(words[i])", "out[i] = _mix(words[i] >> np.uint64(1))"),
    ),
    *_of(
        "kernels/index.py",
        (
            "            dist[slot] = np.int32(((slot - head) & mask) + 1)",
            "            dist[slot] = np.int32((slot - head) & mask)",
        ),
        ("e = hi + i\n", "e = hi + i + 1\n"),
        ("for e in range(lo, hi):", "for e in range(lo + 1, hi):"),
        (
            "0 if head == 0 else np.int32(((slot - head) & mask) + 1)",
            "0 if head == 0 else np.int32(((slot - head) & mask) + 2)",
        ),
        ("(t < now or (t == now and not strict))", "(t <= now)"),
        ("if t < now - life:", "if t <= now - life:"),
        ("ring_expiry[slot] >= now", "ring_expiry[slot] > now"),
        ("now = ts[i]\n            while e >= lo:", "now = ts[i]\n            while e > lo:"),
        ("return count, i, int(e), compared", "return count, i, int(e) - 1, compared"),
        ("stop = min(begin + PROBES_AHEAD, n)", "stop = min(begin + PROBES_AHEAD - 1, n)"),
        ("step = np.int64(dist[e & mask])\n            else:", "step = np.int64(0)\n            else:"),
        ("ring_keys[slot] == key and ring_ts[slot] < before", "ring_keys[slot] == key"),
        ("ring_keys[slot] == key and ring_ts[slot] < before", "ring_ts[slot] < before"),
        ("ring_keys[slot] == key and ring_ts[slot] < before", "ring_keys[slot] == key and ring_ts[slot] <= before"),
        ("step = np.int64(dist[slot])\n            if step == 0 or", "step = np.int64(0)\n            if step == 0 or"),
        ("elif (found ^ key) & buckets != 0:", "else:"),
        ("elif (found ^ key) & buckets != 0:", "elif False:"),
        ("step == 0 or (ring_keys[slot] ^ key) & buckets != 0", "step == 0 or ring_keys[slot] != key"),
    ),
    *_of(
        "kernels/ring.py",
        ("ring[..., : n - first] = values[..., first:]", "ring[..., : n - first] = values[..., : n - first]"),
        (
            "np.concatenate([ring[..., slot:], ring[..., : slot + n - capacity]]",
            "np.concatenate([ring[..., : slot + n - capacity], ring[..., slot:]]",
        ),
        ("at & (ring.shape[-1] - 1), at & (capacity - 1)", "at & (ring.shape[-1] - 1), (at - lo) & (capacity - 1)"),
        ("if ring[mid & mask] < bound:", "if ring[mid & mask] <= bound:"),
        ("data[(at + b) & wrap]", "data[(at & wrap) + b]"),
        ("expiry[e & mask] >= now", "expiry[e & mask] > now"),
        ("= ring[(lo + i) & mask]\n", "= ring[(lo + i + 1) & mask]\n"),
    ),
    *_of(
        "kernels/order.py",
        ("range(rows.shape[0] - 1, -1, -1)", "range(rows.shape[0] - 1, 0, -1)"),
        ("while stop < n and", "while stop < n - 1 and"),
        ("bool(rows[k, a] > rows[k, b])", "bool(rows[k, a] >= rows[k, b] + 2)"),
        ("while j >= start and", "while j > start and"),
    ),
    *_of(
        "kernels/scan.py",
        ("return not a <= b", "return not a < b"),
        ("return a != b", "return a == b"),
        ("(t == now and not strict)", "(t == now and strict)"),
        ("if t < now - life:", "if t <= now - life:"),
        ("ring_expiry[slot] >= now", "ring_expiry[slot] > now"),
        ("e = hi - 1 if resume < 0", "e = hi - 2 if resume < 0"),
        ("for k in range(float_ops.shape[0]):", "for k in range(1, float_ops.shape[0]):"),
        ("return count, i, e, compared", "return count, i, e - 1, compared"),
    ),
    *_of(
        "kernels/combine.py",
        ("out_expiry[j] = min(expiry[i], other)", "out_expiry[j] = other"),
        ("(0, p) if probe_first else (q, 0)", "(0, p) if not probe_first else (q, 0)"),
        ("ts_a[i] <= ts_b[j]", "ts_a[i] < ts_b[j]"),
        ("rows[k, to] = rows_b[k, j]", "rows[k, to] = rows_b[0, j]"),
    ),
    *_of(
        "state/side_state.py",
        ("cut - self.life))", "cut - self.life + 1))"),
        ("self.rows[0], self.lo, self.hi, first_row)", "self.rows[0], self.lo, self.hi, first_row + 1)"),
        ("self.lo, self.hi) >= first_row", "self.lo, self.hi) > first_row"),
        (
            "        if self.hashed:\n            self._heads[:] = 0\n            index_ring(",
            "        if False:\n            self._heads[:] = 0\n            index_ring(",
        ),
        (
            "if not alive.all():\n                self._compact(alive)\n        need",
            "if not alive.all():\n                self._compact(~alive)\n        need",
        ),
        ("if need > self.capacity:", "if need > self.capacity + 1:"),
        ("if self.hi - self.lo + n > self.capacity:", "if self.hi - self.lo + n > self.capacity + 1:"),
        (
            "ring_write(self.expiry, self.hi, tuples.expiry)",
            "ring_write(self.expiry, self.hi, tuples.ts + self.life)",
        ),
    ),
    *_of(
        "state/store.py",
        (
            "self.valid = _all_valid(len(self.values), lo, at)",
            "self.valid = np.zeros(len(self.values), np.bool_)",
        ),
        ("column.offsets[:-1] - first + self.end", "column.offsets[:-1] + self.end"),
        ("self._epoch_ends[0][1] < bound", "self._epoch_ends[0][1] <= bound"),
        (
            "self._drop_before(max(self.lo, counted - keep_rows))",
            "self._drop_before(max(self.lo, counted - keep_rows + 1))",
        ),
        (" and self._epoch_ends[0][0] <= limit", ""),
        ("need = self.end - used_from + last - first", "need = last - first"),
    ),
    *_of(
        "state/sources.py",
        ("+ self.rows_windows[aliases[k]] > latest", "+ self.rows_windows[aliases[k]] >= latest"),
        ("((first, rest), (rest, first))", "((first, rest),)"),
        ("((first, rest), (rest, first))", "((rest, first),)"),
        ('side="right" if before else "left"', 'side="left"'),
        ('side="right" if before else "left"', 'side="right"'),
        ("self.stores[counted].hi - 1 for counted", "self.stores[counted].hi for counted"),
        ("                for k in by[1:]:", "                for k in by[2:]:"),
        (
            "if cut is None else store.first_at(cut)) - self.rows_windows[alias]",
            "if cut is None else store.first_at(cut)) - self.rows_windows[alias] + 1",
        ),
        ("good &= rows >= self._store_of[alias].lo", "pass"),
        ("first = max(store.lo, store.first_at(cut) - rows)", "first = max(store.lo, store.hi - rows + 1)"),
        ("return ts + life", "return ts + life - 1"),
        ("np.maximum(rows + self.rows_windows[alias], ", "np.maximum(rows + self.rows_windows[alias] - 1, "),
        ("stream.name] > 1", "stream.name] > 2"),
    ),
    *_of(
        "state/match.py",
        ("for predicate in self.condition.residual:", "for predicate in self.condition.residual[1:]:"),
        ("if valid is not None and not valid.all():", "if False:"),
        ("probe.hashes, tuples.ts, strict=strict", "probe.hashes, tuples.ts, strict=True"),
        ("probe.terms, tuples.ts, strict=strict", "probe.terms, tuples.ts, strict=False"),
        ("t.op if side == LEFT else MIRRORED[t.op]", "t.op"),
        ("valid &= column.valid", "valid |= column.valid"),
        ("result = result.take(alive)", "pass"),
    ),
    *_of("join/binary_join.py", ("strict=side == LEFT", "strict=False")),
    *_of(
        "join/mjoin.py",
        ("strict=position[alias] > position[source]", "strict=True"),
        ("strict=position[alias] > position[source]", "strict=False"),
        ("match.prepare(RIGHT, new), now)", "match.prepare(RIGHT, new.take(new.ts > now)), now)"),
        ("signature = match.signature(RIGHT)", "signature = (alias,), (), (), ()"),
    ),
    *_of(
        "kernels/route.py",
        ("np.uint64(x & 63)) & np.uint64(1)", "np.uint64(x & 31)) & np.uint64(1)"),
        ("for cross in (False, True):", "for cross in (True, False):"),
        ("total += tickets[k] - tickets[b]", "total += tickets[k]"),
        ("hashed[k] > hashed[b] or", "hashed[k] < hashed[b] or"),
        ("if required[w] & ~visited[w, i]:", "if required[w] & visited[w, i]:"),
    ),
    *_of(
        "join/eddy.py",
        ("self._targets[drawn] > in_flight.origin", "self._targets[drawn] >= 0"),
        ("self._targets[drawn] > in_flight.origin", "self._targets[drawn] < 0"),
        ("(self.routed + 1.0) / (self.returned + 1.0)", "(self.returned + 1.0) / (self.routed + 1.0)"),
        ("DECAY = 0.9", "DECAY = 1.0"),
        ("self.drawn += n", "pass"),
        ("np.uint64(1) << (stems % 64)", "np.uint64(1) << (stems % 32)"),
        ("return out if alive is None or alive.all() else out.take(alive)", "return out"),
        ("good[tested] &= holds(", "good[tested] |= holds("),
        ("between |= {(alias, ()): [] for alias in aliases}", "pass"),
        ("extended[stems, own] = rows", "extended[stems, own] = positions"),
        ("if step < count - 1:", "if step < count:"),
    ),
    *_of(
        "join/stairs.py",
        ("self.routings += len(left) + len(right)", "self.routings += len(left)"),
        ("if len(left) or len(right):", "if len(left) and len(right):"),
    ),
    *_of(
        "migration/migration.py",
        ("tuples.rows[k] >= self.first_new_row[alias]", "tuples.rows[k] > self.first_new_row[alias]"),
        ("else cut >= self.cut + sources.life[alias]", "else cut >= self.cut + sources.life[alias] - 2"),
        (
            ".first_live_row(alias) >= self.first_new_row[alias]",
            ".first_live_row(alias) >= self.first_new_row[alias] - 1",
        ),
    ),
    *_of(
        "migration/moving_state.py",
        ("tuples.take(tuples.expiry >= self.cut)", "tuples.take(tuples.expiry > self.cut)"),
        ("np.asarray(tuples.expiry >= cut)", "np.asarray(tuples.expiry > cut)"),
        ("alive(sources, state, cut).reorder(match.sides[side]), cut)", "alive(sources, state, cut), cut)"),
        ("if former.signature(former_side) == match.signature(side):", "if True:"),
        ("if aliases not in needed", "if aliases in needed"),
    ),
    *_of(
        "migration/parallel_track.py",
        ("old.take(~self.all_new(old)).reorder", "old.reorder"),
        ("self._over = not any(found)", "self._over = True"),
        ("tuples.take(tuples.expiry >= cut)", "tuples"),
        ("np.any(~self.all_new(alive))", "np.all(~self.all_new(alive))"),
        ("Tuples.merge(old, new)", "Tuples.concat([old, new], self.plan.aliases)"),
        ("[*self._held, new], []", "[new], []"),
    ),
    *_of(
        "migration/hybmig.py",
        ("if lowest else []", "if True else []"),
        ("good &= tuples.rows[k] < box[alias]", "good &= tuples.rows[k] <= box[alias]"),
        ("good |= within(tuples, box)", "good = within(tuples, box)"),
        ("entered.add(id(state))", "pass"),
        ("if id(state) in shared else probing", "if False else probing"),
        ("good &= ~within(found, box)", "pass"),
        ("            above += [{**box", "            above = [{**box"),
        ("chunk.expiry >= now", "chunk.expiry > now"),
        ("self._left = max(0, n - most)", "self._left = 0"),
        ("self._base.take(self._positions[self._left : n])", "self._base.take(self._positions[n - self._left :])"),
        ("float(SLICE_OLD_TUPLES))", "float(2 * SLICE_OLD_TUPLES))"),
        ("int(latest) + self._state.life + 1", "int(latest) + self._state.life"),
        ("if self.expired(cut):", "if True:"),
        ("for tuples in epoch.values()), latest)", "for tuples in epoch.values()), now)"),
    ),
    *_of(
        "migration/jisc/strategy.py",
        ("if former is not None and former[2].complete:", "if former is not None:"),
        ("before = completer.before\n", "pass\n"),
        ("                state.older = None\n", "                pass\n"),
        ("if state is not former[2] and former[2].hashed:", "if False:"),
        ("max(COUNTED_TUPLES, COUNTED_PER_TUPLE", "max(0, 0"),
        ("max(COUNTED_TUPLES, COUNTED_PER_TUPLE *", "max(COUNTED_TUPLES, 2 * COUNTED_PER_TUPLE *"),
        ("            completer.check_complete()\n", ""),
        ("        self._old_tuples.purge(cut)\n", ""),
        ("super().size_bytes() + self._old_tuples.size_bytes()", "super().size_bytes()"),
    ),
    *_of(
        "migration/jisc/completion.py",
        ("return found.take(found.ts < before)", "return found"),
        ("(late.ts >= completer.before)", "(late.ts > completer.before)"),
        ("state.completion.demand(probing, now)\n        found", "pass\n        found"),
        ("            if not met:\n", "            if False:\n"),
        ("(asked and completer.countable(now)) else None", "asked else None"),
        ("asked=asked and both)", "asked=asked)"),
        ("state.older_until = before + state.life", "state.older_until = before + state.life - 1"),
        ("        self._state.older = None\n        left", "        left"),
        ("for part in (state.older, own):", "for part in (own,):"),
        ("reversed(sifted)", "sifted"),
        ("elif own and completer is not None:", "elif False:"),
        ("tuples.take(member(self.hashes(tuples, operands), hashes))\n        late", "tuples\n        late"),
        ("good &= state.has(hashes, before)", "pass"),
        ("and b.before == self.before]", "]"),
        ("return known | self._state.has(hashes, before) if whole", "return known if whole"),
        ("        if before == self.before:\n            return known\n", "        return known\n"),
        ("known[unsure] = self._old.possible(", "self._old.possible("),
        ("good[there] = self.possible(child, key, some, before, now)", "pass"),
        ("good[there] = completer.possible(some, before, now)", "pass"),
        ("hashes[there], before, now, asked=False)", "hashes[there], before, now, asked=True)"),
        ("            purge_state(self.sources, index, cut)", "            pass"),
        ("self.may_count -= completer.count(self.may_count)", "completer.count(self.may_count)"),
        ("if self._keys is not None and self._keys.exhausted:", "if self._keys is not None and self._keys.ended:"),
        ("before, now), self._inherited\n", "before, now), self._inherited[:0]\n"),
        ("elif probing is not self._prepared:", "elif self._prepared is None:"),
        ("if not (asked and completer.countable(now)):\n", "if False:\n"),
        ("few = keys.ended and keys", "few = keys"),
        ("keys.left - len(some) <=", "keys.left <="),
        ("if few and len(some) >= MIN_KEYS_FOR_REST else", "if few else"),
        ('tuples.take(np.argsort(tuples.ts, kind="stable").astype(np.int64, copy=False))', "tuples"),
        ("if last and state.hi == state.lo:", "if state.hi == state.lo:"),
        ("if last and state.hi == state.lo:", "if last:"),
        ("last=keys.exhausted)", "last=False)"),
    ),
    *_of(
        "migration/jisc/demand.py",
        ("begin = np.maximum(begin, right)\n", "begin = np.maximum(begin, np.minimum(right + 1, len(self._values)))\n"),
        ("stop = np.minimum(stop, left)\n", "stop = np.minimum(stop, left - 1)\n"),
        ("np.cumsum(edges[:-1]) > 0", "np.cumsum(edges[:-1]) > 1"),
        ("term.operand(1 - side) for term in terms", "term.operand(side) for term in terms"),
        ("[n for n, term in enumerate(terms) if term.operand(side) == first]", "list(range(len(terms)))"),
    ),
    *_of(
        "migration/jisc/counting.py",
        ("[(state, state.first_at(before))]", "[(state, state.hi)]"),
        ("self._parts.append((state.older, state.older.hi))", "pass"),
        ("add_marks(attempted, ATTEMPTED, self._table)", "pass"),
        ("if self.ended else (0, 0)", "if True else (0, 0)"),
        ("good = marks == COUNTED\n        if not", "good = marks & COUNTED != 0\n        if not"),
        ("possible(keys[unknown])\n        return", "True\n        return"),
        ("return np.unique(keys[good])", "return np.sort(keys[good])"),
        ("        if not self.ended:\n            unknown", "        if True:\n            unknown"),
        ("good = marks == COUNTED\n            unknown", "good = marks != COUNTED\n            unknown"),
        ("possible(keys[unknown])\n            self", "True\n            self"),
        ("self._left -= int(np.count_nonzero(marks == COUNTED))", "self._left -= len(keys)"),
        ("            self._left -= len(keys)\n", "            pass\n"),
        ("ATTEMPTED | CLAIMED, self._table", "ATTEMPTED, self._table"),
        ("self._table = with_room(self._table, len(keys))\n        add_marks", "add_marks"),
        ("self._table = with_room(self._table, len(keys))\n        new", "new"),
        ("marks > ATTEMPTED), np.flatnonzero(marks == ATTEMPTED)", "marks != 0), np.flatnonzero(marks < 0)"),
        ("[marks[: self.hi] == COUNTED]", "[marks[: self.hi] >= COUNTED]"),
        ("stop = min(stop, part.hi)", "stop = min(stop, part.hi - 1)"),
        ("stop - (most - looked)", "stop - most"),
        ("self._parts[-1] = part, begin", "self._parts[-1] = part, begin - 1"),
        ("good = marks & ATTEMPTED != 0", "good = marks == ATTEMPTED"),
        ("keys[lo:hi][marks[lo:hi] & COUNTED != 0]", "keys[lo:hi]"),
        ("return np.asarray(marks & COUNTED != 0)", "return np.asarray(marks != 0)"),
        ("good[unknown] = self._possible(keys[unknown])", "good[unknown] = True"),
        ("self._left += int(np.count_nonzero(marks[new] == 0))", "self._left += int(np.count_nonzero(new))"),
    ),
    *_of(
        "kernels/marks.py",
        ("        bucket -= power\n", "        pass\n"),
        ("out[i] = marks[entry - 1] & mark == 0", "out[i] = marks[entry - 1] == 0"),
        ("marks[entry - 1] |= mark", "marks[entry - 1] = mark"),
        ("        following[count] = heads[bucket]\n", ""),
        ("                following[entry - 1] = heads[to]\n", "                following[entry - 1] = 0\n"),
        ("if buckets == 2 * power:", "if False:"),
        ("entry != 0 and keys[entry - 1] != key", "entry > 1 and keys[entry - 1] != key"),
    ),
    *_of(
        "migration/black_box.py",
        ("tuples.take(tuples.expiry >= cut)", "tuples.take(tuples.expiry > cut)"),
        ("        self.current.process(epoch, now)\n", "        pass\n"),
        ("self._over = not self._queue\n\n\ndef", "self._over = True\n\n\ndef"),
        ("for predicate in selections(sources.query, alias):", "for predicate in ():"),
        ("if sources.shared(alias):", "if False:"),
    ),
    *_of(
        "migration/schedule.py",
        ("strategy.overlaps and running", "True or running"),
        ("record.cut > cut:", "record.cut >= cut:"),
    ),
    *_of(
        "migration/reordering.py",
        ("if found is not None:", "if False:"),
        ("return filled(match, side, alive(sources, state, cut), cut)", "return match.new_state(side)"),
    ),
    *_of(
        "engine/intake.py",
        ('chunk.batch.ts, cut, side="left"', 'chunk.batch.ts, cut, side="right"'),
        ("taken = in_time & (batch.ts >= floor)", "taken = in_time & (batch.ts > floor)"),
        ("in_time & (batch.ts >= remembered)", "(batch.ts >= remembered)"),
        ("min(self.cut, self.hold)", "self.cut"),
        ('batch.slice(int(np.searchsorted(batch.ts, self.cut, side="left")), len(batch))', "batch"),
        ("bisect_left(self.marks, horizon_ms,", "bisect_left(self.marks, horizon_ms + 1,"),
        ("_Mark(first, before, self.clock.max_ts)", "_Mark(first, self.clock.max_ts, self.clock.max_ts)"),
        ("_Mark(a.offset, a.clock_before, b.clock_after)", "_Mark(b.offset, b.clock_before, b.clock_after)"),
        ("low = min(marks)", "low = max(marks)"),
        ("if not p.clock.closed]", "]"),
        ("overtaken = taken & (batch.ts < cut)", "overtaken = taken & (batch.ts <= cut)"),
        (
            "rest = chunk.batch.slice(chunk.start, len(chunk.batch))\n            size",
            "rest = chunk.batch\n            size",
        ),
        ("_ascending(Batch.concat(some))", "Batch.concat(some)"),
    ),
    *_of(
        "data/watermark.py",
        ("ts[0] < self.max_ts - self.disorder_ms", "ts[0] <= self.max_ts - self.disorder_ms"),
        ("np.maximum(seen[:-1], self.max_ts)", "seen[:-1]"),
        ("max(self.max_ts - self.disorder_ms, 0)", "max(self.max_ts - self.disorder_ms + 1, 0)"),
    ),
    *_of(
        "plan/predicates.py",
        ('op, addend = "<=", addend - 1', 'op, addend = "<=", addend - 2'),
        ("Operand(rs[0], -fl * fr, addend)", "Operand(rs[0], fl * fr, addend)"),
        ("Operand(predicate.right), _MIRROR[predicate.op]", "Operand(predicate.right), predicate.op"),
        ("exact = exact and not moved", "pass"),
        ("np.where(values > _MAX - addend, _MAX, values + addend)", "values + addend"),
        ("values, addend = ~values, addend + 1", "values, addend = -values, addend"),
        ("if p not in from_keys", "if False"),
    ),
    *_of(
        "plan/equalities.py",
        ("not ends.keys().isdisjoint(group[0])", "group is groups[0]"),
        ("len(set(operands.values())) == len(operands)", "True"),
        (" or _DOMAINS[type_of(left)] != _DOMAINS[type_of(right)]", ""),
        ('Type.DOUBLE: "real"', 'Type.DOUBLE: "whole"'),
        ("operands |= group[0]", "operands = group[0]"),
        ("if len(operands) > 2 and", "if len(operands) > 3 and"),
        ("if alias in among]", "]"),
        ("                    agreeing.remove(side)\n", ""),
        ("for side in agreeing[1:])", "for side in agreeing[2:])"),
    ),
    *_of(
        "data/evaluate.py",
        ("less = (whole < floored) | ((whole == floored) & fraction)", "less = whole < floored"),
        ("return a if b is None else np.logical_and(a, b)", "return a"),
        ("good = ((a ^ out) & (b ^ out)) >= 0", "good = ((a ^ out) | (b ^ out)) >= 0"),
        ("np.logical_or(found, np.logical_not(unknown))", "np.logical_not(unknown)"),
        ("literal if literal.isalnum() else", "literal if True else"),
        ("wide = np.abs(near) >= 2.0**62", "wide = np.abs(near) >= 2.0**64"),
    ),
    *_of(
        "data/keys.py",
        ("if valid is None else valid & column.valid", "if valid is None else valid"),
        ("len(types) == 1 and ", ""),
    ),
    *_of(
        "data/slices.py",
        ("begin[name] = stop", "pass"),
    ),
    *_of(
        "state/checkpoint.py",
        ("if block.first_row != expected:", "if block.first_row > expected:"),
        ("following[block.stream] = expected + len(block.batch)", "following[block.stream] = expected + 1"),
        ("        if begin < read_to:", "        if False:"),
        ("            read_to = begin\n", ""),
        ('side="left"))\n        if stop:', 'side="right"))\n        if stop:'),
    ),
    *_of(
        "engine/selection.py",
        ("if shared or not restored:", "if not restored:"),
        ("good & passed", "passed"),
    ),
    *_of(
        "state/durability.py",
        ("first = max(self._exported[name], store.lo)", "first = store.lo"),
    ),
    *_of(
        "engine/engine.py",
        ("found = found.take(order_ties(found.ts, found.rows))", "pass"),
        ("now = min((int(batch.ts[0])", "now = max((int(batch.ts[-1])"),
        ("if cut <= self.cut:", "if cut <= self.cut + 1:"),
    ),
    *_of(
        "join/tree.py",
        ("self.joins[:-1]", "self.joins"),
        (
            "join.process(left, right, now) if len(left) or len(right)",
            "join.process(left, right, now) if len(left) and len(right)",
        ),
    ),
    *_of(
        "data/tuples.py",
        ("self.aliases.index(alias) for alias in aliases", "aliases.index(alias) for alias in self.aliases"),
    ),
    *_of(
        "plan/plan.py",
        ("if len(inputs) != 2:", "if len(inputs) > 2:"),
        ("if alias in seen:", "if False:"),
    ),
    *_of(
        "kernels/cover.py",
        ("while m < end_m and match_first[m] <= at:", "while m < end_m and match_first[m] < at:"),
        ("covered = match_last[m]", "covered = max(covered, match_first[m])"),
        ("at = covered + 1", "at = covered + 2"),
        ("until = min(stop, match_first[m] - 1)", "until = min(stop, match_first[m])"),
        ("elif present[k]:", "elif False:"),
        ("if there and first[j] > ended:", "if there and first[j] >= ended:"),
        ("ended = last[j] + 1", "ended = last[j]"),
        ("if there and ended <= to_ts:", "if there:"),
        ("heads[match & head_mask] = 0", "pass"),
        ("            link = following[(link - 1) & row_mask]\n        heads", "            link = 0\n        heads"),
        ("following[(ahead - 1) & row_mask] = after", "pass"),
        ("preceding[(after - 1) & row_mask] = ahead", "pass"),
        ("if old >= taken:", "if old > taken:"),
        ("preceding[slot] = 0", "pass"),
    ),
    *_of(
        "difference/longest_match.py",
        ("end[known] = self.begin(successors[known]) - 1", "end[known] = self.begin(successors[known])"),
        ("return store.first_at(until - 1 - self._life)", "return store.first_at(until - self._life)"),
        ("max(store.first_at(until) - self._rows, store.lo)", "max(store.first_at(until) - self._rows - 1, store.lo)"),
        ("last = np.append(rows[1:] != rows[:-1], True)", "last = np.append(True, rows[1:] != rows[:-1])"),
        ("self._move(rows, np.zeros(len(rows), np.int64))", "pass"),
        ("known = np.flatnonzero(matches >= self._right.lo)", "known = np.flatnonzero(matches >= 0)"),
        ("self.waits_for[rows & (len(self.waits_for) - 1)] = NO_MATCH", "pass"),
        ("self._of(rows) >= self.ended_before + FIRST_MATCH", "self._of(rows) > self.ended_before + FIRST_MATCH"),
    ),
    *_of(
        "difference/difference.py",
        ("open_ = ~here & (stops.witness[left.rows & mask] > 0)", "open_ = here & False"),
        ("new = np.flatnonzero(~here & ~open_ & left.some())", "new = np.flatnonzero(~here & ~open_)"),
        ("resumed, pair_rows, ended]))", "pair_rows, ended]))"),
        (" pair_rows, ended]))", " pair_rows]))"),
        ("stopped_by[listed] = left.stopped_by", "pass"),
        ("present = ~listed & (stopped_by > number)", "present = ~listed & (stopped_by >= number)"),
        ("np.where(parked, span.last, self.latest.covered_to(rows))", "self.latest.covered_to(rows)"),
        ("number + 1 + out.lasting(span.last)[stays]", "number + 1"),
        ("out.some() | (stopped_by > number + 1)", "out.some()"),
        ("self.states[LEFT], strict=False", "self.states[LEFT], strict=True"),
        ("rows, ts = rows[good], ts[good]", "pass"),
        ("order = np.lexsort((pairs.rows[1], pairs.rows[0]))", "order = np.argsort(pairs.rows[0])[::1]"),
        ("self._dead_rows[alias] = first_row", "super().purge_rows(alias, first_row)"),
    ),
    *_of(
        "difference/pipeline.py",
        ("else min(self.sources.cut, FOREVER)", "else self.sources.cut"),
        ("rows[end < span.last]", "rows[end <= span.last]"),
        ("first = np.maximum(self._lifetimes.begin(rows), span.first)", "first = np.full(len(rows), span.first)"),
        ("before = runs.stopped_by > len(self.subtractions)", "before = runs.stopped_by >= len(self.subtractions)"),
        ("order = np.lexsort((rows, comes, ts))", "order = np.lexsort((rows, ~comes, ts))"),
        ("stops.stopped_by[slots] = 0", "pass"),
        ("stops.witness[rows & mask] = 0", "pass"),
        ("stops.witness[slots] = 0", "pass"),
        ("stops.stopped_by[rows[covered] & mask] = number + 1", "pass"),
        ("stops.witness[due & mask] = 0", "pass"),
        ("asking = asking[~operator.latest.asked(asking)]", "pass"),
        ("self._leave_open(rows[~asked], number)", "pass"),
        ("self._complete(operator, rows[~asked], self._from)", "pass"),
        ("self._before = self._counted()", "self._before = (0, 0)"),
        ("int(np.count_nonzero(add_marks(keys, 1, attempted)))", "len(keys)"),
    ),
    *_of(
        "migration/difference.py",
        ("return super().expired(cut - 1)", "return super().expired(cut)"),
        ("return self._new.completed.open == 0", "return True"),
    ),
    *_of(
        "plan/choose.py",
        ("best[whole] = min(made", "best[whole] = max(made"),
        ("(crossing or model.connected(left, right))", "True"),
        ("and p not in classes]", "]"),
        ("max((min(side) for side in sides if side)", "max((max(side) for side in sides if side)"),
        ("            if equal.spans(left, right):\n", "            if True:\n"),
        (
            "not (self.aliases.isdisjoint(left) or self.aliases.isdisjoint(right))",
            "not self.aliases.isdisjoint(left)",
        ),
        ("if not used.isdisjoint(others)]", "]"),
    ),
    *(mutant for file, changes in AGGREGATES.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in AUTOPILOT.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in FEEDBACK.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in GROUPS.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in JUGGLER.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in JUGGLER_FEEDBACK.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in MEMORY.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in PLACED.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in FIXED_MEMORY.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in LOOKUPS.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in REPEATS.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in SPILL.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in SPILLING.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in BACKLOG.items() for mutant in _of(file, *changes)),
    *_of("spill/spilling.py", *SPILLING_BACKLOG),
    *(mutant for file, changes in SPILL_LOG.items() for mutant in _of(file, *changes)),
    *(mutant for file, changes in TABLES.items() for mutant in _of(file, *changes)),
]
