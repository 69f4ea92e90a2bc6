"""What a shared operator owes for want of memory, found by joining blocks; `operators.groups.spill` says what that is.

Tuples on disk and in memory, stream by stream in their order, are cut into blocks. A combination is found by the first
of its inputs whose tuple is *new*: it came after what was settled before. So for every set of inputs that some queries
read, each new block of each input is a *turn*: of the other inputs those tuples are sought that can meet it
(`operators.groups.semi_joins`), and what is left is joined by an operator of its own, in as many choices of shares, one
per input, as memory asks for: one, where keys tell tuples apart. Turns and choices are left out where no combination
can be owed or live.

A `Settlement` is over what was there when it began, and goes step by step, a turn's search or one choice at a time:
tuples may come and leave between two. What leaves then has been met until after its end.

Cost: with n tuples per window in blocks of b, n / b turns per window and input, each of which reads the other inputs'
windows once. Where no equality tells tuples apart, every turn joins (n / b) ** (inputs - 1) choices.
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
from operators.spill.spilled_part import Piece, Reader
from operators.state.store import SourceStore
from schemas.columns import I64, Batch
from schemas.groups import Member, QueryGroup, seeing

LEAST_BLOCK_TUPLES = 256
"""Blocks are made no smaller than this for a budget's sake."""

STEP_TUPLES = 1 << 12
"""What a step takes however few tuples it is over, in tuples: an operator is made for it."""

Join = Callable[[GroupSources, QueryGroup, Mapping[str, Tuples]], Mapping[str, Tuples]]

Found = tuple[GroupSources, Member, Tuples]
"""What a query was owed, ascending by (ts, rows), and the stores that its rows are of."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the total order.

    Attributes:
        rows: by stream the first one that is not older than `ts`.
    """

    ts: int
    rows: Mapping[str, int]

    def since(self, begin: Mark) -> int:
        """How many tuples came from another place on before this one."""
        return sum(row - begin.rows.get(name, row) for name, row in self.rows.items())


ALWAYS = (-FOREVER, FOREVER)


@dataclass(frozen=True, slots=True)
class Queries:
    """To whom something may be owed.

    Attributes:
        since: by query and input, the least ts of tuples that the query may see.
        spans: by query, from when on and before when its results are; ALWAYS where it is absent.
    """

    group: QueryGroup
    since: Mapping[str, Mapping[str, int]]
    spans: Mapping[str, tuple[int, int]]

    def span(self, name: str) -> tuple[int, int]:
        """See above."""
        return self.spans.get(name, ALWAYS)


