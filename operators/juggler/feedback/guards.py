"""Guards between two inputs of a group, and the tables of partners in which they look rows up.

`operators.juggler.feedback.demand` uses them. A guard of input A by input C serves the queries that join A and C by the
same equalities, as written or derived from others. Guards ignore equalities over more inputs, order comparisons and
window predicates: with fewer predicates, a guard only finds fewer rows without a partner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.feedback.path_guard import PathGuard
from operators.feedback.payoff.guard import GuardWork
from operators.juggler.predicates.lists import query_mask
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.kernels.partners import VACANT, leave_possible, see_partners
from operators.plan.equalities import equality_classes
from operators.plan.predicates import Operand, join_condition
from schemas.columns import I64, Mask
from schemas.groups import QueryGroup

MOST_GUARDS = 8
"""The most guards of one input; those that serve the most queries are kept."""

LEAST_SLOTS = 256
"""The least number of slots of a partner table."""


@dataclass(frozen=True, slots=True)
class GuardEdge:
    """Two inputs that queries join by equalities.

    Attributes:
        alias: the guarded input.
        by: the observed input.
        own, observed: the operands of the equalities in the guarded and the observed input, in the same order.
        queries: the numbers of the queries that have these equalities.
    """

    alias: str
    by: str
    own: tuple[Operand, ...]
    observed: tuple[Operand, ...]
    queries: frozenset[int]

    @property
    def name(self) -> tuple[str, str, tuple[Operand, ...], tuple[Operand, ...]]:
        """The edge's identity, which stays the same when queries are added or dropped."""
        return self.alias, self.by, self.own, self.observed


def edges(group: QueryGroup) -> tuple[GuardEdge, ...]:
    """All edges that a guard could save work on: those of which some query reads a third input."""
    asking: dict[tuple[str, str, tuple[Operand, ...], tuple[Operand, ...]], set[int]] = {}
    for number, member in enumerate(group.members):
        predicates = member.over_inputs.predicates
        classes = equality_classes(predicates)
        for alias in member.inputs:
            for by in member.inputs:
                if alias == by:
                    continue
                terms = dict.fromkeys(join_condition(predicates, (alias,), (by,), classes).keys)
                if terms:
                    own, observed = tuple(t.left for t in terms), tuple(t.right for t in terms)
                    asking.setdefault((alias, by, own, observed), set()).add(number)
    found = [
        GuardEdge(*name, frozenset(queries))
        for name, queries in asking.items()
        if any(len(group.members[n].inputs) > 2 for n in queries)
    ]
    found.sort(key=lambda edge: -len(edge.queries))
    count: Counter[str] = Counter()
    kept = []
    for edge in found:
        count[edge.alias] += 1
        if count[edge.alias] <= MOST_GUARDS:
            kept.append(edge)
    return tuple(kept)


