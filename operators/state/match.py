"""Matches tuples of two sides: the condition between them, prepared to run over states. The entry is `Match`.

Of two tuples that match, the one later in the total order finds the other: new tuples are inserted into their side's
state, then probe the opposite state for earlier partners. With an equality between the sides the state is probed
through its hash index; otherwise the nested-loop kernel scans it. Further predicates are evaluated on the columns of
the candidate pairs.

Every executor consists of matches: a binary join is one match over two states, an M-Join a chain of matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.data.evaluate import Resolve, holds
from operators.data.keys import key_hashes
from operators.data.tuples import FOREVER, Tuples
from operators.kernels.hashing import U64
from operators.kernels.scan import MIRRORED, OPS
from operators.plan.predicates import JoinCondition, Operand, Term, conjuncts, join_condition
from operators.state.side_state import ProbeTerms, SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask

LEFT, RIGHT = 0, 1

Signature = tuple[tuple[str, ...], tuple[Operand, ...], tuple[Operand, ...], tuple[Operand, ...]]


@dataclass(slots=True)
class MatchCounters:
    """Counts of the work done so far. None depends on the machine.

    Attributes:
        input_tuples: tuples taken in on both sides.
        left_tuples: those of them on the left side.
        comparisons: predicate evaluations.
        candidates: pairs that passed the key or the terms.
        results: pairs that passed every predicate.
    """

    input_tuples: int = 0
    left_tuples: int = 0
    comparisons: int = 0
    candidates: int = 0
    results: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """New tuples of one side with their key hashes or terms, without the tuples that a null keeps from ever matching.

    Attributes:
        tuples: the n tuples.
        hashes: (n,) hashes of the join key; None where there is no key.
        terms: values of nested-loop terms; empty where there is a key.
    """

    tuples: Tuples
    hashes: U64 | None
    terms: ProbeTerms

    def __len__(self) -> int:
        return len(self.tuples)


_NO_TERMS = ProbeTerms(
    np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros(0, np.int64), np.zeros((0, 0), np.float64)
)


class Match:
    """The predicates between two sets of aliases.

    Args:
        sources: the stores of the query's streams.
        left: the aliases of the left side.
        right: the aliases of the right side.
        implied: for a join of a tree or a chain, where one equality per class is enough (`operators.plan.equalities`).

    Attributes:
        sources: the stores of the query's streams.
        condition: the predicates and the form of each.
        sides: the aliases of the left and of the right side.
        aliases: the output's aliases, left's then right's.
        counters: the work done so far.
    """

    def __init__(
        self, sources: Sources, left: tuple[str, ...], right: tuple[str, ...], *, implied: bool = False
    ) -> None:
        self.sources = sources
        classes = sources.equalities if implied else {}
        self.condition: JoinCondition = join_condition(
            conjuncts(sources.query), left, right, classes, hashed=sources.hashed
        )
        self.sides = (left, right)
        self.aliases = left + right
        self.counters = MatchCounters()
        condition = self.condition
        self._int_ops = [_codes(condition.int_terms, side) for side in (LEFT, RIGHT)]
        self._float_ops = [_codes(condition.float_terms, side) for side in (LEFT, RIGHT)]

    def signature(self, side: int) -> Signature:
        """Identify the content of a state of this side: states with equal signatures are interchangeable."""
        condition = self.condition
        keys, ints, floats = (
            tuple(term.operand(side) for term in terms)
            for terms in (condition.keys, condition.int_terms, condition.float_terms)
        )
        return self.sides[side], keys, ints, floats

    def key(self, side: int) -> tuple[Operand, ...]:
        """Return the operands of a side's hash key; empty where there is none."""
        return tuple(term.operand(side) for term in self.condition.keys)

    def new_state(self, side: int, *, sorted_by_ts: bool = True) -> SideState:
        """Make an empty state for a side.

        Args:
            sorted_by_ts: False for a state that takes tuples in any order; it usually takes few and starts small.
        """
        aliases, sources = self.sides[side], self.sources
        least = min(sources.life[alias] for alias in aliases)
        return SideState(
            aliases,
            least if sorted_by_ts else FOREVER,
            hashed=bool(self.condition.keys),
            int_terms=len(self.condition.int_terms),
            float_terms=len(self.condition.float_terms),
            exact_expiry=sorted_by_ts and len(aliases) == 1 and aliases[0] not in sources.rows_windows,
            partition_groups=sources.partition_groups,
            few=not sorted_by_ts,
        )

    def prepare(self, side: int, tuples: Tuples | Prepared) -> Prepared:
        """Compute the key or terms of tuples of a side; prepared tuples are returned unchanged."""
        if isinstance(tuples, Prepared):
            return tuples
        condition = self.condition
        n = len(tuples)
        resolve = self.sources.resolver(tuples.aliases, tuples.rows)
        if condition.keys:
            columns = [term.operand(side).values(resolve, n) for term in condition.keys]
            hashes, valid = key_hashes(columns)
            if valid is not None and not valid.all():
                tuples, hashes = tuples.take(valid), hashes[valid]
            return Prepared(tuples, hashes, _NO_TERMS)
        ints, int_valid = _term_values(condition.int_terms, side, resolve, n, np.int64)
        floats, float_valid = _term_values(condition.float_terms, side, resolve, n, np.float64)
        valid = int_valid & float_valid
        if not valid.all():
            tuples = tuples.take(valid)
            ints, floats = np.compress(valid, ints, axis=1), np.compress(valid, floats, axis=1)
        return Prepared(tuples, None, ProbeTerms(self._int_ops[side], ints, self._float_ops[side], floats))

    def enter(self, state: SideState, new: Prepared, now: int) -> None:
        """Insert prepared tuples into a state of their side.

        Args:
            now: tuples with expiry below it are dead and may make room.
        """
        state.insert(new.tuples, new.hashes, new.terms.ints, new.terms.floats, now=now)

    def find(self, side: int, probe: Prepared, opposite: SideState, *, strict: bool) -> Tuples:
        """Join one side's tuples with earlier ones of the opposite state; results ascend by ts.

        Args:
            strict: True to find only partners of smaller ts, False also of equal ts.
        """
        found = self._find(side, probe, opposite, strict=strict)
        if opposite.older is not None:
            found = Tuples.merge(self._find(side, probe, opposite.older, strict=strict), found)
        self.counters.results += len(found)
        return found

    def find_alive(self, side: int, probe: Prepared, opposite: SideState, now: int) -> tuple[Tuples, int]:
        """Join one side's living tuples with all tuples of the opposite state that are alive at `now`.

        For states that are computed after their time. Does not count results.

        Returns:
            The results with earlier and later partners, in any order, and the number of comparisons.
        """
        tuples, before = probe.tuples, self.counters.comparisons
        parts: list[Tuples] = []
        late = replace(probe, tuples=Tuples(tuples.aliases, tuples.rows, np.full(len(tuples), now), tuples.expiry))
        for state in (opposite.older, opposite):
            if state is not None:
                parts += self._pairs(side, late, state, strict=False, stamps=tuples.ts)
        compared = self.counters.comparisons - before
        self.counters.comparisons = before
        return Tuples.concat(parts, self.aliases), compared

    def find_all(self, side: int, probe: Prepared, others: Prepared) -> Tuples:
        """Join prepared tuples of both sides whatever their times. Does not count results.

        Returns:
            The results in any order; only their rows are meaningful, not ts and expiry.
        """
        if probe.hashes is not None and others.hashes is not None:
            wanted = np.isin(others.hashes, probe.hashes)
            others = replace(others, tuples=others.tuples.take(wanted), hashes=others.hashes[wanted])
        state = self.new_state(1 - side, sorted_by_ts=False)
        self.enter(state, self._timeless(others), 0)
        return Tuples.concat(list(self.find_timeless(side, self._timeless(probe), state)), self.aliases)

    def _timeless(self, prepared: Prepared) -> Prepared:
        """Return the same tuples with ts 0 and an endless lifetime."""
        n, tuples = len(prepared), prepared.tuples
        return replace(
            prepared, tuples=Tuples(tuples.aliases, tuples.rows, np.zeros(n, np.int64), np.full(n, FOREVER))
        )

    def find_timeless(self, side: int, probe: Prepared, opposite: SideState) -> Iterator[Tuples]:
        """Join tuples of one side with those of the opposite state, both with endless lifetimes.

        Does not count results.

        Yields:
            Results piece by piece; only their rows are meaningful, not ts and expiry.
        """
        return self._pairs(side, probe, opposite, strict=False)

    def _find(self, side: int, probe: Prepared, opposite: SideState, *, strict: bool) -> Tuples:
        return Tuples.concat(list(self._pairs(side, probe, opposite, strict=strict)), self.aliases)

    def _pairs(
        self, side: int, probe: Prepared, opposite: SideState, *, strict: bool, stamps: I64 | None = None
    ) -> Iterator[Tuples]:
        """Yield results piece by piece.

        Args:
            stamps: (n,) the true ts of the probing tuples, where `probe` has others.
        """
        tuples = probe.tuples
        start, resume, n = 0, -1, len(tuples)
        scratch = self.sources.scratch
        while start < n and opposite.hi > opposite.lo:
            if probe.hashes is not None:
                done = opposite.probe(
                    probe.hashes, tuples.ts, strict=strict, start=start, resume=resume, scratch=scratch
                )
            else:
                done = opposite.scan(
                    probe.terms, tuples.ts, strict=strict, start=start, resume=resume, scratch=scratch
                )
            count, start, resume, compared = done
            self.counters.comparisons += compared
            self.counters.candidates += count
            if count:
                probe_idx, entries = scratch.probe_idx[:count], scratch.entries[:count]
                rows, ts, expiry = opposite.combine(tuples, probe_idx, entries, probe_first=side == LEFT)
                if stamps is not None:
                    ts = np.maximum(stamps[probe_idx], opposite.ts[entries & (opposite.capacity - 1)])
                yield self._passing(Tuples(self.aliases, rows, ts, expiry))

    def _passing(self, result: Tuples) -> Tuples:
        """Return the candidates that pass every remaining predicate."""
        alive = self.sources.rows_alive(result, len(self.sides[LEFT]))
        if alive is not None and not alive.all():
            result = result.take(alive)
        for predicate in self.condition.residual:
            if len(result) == 0:
                break
            resolve = self.sources.resolver(self.aliases, result.rows)
            good = holds(predicate, resolve, len(result))
            if not good.all():
                result = result.take(good)
        return result


def _codes(terms: tuple[Term, ...], side: int) -> I64:
    """Return (t,) operator codes, mirrored when the right side probes."""
    return np.array([OPS[t.op if side == LEFT else MIRRORED[t.op]] for t in terms], np.int64)


def _term_values(
    terms: tuple[Term, ...], side: int, resolve: Resolve, n: int, dtype: type[np.generic]
) -> tuple[npt.NDArray[Any], Mask]:
    """Return (t, n) values of nested-loop terms, and (n,) bool: True where none of them is null."""
    values = np.zeros((len(terms), n), dtype)
    valid = np.ones(n, np.bool_)
    for k, term in enumerate(terms):
        column = term.operand(side).values(resolve, n)
        values[k] = column.values
        if column.valid is not None:
            valid &= column.valid
    return values, valid
