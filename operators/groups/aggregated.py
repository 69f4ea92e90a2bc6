"""Aggregates above a shared operator: queries that cannot share a whole operator share the joins below.

The join of such a query is a member of the group like any other; its results go to the query's own `Aggregator`
instead of the SELECT list. So a count and an average over one join, and a query that wants its results themselves, do
the join's work once.

Limits: not over `[ROWS n]` windows, whose ends the aggregator watches in stores that have the query's windows alone;
such a query runs apart, as does EXCEPT, which gives no results of a join. Who comes later sees no tuples from before:
results of before it came were never made for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from operators.aggregate import Aggregator
from operators.data.evaluate import Resolve
from operators.data.tuples import Tuples
from operators.juggler.state.sources import GroupSources
from operators.state.sources import life_of
from operators.state.store import SourceStore
from schemas.columns import I64, Batch
from schemas.groups import Member


class _OwnWindows:
    """A group's stores, with the windows of one query: what `Aggregator` asks of `Sources`."""

    def __init__(self, sources: GroupSources, member: Member) -> None:
        self._sources = sources
        self.life = {source.alias: life_of(source) for source in member.over_inputs.sources}
        self.rows_windows: dict[str, int] = {}

    def store(self, alias: str) -> SourceStore:
        """The store behind an input."""
        return self._sources.store(alias)

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (k, n) component rows."""
        return self._sources.resolver(aliases, rows)


class Aggregated:
    """One query's aggregates.

    Attributes:
        nothing: no emissions.
    """

    def __init__(self, sources: GroupSources, member: Member) -> None:
        self._member = member
        self._aggregator = Aggregator(member.over_inputs, _OwnWindows(sources, member))
        self.nothing = self._aggregator.nothing()

    def process(self, found: Sequence[Tuples], cut: int) -> Batch:
        """Take in results, all with ts < cut, in their order; what is emitted at the multiples before `cut`."""
        return self._aggregator.process(Tuples.concat(found, self._member.inputs), cut)

    def horizon(self, stream: str, cut: int) -> int | None:
        """The smallest ts whose tuples of a stream are needed to find again what is alive at the last multiple before
        `cut`; None where the query does not read it."""
        lives = [life_of(s) for s in self._member.over_inputs.sources if not s.is_table and s.stream.name == stream]
        if not lives:
            return None
        return max(self._aggregator.held(cut) - max(lives) - 1, 0)

    def size_bytes(self) -> int:
        """Bytes of living results and groups."""
        return self._aggregator.size_bytes()
