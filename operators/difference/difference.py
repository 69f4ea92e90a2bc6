"""Continuous set difference (JISC 4.7): a pipeline of operators, each of which subtracts one stream.

The answer at an instant holds the living tuples of the first stream that have no living match in any subtracted
stream. What is put out are its changes: per tuple the first instant of each run of instants at which it is in
the answer, and the first instant after. A match that ends at the instant at which another begins changes nothing.
So neither epochs nor plans can show: the changes at an instant are a function of what is alive then.

An operator's left set is what the operators before it leave; its own output, its set-difference state, is what
its stream does not cover of that. These sets are nested, so one number per living tuple says all: its *place*, the
operator that stops it. What costs is finding matches, and a tuple is joined with an operator's stream from when it
first comes there until it dies. Hence the plan's order matters: what an early operator covers all its life never
meets a later one.

All changes of a slice are computed at once, operator by operator, for the tuples that something happens to:
those that come or die, those that are matched, and those whose latest match ends (`Covers`). Cost: tuples +
matches + changes; silence costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import holds
from operators.data.tuples import Tuples
from operators.difference.longest_match import Covers, Lives
from operators.kernels.cover import uncovered_runs
from operators.kernels.hashing import U64
from operators.plan.predicates import left_conditions
from operators.state.match import LEFT, RIGHT, Match
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask


@dataclass(frozen=True, slots=True)
class Span:
    """The instants of a slice: first .. last."""

    first: int
    last: int

    @property
    def until(self) -> int:
        """The first instant after it."""
        return self.last + 1


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """When some rows are in a set during a slice. Rows that are not spoken of stay in it, or out of it.

    Attributes:
        rows: (n,) ascending.
        place: (n,) each row's place before the slice.
        offsets, first, last: (n + 1,) and runs of instants, per row ascending; two may touch.
    """

    rows: I64
    place: I64
    offsets: I64
    first: I64
    last: I64

    def __len__(self) -> int:
        return len(self.rows)

    def some(self) -> Mask:
        """(n,) True where there is a run."""
        return np.asarray(self.offsets[1:] > self.offsets[:-1])

    def lasting(self, last: int) -> Mask:
        """(n,) True where a run goes to the end of the slice."""
        found = self.some()
        found[found] = self.last[self.offsets[1:][found] - 1] == last
        return found


@dataclass(slots=True)
class Places:
    """What a pipeline knows of every living left tuple, as rings by row.

    Attributes:
        place: 0 where the row is no living tuple; k + 1 where operator k stops it; one more than there are
            operators where it is in the answer.
        witness: k + 1 where a migration has left open which operator stops it, since operator k covers it anyway.
    """

    place: I64
    witness: I64


class Difference:
    """One operator: what comes from the left, minus one stream.

    Its left state holds all living tuples that have ever come from the left, its right state the stream's.

    Attributes:
        alias: what it subtracts.
        results: how often a tuple came through, also again after a match; the matches are its `match`'s results.
    """

    def __init__(self, sources: Sources, first: str, alias: str) -> None:
        self.alias = alias
        self.results = 0
        self.match = Match(sources, (first,), (alias,))
        self._sources = sources
        self._life = Lives(sources, first)
        self._match_life = Lives(sources, alias)
        self._conditions = left_conditions(sources.query, alias)
        self.covers = Covers(sources.store(first), sources.store(alias), self._match_life)
        condition = self.match.condition
        self.states: tuple[SideState, SideState] = (
            _LateState(
                (first,),
                sources.life[first],
                hashed=bool(condition.keys),
                int_terms=len(condition.int_terms),
                float_terms=len(condition.float_terms),
            ),
            self.match.new_state(RIGHT),
        )

    def process(
        self, number: int, left: Runs, matches: Tuples, ended: I64, resumed: I64, places: Places, span: Span
    ) -> Runs:
        """Run one slice.

        Args:
            number: of this operator in its pipeline; 0 is the first.
            matches: new tuples of the subtracted stream, ascending by ts.
            ended: rows whose latest match has ended, in no order.
            resumed: rows that this operator has just been asked about (`ask`), whose place it is; ascending.
            places: updated for the rows that come out of it.

        Returns:
            The rows that come through, or came through before the slice and do no more.
        """
        mask = len(places.place) - 1
        here = self.covers.asked(left.rows)
        open_ = ~here & (places.witness[left.rows & mask] > 0)
        new = np.flatnonzero(~here & ~open_ & left.some())
        order = np.argsort(left.first[left.offsets[new]], kind="stable")
        coming = self._coming(left.rows[new][order], left.first[left.offsets[new]][order])
        pair_rows, pair_matches = self._pairs(coming, matches, span)

        rows = np.unique(np.concatenate([left.rows, resumed, pair_rows, ended]))
        given = np.full(len(rows), -1)
        given[np.searchsorted(rows, left.rows)] = np.arange(len(left))
        told = given >= 0
        place = places.place[rows & mask]
        place[told] = left.place
        parked = np.zeros(len(rows), np.bool_)
        parked[told] = open_
        present = ~told & (place > number)
        pair_offsets = np.append(np.searchsorted(pair_rows, rows), len(pair_rows))
        offsets, first, last = uncovered_runs(
            given, present, left.offsets, left.first, left.last, span.first, span.last,
            np.where(parked, span.last, self.covers.covered_to(rows)),
            pair_offsets, self._match_life.begin(pair_matches), self._match_life.end(pair_matches),
        )  # fmt: skip
        self.covers.note(pair_rows, pair_matches)

        out = Runs(rows, place, offsets, first, last)
        went_on = (place > number + 1) & out.some()
        went_on[went_on] = first[offsets[:-1][went_on]] == span.first
        self.results += len(first) - int(np.count_nonzero(went_on))
        stays = present.copy()
        stays[told] = left.lasting(span.last)
        places.place[rows[stays] & mask] = number + 1 + out.lasting(span.last)[stays]
        return _kept(out, out.some() | (place > number + 1))

    def ask(self, rows: I64, ts: int) -> U64 | None:
        """Ask about rows that have been here before the slice that begins at `ts`, and note their matches.

        Returns:
            Their distinct key hashes, ascending; None where there is no key.
        """
        coming = self._coming(rows, np.full(len(rows), ts))
        match = self.match
        prepared = match.prepare(LEFT, coming)
        match.enter(self.states[LEFT], prepared, ts)
        found = match.find(LEFT, prepared, self.states[RIGHT], strict=False)
        self.covers.note(*_by_row(found))
        return None if prepared.hashes is None else np.unique(prepared.hashes)

    def _coming(self, rows: I64, ts: I64) -> Tuples:
        """Rows that come here for the first time, at `ts`, which ascend; without those that nothing can match."""
        self.covers.ask(rows)
        sources, aliases = self._sources, self.match.sides[LEFT]
        for condition in self._conditions:
            good = holds(condition, sources.resolver(aliases, rows[np.newaxis]), len(rows))
            rows, ts = rows[good], ts[good]
        return Tuples(aliases, np.ascontiguousarray(rows[np.newaxis]), ts, self._life.end(rows))

    def _pairs(self, coming: Tuples, matches: Tuples, span: Span) -> tuple[I64, I64]:
        """New left tuples with living matches and new matches with living left tuples, by row, then in the total order.

        A pair may be in it that was alive at no common instant; none is missing. All left tuples of it are alive at
        the slice's beginning: `Match` passes over those that a ROWS window has lost, though a state learns it later.
        """
        match = self.match
        match.counters.input_tuples += len(coming) + len(matches)
        match.counters.left_tuples += len(coming)
        left, right = match.prepare(LEFT, coming), match.prepare(RIGHT, matches)
        match.enter(self.states[LEFT], left, span.first)
        match.enter(self.states[RIGHT], right, span.first)
        found = Tuples.concat(
            [
                match.find(LEFT, left, self.states[RIGHT], strict=True),
                match.find(RIGHT, right, self.states[LEFT], strict=False),
            ],
            match.aliases,
        )
        return _by_row(found)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        for state in self.states:
            state.purge(cut)
            for alias in state.aliases:
                if alias in self._sources.rows_windows:
                    state.purge_rows(alias, self._sources.first_live_row(alias))

    def size_bytes(self) -> int:
        """Bytes of its states."""
        return self.covers.size_bytes() + sum(state.size_bytes() for state in self.states)


class _LateState(SideState):
    """Tuples that were entered when they came to an operator, which need not be in the order of their rows."""

    def purge_rows(self, alias: str, first_row: int) -> None:
        """Drop them when room is made: none leads the others."""
        self._dead_rows[alias] = first_row


def _by_row(pairs: Tuples) -> tuple[I64, I64]:
    order = np.lexsort((pairs.rows[1], pairs.rows[0]))
    return pairs.rows[0][order], pairs.rows[1][order]


def _kept(runs: Runs, keep: Mask) -> Runs:
    """Some rows with their runs; the others have none."""
    if keep.all():
        return runs
    counts = (runs.offsets[1:] - runs.offsets[:-1])[keep]
    offsets = np.append(0, np.cumsum(counts))
    return Runs(runs.rows[keep], runs.place[keep], offsets, runs.first, runs.last)
