"""One operator of a continuous set difference (JISC 4.7): it subtracts one stream. `DifferencePipeline` runs several.

The answer at an instant consists of the living tuples of the first stream that have no living match in any subtracted
stream. The output is its changes: per tuple the first instant of each run of instants at which it is in the answer, and
the first instant after the run. A match that ends at the instant at which another begins changes nothing. The changes
at an instant depend only on the tuples alive then, so neither epochs nor plans affect them.

An operator's left set is the output of the operators before it. Its own output, its set-difference state, is the part
of the left set that its stream does not cover. These sets are nested, so one number per living tuple describes them
all: the operator that stops it. The cost lies in finding matches: a tuple is joined with an operator's stream from when
it first arrives there until it dies. Hence the plan's order matters: a tuple that an early operator covers all its
lifetime never reaches a later operator.

All changes of a slice are computed at once, operator by operator, for the tuples that may change: those that arrive or
die, those that are matched, and those whose latest match ends (`LatestMatches`). Cost: tuples + matches + changes; an
idle stream costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import holds
from operators.data.tuples import Tuples
from operators.difference.longest_match import LatestMatches, Lifetimes
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
    """When some rows are in a set during a slice. Rows not listed do not change: they stay in the set or out of it.

    Attributes:
        rows: (n,) ascending.
        stopped_by: (n,) which operator stopped each row before the slice, as in `Stops`.
        offsets: (n + 1,) the runs of row i are offsets[i] .. offsets[i + 1] - 1.
        first: the first instant of each run, ascending per row; two runs may touch.
        last: the last instant of each run.
    """

    rows: I64
    stopped_by: I64
    offsets: I64
    first: I64
    last: I64

    def __len__(self) -> int:
        return len(self.rows)

    def some(self) -> Mask:
        """Return (n,) bool: True where the row has a run."""
        return np.asarray(self.offsets[1:] > self.offsets[:-1])

    def lasting(self, last: int) -> Mask:
        """Return (n,) bool: True where a run lasts to `last`, the end of the slice."""
        found = self.some()
        found[found] = self.last[self.offsets[1:][found] - 1] == last
        return found


@dataclass(slots=True)
class Stops:
    """Which operator stops each living left tuple, as rings by row.

    Attributes:
        stopped_by: 0 where the row is no living tuple; k + 1 where operator k stops it; the number of operators + 1
            where it is in the answer.
        witness: k + 1 where a migration has left open which operator stops it, since operator k covers it anyway; else
            0.
    """

    stopped_by: I64
    witness: I64


class Difference:
    """One operator: its left input minus one stream.

    Its left state has all living tuples that have ever arrived from the left, its right state the stream's tuples.

    Attributes:
        alias: the subtracted stream.
        results: how often a tuple passed, counted again after each match. Matches are counted by `match`.
        match: the condition between the two sides.
        latest: the latest match of each left row.
        states: the left and the right state.
    """

    def __init__(self, sources: Sources, first: str, alias: str) -> None:
        self.alias = alias
        self.results = 0
        self.match = Match(sources, (first,), (alias,))
        self._sources = sources
        self._lifetimes = Lifetimes(sources, first)
        self._match_lifetimes = Lifetimes(sources, alias)
        self._conditions = left_conditions(sources.query, alias)
        self.latest = LatestMatches(sources.store(first), sources.store(alias), self._match_lifetimes)
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
        self, number: int, left: Runs, matches: Tuples, ended: I64, resumed: I64, stops: Stops, span: Span
    ) -> Runs:
        """Run one slice.

        Args:
            number: the index of this operator in its pipeline.
            left: the rows that the operator before it passes on.
            matches: new tuples of the subtracted stream, ascending by ts.
            ended: rows whose latest match has ended, in no order.
            resumed: rows stopped by this operator that it has just been asked about (`ask`), ascending.
            stops: updated for rows that this operator already had.
            span: the instants of the slice.

        Returns:
            The rows that pass, and those that passed before the slice and no longer do.
        """
        mask = len(stops.stopped_by) - 1
        here = self.latest.asked(left.rows)
        open_ = ~here & (stops.witness[left.rows & mask] > 0)
        new = np.flatnonzero(~here & ~open_ & left.some())
        order = np.argsort(left.first[left.offsets[new]], kind="stable")
        coming = self._coming(left.rows[new][order], left.first[left.offsets[new]][order])
        pair_rows, pair_matches = self._pairs(coming, matches, span)

        rows = np.unique(np.concatenate([left.rows, resumed, pair_rows, ended]))
        given = np.full(len(rows), -1)
        given[np.searchsorted(rows, left.rows)] = np.arange(len(left))
        listed = given >= 0
        stopped_by = stops.stopped_by[rows & mask]
        stopped_by[listed] = left.stopped_by
        parked = np.zeros(len(rows), np.bool_)
        parked[listed] = open_
        present = ~listed & (stopped_by > number)
        pair_offsets = np.append(np.searchsorted(pair_rows, rows), len(pair_rows))
        offsets, first, last = uncovered_runs(
            given, present, left.offsets, left.first, left.last, span.first, span.last,
            np.where(parked, span.last, self.latest.covered_to(rows)),
            pair_offsets, self._match_lifetimes.begin(pair_matches), self._match_lifetimes.end(pair_matches),
        )  # fmt: skip
        self.latest.note(pair_rows, pair_matches)

        out = Runs(rows, stopped_by, offsets, first, last)
        went_on = (stopped_by > number + 1) & out.some()
        went_on[went_on] = first[offsets[:-1][went_on]] == span.first
        self.results += len(first) - int(np.count_nonzero(went_on))
        stays = present.copy()
        stays[listed] = left.lasting(span.last)
        stops.stopped_by[rows[stays] & mask] = number + 1 + out.lasting(span.last)[stays]
        return _kept(out, out.some() | (stopped_by > number + 1))

    def ask(self, rows: I64, ts: int) -> U64 | None:
        """Match rows that were in the left set before the slice that begins at `ts`, and record their matches.

        Returns:
            Their distinct key hashes, ascending; None where there is no key.
        """
        coming = self._coming(rows, np.full(len(rows), ts))
        match = self.match
        prepared = match.prepare(LEFT, coming)
        match.enter(self.states[LEFT], prepared, ts)
        found = match.find(LEFT, prepared, self.states[RIGHT], strict=False)
        self.latest.note(*_by_row(found))
        return None if prepared.hashes is None else np.unique(prepared.hashes)

    def _coming(self, rows: I64, ts: I64) -> Tuples:
        """Make tuples of rows that arrive here for the first time, without rows that nothing can match.

        Args:
            ts: (n,) when each row arrives here, ascending.
        """
        self.latest.ask(rows)
        sources, aliases = self._sources, self.match.sides[LEFT]
        for condition in self._conditions:
            good = holds(condition, sources.resolver(aliases, rows[np.newaxis]), len(rows))
            rows, ts = rows[good], ts[good]
        return Tuples(aliases, np.ascontiguousarray(rows[np.newaxis]), ts, self._lifetimes.end(rows))

    def _pairs(self, coming: Tuples, matches: Tuples, span: Span) -> tuple[I64, I64]:
        """Join new left tuples with living matches, and new matches with living left tuples.

        No pair is missing, but a pair may have had no common instant. All left tuples of pairs are alive at the start
        of the slice: `Match` skips those that have left a ROWS window, even before the state has dropped them.

        Returns:
            The left rows and their matches, sorted by left row, then in the total order.
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
        """Drop the entries that no tuple with ts >= cut can meet."""
        for state in self.states:
            state.purge(cut)
            for alias in state.aliases:
                if alias in self._sources.rows_windows:
                    state.purge_rows(alias, self._sources.first_live_row(alias))

    def size_bytes(self) -> int:
        """Return the bytes of its states and of `latest`."""
        return self.latest.size_bytes() + sum(state.size_bytes() for state in self.states)


class _LateState(SideState):
    """A state whose tuples were inserted as they arrived at an operator, not necessarily in the order of their rows."""

    def purge_rows(self, alias: str, first_row: int) -> None:
        """Drop dead entries only when room is made: they need not be the oldest."""
        self._dead_rows[alias] = first_row


def _by_row(pairs: Tuples) -> tuple[I64, I64]:
    order = np.lexsort((pairs.rows[1], pairs.rows[0]))
    return pairs.rows[0][order], pairs.rows[1][order]


def _kept(runs: Runs, keep: Mask) -> Runs:
    """Return the rows where `keep` is True, with their runs. The other rows must have no runs."""
    if keep.all():
        return runs
    counts = (runs.offsets[1:] - runs.offsets[:-1])[keep]
    offsets = np.append(0, np.cumsum(counts))
    return Runs(runs.rows[keep], runs.stopped_by[keep], offsets, runs.first, runs.last)
