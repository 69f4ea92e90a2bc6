"""Guards between two inputs of a group, and the tables of partners in which they look rows up.

`operators.juggler.feedback.demand` uses them. A guard of input A by input C serves the queries that join A and C by the
same equalities, as written or derived from others. Guards ignore equalities over more inputs, order comparisons and
window predicates: with fewer predicates, a guard only finds fewer rows without a partner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.feedback.blacklist import Blacklist
from operators.feedback.counters import EdgeCounters
from operators.feedback.guard_payoff import Balance
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


class RowGuard:
    """Sets rows of one input aside that have no partners in another input.

    Args:
        edge: the two inputs and the equalities.
        partners: the partner table of the observed input.
        words: 64-bit words of a set of queries.
        static: True if the observed input is a table, so that no partner will arrive.

    Attributes:
        asking: (words,) the queries that the guard serves.
        blacklist: rows set aside, by signature; another guard may have admitted some of them since.
        counters: the guard's statistics.
        pruned: new rows from which the guard removed queries.
        refused: those of them that were set aside.
        admitted: new rows from which the guard removed no query.
        swept: rows examined by sweeps.
        balance: whether the guard saves more than it costs.
        last_totals: `totals()` at the last update of the balance.
    """

    def __init__(self, edge: GuardEdge, partners: PartnerTable, words: int, *, static: bool) -> None:
        self.edge = edge
        self.partners = partners
        self.static = static
        self.asking = query_mask(set(edge.queries), words)
        self.blacklist = Blacklist((edge.alias,))
        self.counters = EdgeCounters()
        self.refused = self.pruned = self.admitted = self.swept = 0
        self.balance = Balance()
        self.last_totals = self.totals()

    @property
    def watching(self) -> bool:
        """Whether the guard looks for rows that are not demanded."""
        return self.balance.watching

    def totals(self) -> tuple[int, int, int, int, int]:
        """The totals for the balance: rows refused, pruned, returned, looked up and swept."""
        counters = self.counters
        return self.refused, self.pruned, counters.returned, counters.checked, self.swept

    def put(self, tuples: Tuples, signatures: U64, valid: Mask, now: int) -> None:
        """Set rows aside until a partner of theirs arrives; rows that can have none are forgotten."""
        good = np.zeros(len(tuples), np.bool_) if self.static else valid
        self.counters.kept_back += len(tuples)
        self.counters.forgotten += len(tuples) - int(np.count_nonzero(good))
        if good.any():
            self.counters.suspend += self.blacklist.put(tuples.take(good), signatures[good], now)

    def take(self, signatures: U64 | None, now: int) -> Tuples:
        """Remove and return the rows set aside under some signatures; under all if None."""
        before = self.blacklist.signatures
        back = self.blacklist.take_all(now) if signatures is None else self.blacklist.take(signatures, now)
        self.counters.resume += before - self.blacklist.signatures
        return back

    def purge(self, now: int, first_row: int | None) -> None:
        """Drop dead rows; with a ROWS window also those before `first_row`."""
        if first_row is not None:
            self.blacklist.purge_rows(self.edge.alias, first_row)
        self.blacklist.purge(now)

    def size_bytes(self) -> int:
        """Bytes of the blacklist."""
        return self.blacklist.size_bytes()


def guards_of(found: Sequence[GuardEdge], words: int, tables: frozenset[str]) -> dict[str, list[RowGuard]]:
    """The guards of each input; guards that observe the same operands share their partner table."""
    partners: dict[tuple[str, tuple[Operand, ...]], PartnerTable] = {}
    guards: dict[str, list[RowGuard]] = {}
    for edge in found:
        of = edge.by, edge.observed
        seen = partners.setdefault(of, PartnerTable(*of, words))
        guards.setdefault(edge.alias, []).append(RowGuard(edge, seen, words, static=edge.by in tables))
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