class PartnerTable:
    """Stores, by signature, the queries that some live row of an input may satisfy.

    Args:
        alias: the input.
        operands: the operands whose values form the signature.
        words: 64-bit words of a set of queries.
    """

    def __init__(self, alias: str, operands: tuple[Operand, ...], words: int) -> None:
        self.alias = alias
        self.operands = operands
        self._words = words
        self.clear()

    def clear(self) -> None:
        """Empty the table."""
        self._allocate(LEAST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self._keys: U64 = np.zeros(slots, np.uint64)
        self._last: I64 = np.full(slots, VACANT)
        self._bits: U64 = np.zeros((slots, self._words), np.uint64)
        self._used_slots = 0

    def observe(self, signatures: U64, valid: Mask, ts: I64, alive: U64, least: int) -> U64:
        """Enter the live rows among some rows, and return the signatures that have gained a query.

        Args:
            signatures, ts: (n,) of the rows.
            valid: (n,) False where a row has no signature.
            alive: (n, words) the queries that each row may satisfy.
            least: rows older than this are dead.
        """
        good = np.flatnonzero(valid)
        signatures, ts, alive = signatures[good], ts[good], alive[good]
        self._make_room(len(signatures), least)
        gained = np.zeros(len(signatures), np.bool_)
        self._used_slots += see_partners(signatures, ts, alive, least, self._keys, self._last, self._bits, gained)
        return signatures[gained]

    def drop_unmatched(self, signatures: U64, valid: Mask, asking: U64, least: int, left: U64) -> int:
        """Remove queries without a partner from `left`; see `operators.kernels.partners.leave_possible`."""
        lost: int = leave_possible(signatures, valid, asking, least, self._keys, self._last, self._bits, left)
        return lost

    def _make_room(self, n: int, least: int) -> None:
        if 2 * (self._used_slots + n) <= len(self._keys):
            return
        kept = self._last >= max(least, VACANT + 1)
        keys, last, bits = self._keys[kept], self._last[kept], self._bits[kept]
        self._allocate(1 << (4 * (len(keys) + n)).bit_length())
        none = np.zeros(len(keys), np.bool_)
        self._used_slots = see_partners(keys, last, bits, least, self._keys, self._last, self._bits, none)

    def size_bytes(self) -> int:
        """Bytes of the table."""
        return self._keys.nbytes + self._last.nbytes + self._bits.nbytes


class RowGuard(PathGuard):
    """Sets rows of one input aside that have no partners in another input.

    Args:
        edge: the two inputs and the equalities.
        partners: the partner table of the observed input.
        words: 64-bit words of a set of queries.
        structures: the number of structures that a row enters.
        clock: returns seconds.
        static: True if the observed input is a table, so that no partner will arrive.

    Attributes:
        asking: (words,) the queries that the guard serves.
    """

    def __init__(
        self,
        edge: GuardEdge,
        partners: PartnerTable,
        words: int,
        structures: int,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        static: bool,
    ) -> None:
        super().__init__(edge.alias, edge.by, structures, clock, static=static)
        self.edge = edge
        self.partners = partners
        self.asking = query_mask(set(edge.queries), words)

    def take_over(self, earlier: RowGuard) -> None:
        """Continue the balance, the counters and the averages of the guard of the same edge in an earlier operator."""
        self.balance, self.counters, self.detecting = earlier.balance, earlier.counters, earlier.detecting
        self._counted = earlier._counted
        self.admitted, self.pruned, self.refused = earlier.admitted, earlier.pruned, earlier.refused
        self.swept = earlier.swept
        self.tuple_cost.take_over(earlier.tuple_cost)

    def done(self) -> GuardWork:
        """What the guard has done so far."""
        return super().done()._replace(pruned=self.pruned - self.refused)

    def earned(self, latest: GuardWork) -> float:
        """What some work of the guard has saved: of a row with some queries left, its own probe path."""
        return super().earned(latest) + latest.pruned * self.tuple_cost.own

    def put(self, tuples: Tuples, signatures: U64, valid: Mask, now: int) -> None:
        """Set rows aside until a partner of theirs arrives; rows that can have none are forgotten."""
        good = np.zeros(len(tuples), np.bool_) if self.static else valid
        self.counters.kept_back += len(tuples)
        self.counters.forgotten += len(tuples) - int(np.count_nonzero(good))
        if good.any():
            self.counters.suspend += self.blacklist.put(tuples.take(good), signatures[good], now)

    def purge(self, now: int, first_row: int | None) -> None:
        """Drop dead rows; with a ROWS window also those before `first_row`."""
        if first_row is not None:
            self.blacklist.purge_rows(self.edge.alias, first_row)
        self.blacklist.purge(now)

    def size_bytes(self) -> int:
        """Bytes of the blacklist."""
        return self.blacklist.size_bytes()


def guards_of(
    found: Sequence[GuardEdge],
    words: int,
    tables: frozenset[str],
    structures: Mapping[str, int],
    clock: Callable[[], float] = lambda: 0.0,
) -> dict[str, list[RowGuard]]:
    """The guards of each input; guards that observe the same operands share their partner table. `structures` are those
    that a row of each input enters."""
    partners: dict[tuple[str, tuple[Operand, ...]], PartnerTable] = {}
    guards: dict[str, list[RowGuard]] = {}
    for edge in found:
        of = edge.by, edge.observed
        seen = partners.setdefault(of, PartnerTable(*of, words))
        guard = RowGuard(edge, seen, words, structures[edge.alias], clock, static=edge.by in tables)
        guards.setdefault(edge.alias, []).append(guard)
    return guards


class RowSignatures:
    """Computes the signatures of rows, each once.

    Args:
        sources: reads the columns of rows.
        rows: by input, (1, n) row ids.
    """

    def __init__(self, sources: GroupSources, rows: Mapping[str, I64]) -> None:
        self._sources = sources
        self._rows = rows
        self._known: dict[tuple[str, tuple[Operand, ...]], tuple[U64, Mask]] = {}

    def of(self, name: str, operands: tuple[Operand, ...]) -> tuple[U64, Mask]:
        """(n,) signatures of an input's rows, and (n,) True where a row has one."""
        found = self._known.get((name, operands))
        if found is None:
            rows = np.ascontiguousarray(self._rows[name])
            resolve = self._sources.resolver((name,), rows)
            hashes, valid = key_hashes([operand.values(resolve, rows.shape[1]) for operand in operands])
            found = hashes, np.ones(len(hashes), np.bool_) if valid is None else valid
            self._known[name, operands] = found
        return found
