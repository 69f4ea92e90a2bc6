"""Finds the pending results of a shared operator by joining blocks; `operators.groups.spill` defines which are pending.

Tuples on disk and in memory, stream by stream in their order, are cut into blocks. A combination is found by the first
of its inputs whose tuple is *new*: it came after the end of the last cleanup. So for every set of inputs that some
queries read, each new block of each input is a *search*: of the other inputs, those tuples are sought that can match it
(`operators.groups.semi_joins`). What is left is joined by an operator of its own. Each of its joins takes one *share*
per input; the shares are as large as memory allows, and one join is enough where keys tell tuples apart. Searches and
joins are left out where no combination can be pending or alive.

A `GroupCleanup` covers the tuples that were there when it began. A step is the search of a block, or one join. Between
two steps tuples may arrive and leave: those that leave then were in memory until after the end of the range.

Cost: with n tuples per window in blocks of b, n / b searches per window and input, each of which reads the other
inputs' windows once. Where no equality tells tuples apart, every search makes (n / b) ** (inputs - 1) joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.groups.semi_joins import Equality, equalities, reduced
from operators.juggler.predicates.rows import columns_of_rows
from operators.juggler.state.sources import GroupSources, nulls
from operators.spill.spilled_part import PieceReader, SpilledPiece
from operators.state.store import SourceStore
from schemas.columns import I64, Batch
from schemas.groups import Member, QueryGroup, seeing

MIN_BLOCK_TUPLES = 256
"""The budget makes no block smaller than this."""

STEP_TUPLES = 1 << 12
"""The fixed cost of a step, in tuples scanned: each step makes an operator."""

JoinTuples = Callable[[GroupSources, QueryGroup, Mapping[str, Tuples]], Mapping[str, Tuples]]

LateResults = tuple[GroupSources, Member, Tuples]
"""Pending results of a query, ascending by (ts, rows), and the stores that its rows are in."""


@dataclass(frozen=True, slots=True)
class InputPosition:
    """A position in the total order of the input.

    Attributes:
        rows: by stream the first row that is not older than `ts`.
    """

    ts: int
    rows: Mapping[str, int]

    def since(self, begin: InputPosition) -> int:
        """The number of tuples between another position and this one."""
        return sum(row - begin.rows.get(name, row) for name, row in self.rows.items())


ALWAYS = (-FOREVER, FOREVER)


@dataclass(frozen=True, slots=True)
class CleanupQueries:
    """The queries that may have pending results.

    Attributes:
        since: by query and input, the least ts of tuples that the query may see.
        spans: by query, the begin and the end of the event times of its results; ALWAYS where it is absent.
    """

    group: QueryGroup
    since: Mapping[str, Mapping[str, int]]
    spans: Mapping[str, tuple[int, int]]

    def span(self, name: str) -> tuple[int, int]:
        """See above."""
        return self.spans.get(name, ALWAYS)


@dataclass(frozen=True, slots=True)
class SpilledRows:
    """Tuples of a stream that were spilled together, rows lo .. hi - 1.

    Attributes:
        first_ts, last_ts: of the first and the last tuple.
        left_at: the cut at which they left memory.
    """

    lo: int
    hi: int
    first_ts: int
    last_ts: int
    left_at: int
    piece: SpilledPiece


@dataclass(frozen=True, slots=True)
class JoinBlock:
    """Tuples of a stream for one join, rows lo .. hi - 1.

    Attributes:
        first_ts, last_ts: of the first and the last tuple.
        left_at: the earliest cut at which some of them had left memory when this was made.
    """

    lo: int
    hi: int
    first_ts: int
    last_ts: int
    left_at: int

    def rows(self) -> I64:
        """(n,) the numbers of all its rows."""
        return np.arange(self.lo, self.hi, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BlockSearch:
    """A new block of an input, to be joined with the tuples that can match it.

    Attributes:
        group: queries that read the same inputs.
        asked: the equalities of these queries.
        first: the input's index in the group.
        candidates: per input the blocks whose tuples may match the block; for `first`, the block itself.
    """

    group: QueryGroup
    asked: Sequence[tuple[Equality, ...]]
    first: int
    candidates: tuple[Sequence[JoinBlock], ...]

    @property
    def tuples(self) -> int:
        """The number of tuples in all candidates."""
        return sum(block.hi - block.lo for blocks in self.candidates for block in blocks)


@dataclass(frozen=True, slots=True, eq=False)
class RowShare:
    """Tuples of an input for one join.

    Attributes:
        rows: (n,) their numbers, ascending.
        first_ts, last_ts, left_at: as for the blocks that contain them.
    """

    rows: I64
    first_ts: int
    last_ts: int
    left_at: int


@dataclass(slots=True)
class GroupSpillCounters:
    """Totals so far.

    Attributes:
        cleanups: ranges of the input that were cleaned up.
        joins: of one share per input.
        results: of all queries.
    """

    spills: int = 0
    spilled_tuples: int = 0
    cleanups: int = 0
    joins: int = 0
    results: int = 0
    cleanup_s: float = 0.0
    longest_cleanup_s: float = 0.0
    longest_spill_s: float = 0.0


class GroupCleanup:
    """Finds the pending results between two positions.

    Args:
        parts: by stream the rows on disk, in their order. More may be added meanwhile, but none removed.
        choice_tuples: how many tuples are joined at once.
        counters: changed.

    Attributes:
        end: the results before this are found.
        tuples: how many came between the two positions.
        done_tuples: for how many of these the pending results have been found.
        work: the cost of all steps, in tuples that they scan; before the end, a lower bound.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[SpilledRows]],
        reader: PieceReader,
        choice_tuples: int,
        begin: InputPosition,
        end: InputPosition,
        queries: CleanupQueries,
        sources: GroupSources,
        counters: GroupSpillCounters,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._choice_tuples = choice_tuples
        self._begin = begin
        self.end = end
        self._counters = counters
        self.tuples = end.since(begin)
        self.done_tuples = 0.0
        # As of now: until the last step, a query of the same name may take a query's place.
        self._spans = {member.name: queries.span(member.name) for member in queries.group.members}
        sets: dict[frozenset[str], list[Member]] = {}
        group = queries.group
        for member in group.members:
            first, last = self._spans[member.name]
            if len(member.inputs) > 1 and first < end.ts and begin.ts < last:
                seen = queries.since.get(member.name, {})
                sets.setdefault(frozenset(member.inputs), []).append(_seeing(member, seen))
        self._searches = [
            search for members in sets.values() for search in self._searches_of(group.restricted(members), sources)
        ]
        self._search_tuples = self.tuples / max(len(self._searches), 1)
        self.work = sum(search.tuples + STEP_TUPLES for search in self._searches)
        # The joins left of the present search, and the number of tuples whose results each of them completes.
        self._choices: list[tuple[QueryGroup, tuple[RowShare, ...]]] = []
        self._choice_result_tuples = 0.0

    def __bool__(self) -> bool:
        """Whether any step is left."""
        return bool(self._searches or self._choices)

    def step(self, sources: GroupSources, join: JoinTuples) -> tuple[list[LateResults], int]:
        """Run one step; return its results, and the number of tuples that it scanned.

        Args:
            sources: with the tuples in memory.
            join: returns every query's results of tuples by input, which are in stores of their own.

        Raises:
            StateError: a block cannot be read.
        """
        if not self._choices:
            search = self._searches.pop()
            self._choices = list(self._choices_of(search, sources))
            self._choice_result_tuples = self._search_tuples / max(len(self._choices), 1)
            self.done_tuples += 0.0 if self._choices else self._search_tuples
            return [], STEP_TUPLES + search.tuples
        group, chosen = self._choices.pop()
        self.done_tuples += self._choice_result_tuples
        names = [source.alias for source in group.inputs]
        found = list(self._joined(group, dict(zip(names, (own.rows for own in chosen), strict=True)), sources, join))
        scanned = STEP_TUPLES + sum(len(own.rows) for own in chosen)
        self.work += scanned
        return found, scanned

    # --- Searches ---------------------------------------------------------------------------------------

    def _searches_of(self, group: QueryGroup, sources: GroupSources) -> Iterator[BlockSearch]:
        """Every new block of every input, with the blocks of the other inputs whose tuples may have pending results
        with it."""
        asked = equalities(group)
        streams = [source.stream.name for source in group.inputs]
        blocks = {name: self._blocks(sources, name, len(streams)) for name in dict.fromkeys(streams)}
        old = {name: [block for block in own if block.last_ts < self._begin.ts] for name, own in blocks.items()}
        new = {name: [block for block in own if block.last_ts >= self._begin.ts] for name, own in blocks.items()}
        reaches = self._reaches(group)
        for first, stream in enumerate(streams):
            # `first` is the first input whose tuple is new.
            given = [(old if i < first else blocks)[name] for i, name in enumerate(streams)]
            for block in new[stream]:
                matching = tuple(
                    [block] if i == first else [
                        other
                        for other in own
                        if other.last_ts + reaches[i] >= block.first_ts
                        and block.last_ts + reaches[first] >= other.first_ts
                    ]
                    for i, own in enumerate(given)
                )
                if all(matching) and _may_be_pending([other for own in matching for other in own]):
                    yield BlockSearch(group, asked, first, matching)

    def _reaches(self, group: QueryGroup) -> list[int]:
        """Per input the maximum time for which a tuple can be matched."""
        windows = [group.windows(source.alias) for source in group.inputs]
        return [
            own[0].size if all(window.kind == "RANGE" for window in own) else FOREVER for own in windows
        ]

    def _blocks(self, sources: GroupSources, name: str, inputs: int) -> list[JoinBlock]:
        """The tuples of a stream before the end, cut into blocks; those of a table are one block."""
        store = sources.stores[name]
        most = max(MIN_BLOCK_TUPLES, self._choice_tuples // inputs)
        begin = self._begin.rows.get(name, store.lo)
        blocks: list[JoinBlock] = []
        for part in self._parts.get(name, ()):
            if part.lo >= self.end.rows.get(name, FOREVER):
                break
            last = blocks[-1] if blocks else None
            if last is None or part.hi - last.lo > most or last.lo < begin <= part.lo:
                blocks.append(JoinBlock(part.lo, part.hi, part.first_ts, part.last_ts, part.left_at))
            else:
                blocks[-1] = replace(last, hi=part.hi, last_ts=part.last_ts, left_at=min(last.left_at, part.left_at))
        end = min(store.hi, self.end.rows.get(name, store.hi))
        bounds = sorted({store.lo, max(store.lo, min(begin, end)), end} if store.lo < end else ())
        for lo, hi in pairwise(bounds):
            step = hi - lo if name in {table.name for table in sources.query.tables()} else most
            for at in range(lo, hi, step):
                ts = times_of(store, np.arange(at, min(at + step, hi)))
                blocks.append(JoinBlock(at, at + len(ts), int(ts[0]), int(ts[-1]), FOREVER))
        return blocks

    # --- Tuples that match a block ----------------------------------------------------------------------

    def _choices_of(
        self, search: BlockSearch, sources: GroupSources
    ) -> Iterator[tuple[QueryGroup, tuple[RowShare, ...]]]:
        """Every choice of one share per input that can match a search's block and may have pending results."""
        inputs = search.group.inputs
        names = [source.alias for source in inputs]
        blocks = dict(zip(names, search.candidates, strict=True))

        def read(name: str) -> Iterator[tuple[I64, Batch]]:
            stream = inputs[names.index(name)].stream.name
            for block in blocks[name]:
                batch, rows, _ = self._read(sources.stores[stream], stream, block.rows())
                yield rows, batch

        left = reduced(search.asked, names[search.first], names, read)
        room = max(MIN_BLOCK_TUPLES, self._choice_tuples // len(names))
        shares = [_shares(blocks[name], left.get(name), room) for name in names]
        order = [search.first, *(i for i in range(len(names)) if i != search.first)]
        reaches = self._reaches(search.group)
        for found in _combinations([shares[i] for i in order], [reaches[i] for i in order]):
            if _may_be_pending(found):
                share_of = dict(zip(order, found, strict=True))
                yield search.group, tuple(share_of[i] for i in range(len(names)))

    # --- Joins ------------------------------------------------------------------------------------------

    def _joined(
        self, group: QueryGroup, chosen: Mapping[str, I64], sources: GroupSources, join: JoinTuples
    ) -> Iterator[LateResults]:
        """The pending results among combinations of some rows per input."""
        self._counters.joins += 1
        own = GroupSources(group)
        own.cut = self.end.ts
        rows: dict[str, I64] = {}
        left_at_of: dict[str, I64] = {}
        for stream, store in own.stores.items():
            readers = [source.alias for source in group.inputs if source.stream.name == stream]
            wanted = np.unique(np.concatenate([chosen[name] for name in readers]))
            batch, there, left_at_of[stream] = self._read(sources.stores[stream], stream, wanted, store)
            ids = store.append(batch)
            rows |= {name: ids[np.isin(there, chosen[name])] for name in readers}
        if not all(len(ids) for ids in rows.values()):
            return
        epoch = {}
        for name, ids in rows.items():
            ts = np.asarray(own.store(name).gather("_ts", ids).values, np.int64)
            epoch[name] = Tuples((name,), ids[np.newaxis], ts, np.full(len(ids), FOREVER))
        stream_of = {source.alias: source.stream.name for source in group.inputs}
        found = join(own, group, epoch)
        for member in group.members:
            tuples = found.get(member.name)
            if tuples is None or not len(tuples):
                continue
            left_at = np.full(len(tuples), FOREVER)
            for name, ids in zip(tuples.aliases, tuples.rows, strict=True):
                left_at = np.minimum(left_at, left_at_of[stream_of[name]][ids])
            first, last = self._spans[member.name]
            late = (tuples.ts >= max(self._begin.ts, first)) & (tuples.ts < min(self.end.ts, last))
            pending = tuples.take(late & (left_at <= tuples.ts))
            if len(pending):
                self._counters.results += len(pending)
                yield own, member, pending

    def _read(
        self, store: SourceStore, name: str, rows: I64, into: SourceStore | None = None
    ) -> tuple[Batch, I64, I64]:
        """Tuples of a stream by their row numbers, ascending. Dead tuples may be missing.

        Args:
            into: the store whose columns the result has; None for those of `store`.

        Returns:
            The tuples, (n,) their numbers, and (n,) when each left memory.
        """
        into = into or store
        batches: list[Batch] = []
        numbers: list[I64] = []
        left_at: list[I64] = []
        for part in self._parts.get(name, ()):
            some = rows[np.searchsorted(rows, part.lo) : np.searchsorted(rows, part.hi)]
            if len(some):
                (batch,) = self._reader.read([part.piece])
                batches.append(_with_columns(batch.take(some - part.lo), some, into))
                numbers.append(some)
                left_at.append(np.full(len(some), part.left_at))
        some = rows[np.searchsorted(rows, store.lo) :]
        if len(some) or not batches:
            columns = {column: store.gather(column, some) for column in into.columns if column in store.columns}
            batches.append(_with_columns(Batch(times_of(store, some), columns), some, into))
            numbers.append(some)
            left_at.append(np.full(len(some), FOREVER))
        return Batch.concat(batches), np.concatenate(numbers), np.concatenate(left_at)


def _may_be_pending(blocks: Sequence[JoinBlock | RowShare]) -> bool:
    """Whether combinations of these tuples may be pending: one had left memory by the time of another."""
    return min(block.left_at for block in blocks) <= max(block.last_ts for block in blocks)


def _shares(blocks: Sequence[JoinBlock], left: I64 | None, room: int) -> list[RowShare]:
    """The rows that are left of an input's blocks (all if None), in shares of at most `room` tuples."""
    shares: list[RowShare] = []
    for block in blocks:
        rows = block.rows() if left is None else left[np.searchsorted(left, block.lo) : np.searchsorted(left, block.hi)]
        if not len(rows):
            continue
        last = shares[-1] if shares else None
        if last is None or len(last.rows) + len(rows) > room:
            shares.append(RowShare(rows, block.first_ts, block.last_ts, block.left_at))
        else:
            rows = np.concatenate([last.rows, rows])
            shares[-1] = RowShare(rows, last.first_ts, block.last_ts, min(last.left_at, block.left_at))
    return shares


def _combinations(blocks: Sequence[Sequence[RowShare]], reaches: Sequence[int]) -> Iterator[tuple[RowShare, ...]]:
    """Every choice of one share per input whose tuples can be in their windows together.

    Args:
        reaches: per input the time for which a tuple can be matched.
    """
    chosen: list[RowShare] = []

    def more() -> Iterator[tuple[RowShare, ...]]:
        if len(chosen) == len(blocks):
            yield tuple(chosen)
            return
        for block in blocks[len(chosen)]:
            chosen.append(block)
            begin = max(one.first_ts for one in chosen)
            if all(one.last_ts + reach >= begin for one, reach in zip(chosen, reaches, strict=False)):
                yield from more()
            chosen.pop()

    return more()


def times_of(store: SourceStore, rows: I64 | None = None) -> I64:
    """(n,) the ts of rows; of all stored rows where None."""
    return np.asarray(store.gather("_ts", store.stored_rows() if rows is None else rows).values, np.int64)


def _with_columns(batch: Batch, rows: I64, store: SourceStore) -> Batch:
    """Tuples, those rows, with the columns of a store: nulls where a column was not kept when they left."""
    missing = [name for name in store.columns if name not in batch.columns and name != "_ts"]
    extra = columns_of_rows([n for n in missing if n in store.horizons], rows)
    extra |= {name: nulls(store.type_of(name), len(batch)) for name in missing if name not in store.horizons}
    columns = {**batch.columns, **extra}
    return Batch(batch.ts, {name: columns[name] for name in store.columns if name != "_ts"})


def _seeing(member: Member, since: Mapping[str, int]) -> Member:
    """A query that sees no older tuples of its inputs."""
    return replace(member, over_inputs=seeing(member.over_inputs, since))
