"""The binary window join: symmetric, over two states (HybMig 2.1, JISC 2).

Of two tuples that match, the one that is later in the total order finds the other: each side's new tuples
are entered into their state, then probe the opposite state for earlier partners (ties of ts: the right
side counts as later). So each pair is found exactly once, whatever the epochs, and output ascends by ts.

With an equality between the sides the state is probed through its hash index; otherwise it is scanned by
the nested-loop kernel. Further predicates are evaluated on the candidate pairs' columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.evaluate import Resolve, holds
from operators.kernels.hashing import U64
from operators.kernels.scan import MIRRORED, OPS
from operators.keys import key_hashes
from operators.predicates import JoinCondition, Term
from operators.sources import Sources
from operators.state import ProbeTerms, SideState
from operators.tuples import Tuples
from schemas.columns import I64, Mask

LEFT, RIGHT = 0, 1


@dataclass(slots=True)
class JoinCounters:
    """What a join has done so far; none depends on the machine."""

    input_tuples: int = 0
    comparisons: int = 0
    candidates: int = 0
    results: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """New tuples of one side without those that a null keeps from ever matching, and their key or terms."""

    tuples: Tuples
    hashes: U64 | None
    terms: ProbeTerms


_NO_TERMS = ProbeTerms(
    np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros(0, np.int64), np.zeros((0, 0), np.float64)
)


class BinaryJoin:
    """One join of a plan.

    Attributes:
        states: the left and the right side's state.
        aliases: the output's aliases, left's then right's.
    """

    def __init__(
        self, sources: Sources, left: tuple[str, ...], right: tuple[str, ...], condition: JoinCondition
    ) -> None:
        self.sources = sources
        self.condition = condition
        self.aliases = left + right
        self.counters = JoinCounters()
        self.states = tuple(
            SideState(
                aliases,
                min(sources.life[alias] for alias in aliases),
                hashed=bool(condition.keys),
                int_terms=len(condition.int_terms),
                float_terms=len(condition.float_terms),
                exact_expiry=len(aliases) == 1 and aliases[0] not in sources.rows_windows,
            )
            for aliases in (left, right)
        )
        self._int_ops = [_codes(condition.int_terms, side) for side in (LEFT, RIGHT)]
        self._float_ops = [_codes(condition.float_terms, side) for side in (LEFT, RIGHT)]

    def process(self, left: Tuples, right: Tuples, now: int) -> Tuples:
        """Enter an epoch's new tuples of both sides; the new results, ascending by ts.

        Args:
            left, right: new tuples, ascending by ts, none older than any processed before.
            now: the epoch's beginning: what expired before it is dead.
        """
        self.counters.input_tuples += len(left) + len(right)
        prepared = [self._prepare(LEFT, left), self._prepare(RIGHT, right)]
        for side in (LEFT, RIGHT):
            new = prepared[side]
            self.states[side].insert(new.tuples, new.hashes, new.terms.ints, new.terms.floats, now=now)
        found = [self._find(side, prepared[side]) for side in (LEFT, RIGHT)]
        merged = Tuples.merge(*found)
        self.counters.results += len(merged)
        return merged

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        for state in self.states:
            state.purge(cut)
            for alias in state.aliases:
                if alias in self.sources.rows_windows:
                    state.purge_rows(alias, self.sources.first_live_row(alias))

    def _prepare(self, side: int, tuples: Tuples) -> _Prepared:
        condition = self.condition
        n = len(tuples)
        resolve = self.sources.resolver(tuples.aliases, tuples.rows)
        if condition.keys:
            columns = [term.operand(side).values(resolve, n) for term in condition.keys]
            hashes, valid = key_hashes(columns)
            if valid is not None and not valid.all():
                tuples, hashes = tuples.take(valid), hashes[valid]
            return _Prepared(tuples, hashes, _NO_TERMS)
        ints, int_valid = _term_values(condition.int_terms, side, resolve, n, np.int64)
        floats, float_valid = _term_values(condition.float_terms, side, resolve, n, np.float64)
        valid = int_valid & float_valid
        if not valid.all():
            tuples = tuples.take(valid)
            ints, floats = np.compress(valid, ints, axis=1), np.compress(valid, floats, axis=1)
        return _Prepared(tuples, None, ProbeTerms(self._int_ops[side], ints, self._float_ops[side], floats))

    def _find(self, side: int, probe: _Prepared) -> Tuples:
        """Results of one side's new tuples with the opposite state, ascending by ts."""
        opposite = self.states[1 - side]
        tuples = probe.tuples
        found: list[Tuples] = []
        start, resume, n = 0, -1, len(tuples)
        scratch = self.sources.scratch
        while start < n and len(opposite):
            if probe.hashes is not None:
                done = opposite.probe(
                    probe.hashes, tuples.ts, strict=side == LEFT, start=start, resume=resume, scratch=scratch
                )
            else:
                done = opposite.scan(
                    probe.terms, tuples.ts, strict=side == LEFT, start=start, resume=resume, scratch=scratch
                )
            count, start, resume, compared = done
            self.counters.comparisons += compared
            self.counters.candidates += count
            if count:
                pairs = scratch.probe_idx[:count], scratch.entries[:count]
                found.append(self._combine(side, tuples, opposite, *pairs))
        return Tuples.concat(found, self.aliases)

    def _combine(
        self, side: int, tuples: Tuples, opposite: SideState, probe_idx: I64, entries: I64
    ) -> Tuples:
        """Candidate pairs as output tuples, those that pass every remaining predicate."""
        result = Tuples(self.aliases, *opposite.combine(tuples, probe_idx, entries, probe_first=side == LEFT))
        alive = self.sources.rows_alive(result)
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
    """(t,) operator codes as seen when `side` probes."""
    return np.array([OPS[t.op if side == LEFT else MIRRORED[t.op]] for t in terms], np.int64)


def _term_values(
    terms: tuple[Term, ...], side: int, resolve: Resolve, n: int, dtype: type[np.generic]
) -> tuple[npt.NDArray[Any], Mask]:
    """(t, n) values of nested-loop terms, and (n,) where none of them is null."""
    values = np.zeros((len(terms), n), dtype)
    valid = np.ones(n, np.bool_)
    for k, term in enumerate(terms):
        column = term.operand(side).values(resolve, n)
        values[k] = column.values
        if column.valid is not None:
            valid &= column.valid
    return values, valid
