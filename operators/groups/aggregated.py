"""Aggregates above a shared operator: queries with aggregates share the joins below these with other queries.

`operators.groups.shared` makes a `GroupAggregate` per such query. The query's join is a member of the group like any
other. Its results go to the query's own `Aggregator` instead of the SELECT list. So a count and an average over one
join, and a query that outputs the join's results, do the work of the join once.

Limits: not over `[ROWS n]` windows. The aggregator would need their ends from stores with this query's windows alone,
so such a query is standalone. So is EXCEPT, which produces no results of a join. A query that is added later sees no
tuples from before: their results were never made for it.
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


class _QuerySources:
    """A group's stores, with the windows of one query: the part of `Sources` that `Aggregator` uses."""

    def __init__(self, sources: GroupSources, member: Member) -> None:
        self._sources = sources
        self.life = {source.alias: life_of(source) for source in member.over_inputs.sources}
        self.rows_windows: dict[str, int] = {}

    def store(self, alias: str) -> SourceStore:
        """The store of an input."""
        return self._sources.store(alias)

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (k, n) component rows."""
        return self._sources.resolver(aliases, rows)


class GroupAggregate:
    """One query's aggregates.

    Attributes:
        nothing: an empty batch of emissions.
    """

    def __init__(self, sources: GroupSources, member: Member) -> None:
        self._member = member
        self._aggregator = Aggregator(member.over_inputs, _QuerySources(sources, member))
        self.nothing = self._aggregator.nothing()

    def process(self, found: Sequence[Tuples], cut: int) -> Batch:
        """Add results, all with ts < cut, in their order; return what is emitted at the multiples before `cut`."""
        return self._aggregator.process(Tuples.concat(found, self._member.inputs), cut)

    def horizon(self, stream: str, cut: int) -> int | None:
        """The smallest ts whose tuples of a stream are needed to find again what is alive at the last multiple before
        `cut`; None where the query does not read it."""
        sources = self._member.over_inputs.sources
        lifetimes = [life_of(s) for s in sources if not s.is_static and s.stream.name == stream]
        if not lifetimes:
            return None
        return max(self._aggregator.needed_from(cut) - max(lifetimes) - 1, 0)

    def size_bytes(self) -> int:
        """Bytes of results that are alive and of groups."""
        return self._aggregator.size_bytes()