@dataclass(frozen=True, slots=True)
class Part:
    """Tuples of a stream that have left together, rows lo .. hi.

    Attributes:
        least, most: the first and the last ts.
        until: the cut at which they left.
    """

    lo: int
    hi: int
    least: int
    most: int
    until: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Block:
    """Tuples of a stream for one join, rows lo .. hi.

    Attributes:
        least, most: the first and the last ts.
        until: of the first that had left when this was made.
    """

    lo: int
    hi: int
    least: int
    most: int
    until: int

    def rows(self) -> I64:
        """(n,) the numbers of all its rows."""
        return np.arange(self.lo, self.hi, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Turn:
    """A new block of an input, to be joined with what can meet it.

    Attributes:
        group: queries that read the same inputs.
        asked: what they ask to be equal.
        first: the input's place in the group.
        candidates: per input the blocks of which tuples may meet the block; of this one the block.
    """

    group: QueryGroup
    asked: Sequence[tuple[Equality, ...]]
    first: int
    candidates: tuple[Sequence[Block], ...]

    @property
    def tuples(self) -> int:
        """All that there are."""
        return sum(block.hi - block.lo for blocks in self.candidates for block in blocks)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Tuples of an input for one join.

    Attributes:
        rows: (n,) their numbers, ascending.
        least, most, until: as of the blocks that they are of.
    """

    rows: I64
    least: int
    most: int
    until: int


@dataclass(slots=True)
class GroupSpillCounters:
    """What has been done so far; `joins` of shares."""

    spills: int = 0
    spilled_tuples: int = 0
    settlements: int = 0
    joins: int = 0
    results: int = 0
    settling_s: float = 0.0
    longest_settling_s: float = 0.0
    longest_spill_s: float = 0.0


class Settlement:
    """Finds what is owed of the results from one place on before another.

    Args:
        parts: by stream what is on disk, in its order; it may become more while this goes on, and not less.
        most: how many tuples are joined at once.
        counters: changed.

    Attributes:
        end: it is over the results before this.
        tuples: how many came between the two places; `settled` of them, as far as this has come.
        work: what its steps take, in tuples that they look at; beforehand what that will be at least.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[Part]],
        reader: Reader,
        most: int,
        begin: Mark,
        end: Mark,
        queries: Queries,
        sources: GroupSources,
        counters: GroupSpillCounters,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._most = most
        self._begin = begin
        self._queries = queries
        self.end = end
        self._counters = counters
        self.tuples = end.since(begin)
        self.settled = 0.0
        sets: dict[frozenset[str], list[Member]] = {}
        group = queries.group
        for member in group.members:
            first, last = queries.span(member.name)
            if len(member.inputs) > 1 and first < end.ts and begin.ts < last:
                seen = queries.since.get(member.name, {})
                sets.setdefault(frozenset(member.inputs), []).append(_seeing(member, seen))
        self._turns = [
            turn for members in sets.values() for turn in self._turns_of(group.restricted(members), sources)
        ]
        self._each = self.tuples / max(len(self._turns), 1)
        self.work = sum(turn.tuples + STEP_TUPLES for turn in self._turns)
        # Of the turn that is on, and what each of them settles.
        self._choices: list[tuple[QueryGroup, tuple[Share, ...]]] = []
        self._share = 0.0

    def __bool__(self) -> bool:
        """Whether anything is left to be done."""
        return bool(self._turns or self._choices)

    def go_on(self, sources: GroupSources, join: Join) -> tuple[list[Found], int]:
        """One step: what was found, and the tuples that it looked at.

        Args:
            sources: with what is in memory.
            join: makes every query's results of tuples by input, which lie in stores of their own.

        Raises:
            StateError: a block cannot be read.
        """
        if not self._choices:
            turn = self._turns.pop()
            self._choices = list(self._chosen(turn, sources))
            self._share = self._each / max(len(self._choices), 1)
            self.settled += 0.0 if self._choices else self._each
            return [], STEP_TUPLES + turn.tuples
        group, chosen = self._choices.pop()
        self.settled += self._share
        names = [source.alias for source in group.inputs]
        found = list(self._joined(group, dict(zip(names, (own.rows for own in chosen), strict=True)), sources, join))
        looked = STEP_TUPLES + sum(len(own.rows) for own in chosen)
        self.work += looked
        return found, looked

    # --- Turns ------------------------------------------------------------------------------------------

    def _turns_of(self, group: QueryGroup, sources: GroupSources) -> Iterator[Turn]:
        """Every new block of every input, with the blocks of the others of whose tuples some may be owed with it."""
        asked = equalities(group)
        streams = [source.stream.name for source in group.inputs]
        blocks = {name: self._blocks(sources, name, len(streams)) for name in dict.fromkeys(streams)}
        old = {name: [block for block in own if block.most < self._begin.ts] for name, own in blocks.items()}
        new = {name: [block for block in own if block.most >= self._begin.ts] for name, own in blocks.items()}
        reaches = self._reaches(group)
        for first, stream in enumerate(streams):
            # The first input of which what comes late is new.
            given = [(old if i < first else blocks)[name] for i, name in enumerate(streams)]
            for block in new[stream]:
                met = tuple(
                    [block] if i == first else [
                        other
                        for other in own
                        if other.most + reaches[i] >= block.least and block.most + reaches[first] >= other.least
                    ]
                    for i, own in enumerate(given)
                )
                if all(met) and _owed([other for own in met for other in own]):
                    yield Turn(group, asked, first, met)

    def _reaches(self, group: QueryGroup) -> list[int]:
        """Per input for how long a tuple can be met, at most."""
        windows = [group.windows(source.alias) for source in group.inputs]
        return [
            own[0].size if all(window.kind == "RANGE" for window in own) else FOREVER for own in windows
        ]

    def _blocks(self, sources: GroupSources, name: str, inputs: int) -> list[Block]:
        """The tuples of a stream before the end, cut into blocks; those of a table are one."""
        store = sources.stores[name]
        most = max(LEAST_BLOCK_TUPLES, self._most // inputs)
        begin = self._begin.rows.get(name, store.lo)
        blocks: list[Block] = []
        for part in self._parts.get(name, ()):
            if part.lo >= self.end.rows.get(name, FOREVER):
                break
            last = blocks[-1] if blocks else None
            if last is None or part.hi - last.lo > most or last.lo < begin <= part.lo:
                blocks.append(Block(part.lo, part.hi, part.least, part.most, part.until))
            else:
                blocks[-1] = replace(last, hi=part.hi, most=part.most, until=min(last.until, part.until))
        end = min(store.hi, self.end.rows.get(name, store.hi))
        bounds = sorted({store.lo, max(store.lo, min(begin, end)), end} if store.lo < end else ())
        for lo, hi in pairwise(bounds):
            step = hi - lo if name in {table.name for table in sources.query.tables()} else most
            for at in range(lo, hi, step):
                ts = times_of(store, np.arange(at, min(at + step, hi)))
                blocks.append(Block(at, at + len(ts), int(ts[0]), int(ts[-1]), FOREVER))
        return blocks

    # --- What meets a block ------------------------------------------------------------------------------

    def _chosen(self, turn: Turn, sources: GroupSources) -> Iterator[tuple[QueryGroup, tuple[Share, ...]]]:
        """Every choice of one share per input of what can meet a turn's block, if it may be owed something."""
        inputs = turn.group.inputs
        names = [source.alias for source in inputs]
        blocks = dict(zip(names, turn.candidates, strict=True))

        def read(name: str) -> Iterator[tuple[I64, Batch]]:
            stream = inputs[names.index(name)].stream.name
            for block in blocks[name]:
                batch, rows, _ = self._read(sources.stores[stream], stream, block.rows())
                yield rows, batch

        left = reduced(turn.asked, names[turn.first], names, read)
        room = max(LEAST_BLOCK_TUPLES, self._most // len(names))
        shares = [_shares(blocks[name], left.get(name), room) for name in names]
        order = [turn.first, *(i for i in range(len(names)) if i != turn.first)]
        reaches = self._reaches(turn.group)
        for found in _together([shares[i] for i in order], [reaches[i] for i in order]):
            if _owed(found):
                place = dict(zip(order, found, strict=True))
                yield turn.group, tuple(place[i] for i in range(len(names)))

    # --- Joins ------------------------------------------------------------------------------------------

    def _joined(
        self, group: QueryGroup, chosen: Mapping[str, I64], sources: GroupSources, join: Join
    ) -> Iterator[Found]:
        """What is owed of combinations of some rows per input."""
        self._counters.joins += 1
        own = GroupSources(group)
        own.cut = self.end.ts
        rows: dict[str, I64] = {}
        until: dict[str, I64] = {}
        for stream, store in own.stores.items():
            readers = [source.alias for source in group.inputs if source.stream.name == stream]
            wanted = np.unique(np.concatenate([chosen[name] for name in readers]))
            batch, there, until[stream] = self._read(sources.stores[stream], stream, wanted, store)
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
                left_at = np.minimum(left_at, until[stream_of[name]][ids])
            first, last = self._queries.span(member.name)
            late = (tuples.ts >= max(self._begin.ts, first)) & (tuples.ts < min(self.end.ts, last))
            owed = tuples.take(late & (left_at <= tuples.ts))
            if len(owed):
                self._counters.results += len(owed)
                yield own, member, owed

    def _read(
        self, store: SourceStore, name: str, rows: I64, into: SourceStore | None = None
    ) -> tuple[Batch, I64, I64]:
        """Tuples of a stream by their row numbers, ascending. What is dead may be missing.

        Args:
            into: the store whose columns they are to have; None for those of `store`.

        Returns:
            The tuples, (n,) their numbers, and (n,) when each left.
        """
        into = into or store
        batches: list[Batch] = []
        numbers: list[I64] = []
        until: list[I64] = []
        for part in self._parts.get(name, ()):
            some = rows[np.searchsorted(rows, part.lo) : np.searchsorted(rows, part.hi)]
            if len(some):
                (batch,) = self._reader.read([part.piece])
                batches.append(_with_columns(batch.take(some - part.lo), some, into))
                numbers.append(some)
                until.append(np.full(len(some), part.until))
        some = rows[np.searchsorted(rows, store.lo) :]
        if len(some) or not batches:
            columns = {column: store.gather(column, some) for column in into.columns if column in store.columns}
            batches.append(_with_columns(Batch(times_of(store, some), columns), some, into))
            numbers.append(some)
            until.append(np.full(len(some), FOREVER))
        return Batch.concat(batches), np.concatenate(numbers), np.concatenate(until)


def _owed(blocks: Sequence[Block | Share]) -> bool:
    """Whether of combinations of tuples some may be owed: one has left by the time of another."""
    return min(block.until for block in blocks) <= max(block.most for block in blocks)


def _shares(blocks: Sequence[Block], left: I64 | None, room: int) -> list[Share]:
    """What is left of an input's blocks, all where None, in shares of no more tuples than there is room for."""
    shares: list[Share] = []
    for block in blocks:
        rows = block.rows() if left is None else left[np.searchsorted(left, block.lo) : np.searchsorted(left, block.hi)]
        if not len(rows):
            continue
        last = shares[-1] if shares else None
        if last is None or len(last.rows) + len(rows) > room:
            shares.append(Share(rows, block.least, block.most, block.until))
        else:
            rows = np.concatenate([last.rows, rows])
            shares[-1] = Share(rows, last.least, block.most, min(last.until, block.until))
    return shares


def _together(blocks: Sequence[Sequence[Share]], reaches: Sequence[int]) -> Iterator[tuple[Share, ...]]:
    """Every choice of one share per input whose tuples some windows can hold together.

    Args:
        reaches: for how long a tuple of an input can be met.
    """
    chosen: list[Share] = []

    def more() -> Iterator[tuple[Share, ...]]:
        if len(chosen) == len(blocks):
            yield tuple(chosen)
            return
        for block in blocks[len(chosen)]:
            chosen.append(block)
            begin = max(one.least for one in chosen)
            if all(one.most + reach >= begin for one, reach in zip(chosen, reaches, strict=False)):
                yield from more()
            chosen.pop()

    return more()


def times_of(store: SourceStore, rows: I64 | None = None) -> I64:
    """(n,) the ts of rows, of all held where None."""
    return np.asarray(store.gather("_ts", store.held_rows() if rows is None else rows).values, np.int64)


def _with_columns(batch: Batch, rows: I64, store: SourceStore) -> Batch:
    """Tuples, those rows, with the columns of a store: nulls where a column was not kept when they left."""
    missing = [name for name in store.columns if name not in batch.columns and name != "_ts"]
    beside = columns_of_rows([n for n in missing if n in store.horizons], rows)
    beside |= {name: nulls(store.type_of(name), len(batch)) for name in missing if name not in store.horizons}
    columns = {**batch.columns, **beside}
    return Batch(batch.ts, {name: columns[name] for name in store.columns if name != "_ts"})


def _seeing(member: Member, since: Mapping[str, int]) -> Member:
    """A query that sees no older tuples of its inputs."""
    return replace(member, over_inputs=seeing(member.over_inputs, since))
