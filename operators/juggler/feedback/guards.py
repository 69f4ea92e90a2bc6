"""What one input of a group says about another's rows: guards, and the partners that they look for.

A guard of input A by input C is for the queries that join A and C by the same equalities, as written or as they follow
from others. An equality over more inputs, an order comparison or a window predicate is not asked: fewer predicates only
find fewer rows that have no partner.
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
from operators.feedback.guard_payoff import Account
from operators.juggler.predicates.lists import query_mask
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.kernels.partners import VACANT, leave_possible, see_partners
from operators.plan.equalities import equality_classes
from operators.plan.predicates import Operand, join_condition
from schemas.columns import I64, Mask
from schemas.groups import QueryGroup

MOST_GUARDS = 8
"""Of an input: those that the most queries ask for."""

LEAST_SLOTS = 256
"""Of a table of partners."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Two inputs that queries join by equalities.

    Attributes:
        alias, by: the input that is guarded, and the one that is observed.
        own, observed: what is equal, of the one and of the other, in the same order.
        queries: the numbers of those that ask for it.
    """

    alias: str
    by: str
    own: tuple[Operand, ...]
    observed: tuple[Operand, ...]
    queries: frozenset[int]

    @property
    def name(self) -> tuple[str, str, tuple[Operand, ...], tuple[Operand, ...]]:
        """What stays the same when queries come and go."""
        return self.alias, self.by, self.own, self.observed


def edges(group: QueryGroup) -> tuple[Edge, ...]:
    """All that could be guarded with gain: where some query that asks reads a third input."""
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
        Edge(*name, frozenset(queries))
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


class Partners:
    """By signature, the queries that some living row of an input may satisfy.

    Args:
        alias, operands: what the signatures are of.
        words: of a set of queries.
    """

    def __init__(self, alias: str, operands: tuple[Operand, ...], words: int) -> None:
        self.alias = alias
        self.operands = operands
        self._words = words
        self.clear()

    def clear(self) -> None:
        """Know nothing."""
        self._make(LEAST_SLOTS)

    def _make(self, slots: int) -> None:
        self._keys: U64 = np.zeros(slots, np.uint64)
        self._last: I64 = np.full(slots, VACANT)
        self._bits: U64 = np.zeros((slots, self._words), np.uint64)
        self._taken = 0

    def see(self, signatures: U64, valid: Mask, ts: I64, alive: U64, least: int) -> U64:
        """Take notice of rows, dead ones left out; the signatures that have gained a query."""
        good = np.flatnonzero(valid)
        signatures, ts, alive = signatures[good], ts[good], alive[good]
        self._make_room(len(signatures), least)
        gained = np.zeros(len(signatures), np.bool_)
        self._taken += see_partners(signatures, ts, alive, least, self._keys, self._last, self._bits, gained)
        return signatures[gained]

    def leave(self, signatures: U64, valid: Mask, asking: U64, least: int, left: U64) -> int:
        """Take queries away that find no partner; see `operators.kernels.partners.leave_possible`."""
        lost: int = leave_possible(signatures, valid, asking, least, self._keys, self._last, self._bits, left)
        return lost

    def _make_room(self, n: int, least: int) -> None:
        if 2 * (self._taken + n) <= len(self._keys):
            return
        kept = self._last >= max(least, VACANT + 1)
        keys, last, bits = self._keys[kept], self._last[kept], self._bits[kept]
        self._make(1 << (4 * (len(keys) + n)).bit_length())
        none = np.zeros(len(keys), np.bool_)
        self._taken = see_partners(keys, last, bits, least, self._keys, self._last, self._bits, none)

    def size_bytes(self) -> int:
        """Bytes of the table."""
        return self._keys.nbytes + self._last.nbytes + self._bits.nbytes


class Guard:
    """Sets rows of one input aside for want of partners in another.

    Args:
        partners: of the observed input.
        static: a table is observed: partners never come.

    Attributes:
        asking: (words,) the queries that it speaks for.
        blacklist: rows set aside, by signature; some may have been let in for another guard's sake.
        pruned: new rows that it took queries from; refused: those of them that were set aside.
        admitted: new rows that it took none from.
        swept: rows looked at to begin anew.
    """

    def __init__(self, edge: Edge, partners: Partners, words: int, *, static: bool) -> None:
        self.edge = edge
        self.partners = partners
        self.static = static
        self.asking = query_mask(set(edge.queries), words)
        self.blacklist = Blacklist((edge.alias,))
        self.counters = EdgeCounters()
        self.refused = self.pruned = self.admitted = self.swept = 0
        self.account = Account()
        self.settled = self.booked()

    @property
    def watching(self) -> bool:
        """Whether it looks for what is not demanded."""
        return self.account.watching

    def booked(self) -> tuple[int, int, int, int, int]:
        """What accounts are made of: rows refused, pruned, let in again, looked up, swept."""
        counters = self.counters
        return self.refused, self.pruned, counters.returned, counters.checked, self.swept

    def put(self, tuples: Tuples, signatures: U64, valid: Mask, now: int) -> None:
        """Set rows aside until a partner of theirs comes; those that can have none are forgotten."""
        good = np.zeros(len(tuples), np.bool_) if self.static else valid
        self.counters.kept_back += len(tuples)
        self.counters.forgotten += len(tuples) - int(np.count_nonzero(good))
        if good.any():
            self.counters.suspend += self.blacklist.put(tuples.take(good), signatures[good], now)

    def take(self, signatures: U64 | None, now: int) -> Tuples:
        """What is set aside under some signatures, or under any."""
        before = self.blacklist.signatures
        back = self.blacklist.take_all(now) if signatures is None else self.blacklist.take(signatures, now)
        self.counters.resume += before - self.blacklist.signatures
        return back

    def purge(self, now: int, first_row: int | None) -> None:
        """Let the dead go; of a ROWS window those before a row."""
        if first_row is not None:
            self.blacklist.purge_rows(self.edge.alias, first_row)
        self.blacklist.purge(now)

    def size_bytes(self) -> int:
        """Bytes of the blacklist."""
        return self.blacklist.size_bytes()


def guards_of(found: Sequence[Edge], words: int, tables: frozenset[str]) -> dict[str, list[Guard]]:
    """The guards of each input; those that observe the same share it."""
    partners: dict[tuple[str, tuple[Operand, ...]], Partners] = {}
    guards: dict[str, list[Guard]] = {}
    for edge in found:
        of = edge.by, edge.observed
        seen = partners.setdefault(of, Partners(*of, words))
        guards.setdefault(edge.alias, []).append(Guard(edge, seen, words, static=edge.by in tables))
    return guards


class Signatures:
    """The signatures of rows, each computed once."""

    def __init__(self, sources: GroupSources, rows: Mapping[str, I64]) -> None:
        """Args: `rows`: (1, n) by input."""
        self._sources = sources
        self._rows = rows
        self._known: dict[tuple[str, tuple[Operand, ...]], tuple[U64, Mask]] = {}

    def of(self, name: str, operands: tuple[Operand, ...]) -> tuple[U64, Mask]:
        """(n,) signatures of an input's rows, and where there is one."""
        found = self._known.get((name, operands))
        if found is None:
            rows = np.ascontiguousarray(self._rows[name])
            resolve = self._sources.resolver((name,), rows)
            hashes, valid = key_hashes([operand.values(resolve, rows.shape[1]) for operand in operands])
            found = hashes, np.ones(len(hashes), np.bool_) if valid is None else valid
            self._known[name, operands] = found
        return found
