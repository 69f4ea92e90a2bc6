"""What a query that comes to a group may see of a stream's past: what the stores hold of it without a gap.

They hold for the longest window, and hold no more than was asked for: columns that some query reads, and tuples that
some query's predicates over that stream alone select. So who comes sees tuples of a stream as far back as

- its longest window has held them (`GroupSources.known_from`);
- every column that it reads has been kept: a new one since the query came that was the first to read it;
- some query that runs has seen them, and asks of the stream nothing that the new one does not ask, too (`implied`);
  nothing at all, where the new one has a ROWS window and nobody has counted the stream's tuples.

Where that is less than its own window holds, it sees none from before that time; where nobody who runs asks for so
little, none from before it came. This depends on what was registered when, not on the data nor on when rows were
purged, so whether unselected tuples are stored all the same changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from operators.data.tuples import FOREVER
from schemas.groups import Member, QueryGroup
from schemas.query import Column, Compare, Expr, Literal, Source, aliases_of, columns_of, substitute

ANY = ""
"""In place of an alias: predicates of different queries over one stream are compared."""
_OPEN = {"<": ("<", "<="), "<=": ("<=",), ">": (">", ">="), ">=": (">=",)}
"""Which comparisons with a constant follow from one with the same constant."""


class Past:
    """Since when which columns and which tuples were kept, by what was registered; -FOREVER: since the beginning."""

    def __init__(self, group: QueryGroup, since: int) -> None:
        self._columns: dict[tuple[str, str], int] = {}
        self._seen = {(m.name, name): since for m in group.members for name in m.inputs}

    def add(
        self, group: QueryGroup, member: Member, cut: int, known: Callable[[Source], int], counted: Collection[str]
    ) -> dict[str, int]:
        """Register a query that comes at `cut`; by its inputs the least ts of tuples that it could see of each.

        Args:
            group: the queries that run already.
            known: since when the stream of one of its sources was held.
            counted: the streams whose tuples have numbers.
        """
        kept = {(stream_of(group, column), column.name) for column in group.columns()}
        found = {}
        for source in member.over_inputs.sources:
            least = known(source)
            for name in columns_read(member, source.alias):
                place = (source.stream.name, name)
                if place not in kept:
                    self._columns[place] = cut
                least = max(least, self._columns.get(place, -FOREVER))
            numbered = source.window.kind != "ROWS" or source.stream.name in counted
            asked = selection(member, source.alias) if numbered else ()
            found[source.alias] = max(least, self._covered(group, source, asked, cut))
        self._seen |= {(member.name, name): least for name, least in found.items()}
        return found

    def rename(self, name: str, other: str) -> None:
        """A query has another name from here on."""
        self._seen = {(other if of == name else of, source): ts for (of, source), ts in self._seen.items()}

    def _covered(self, group: QueryGroup, source: Source, asked: tuple[Expr, ...], cut: int) -> int:
        """Since when all has been kept that a query selects of a source that asks for so much."""
        least = cut
        for other in group.members:
            if not all(aliases_of(predicate) for predicate in other.over_inputs.predicates):
                # A predicate without columns may select nothing.
                continue
            for one in other.over_inputs.sources:
                if one.stream == source.stream and implied(selection(other, one.alias), asked):
                    least = min(least, self._seen[other.name, one.alias])
        return least


def stream_of(group: QueryGroup, column: Column) -> str:
    """The stream that a column over inputs is of."""
    return group.query.source(column.alias).stream.name


def columns_read(member: Member, name: str) -> set[str]:
    """The columns of an input that a query reads."""
    exprs = [*member.over_inputs.predicates, *member.over_inputs.read_of_results()]
    return {c.name for expr in exprs for c in columns_of(expr) if c.alias == name and c.name != "_ts"}


def selection(member: Member, name: str) -> tuple[Expr, ...]:
    """What a query asks of an input alone, with ANY for its name."""
    own = [p for p in member.over_inputs.predicates if aliases_of(p) == {name}]
    return tuple(substitute(p, {c: Column(ANY, c.name, c.type) for c in columns_of(p)}) for p in own)


def implied(less: Iterable[Expr], more: Iterable[Expr]) -> bool:
    """Whether every tuple that satisfies all of `more` satisfies all of `less`, as far as can be seen from how they are
    written: the same predicates, or comparisons of a column with a constant."""
    return all(any(one == other or _tighter(other, one) for other in more) for one in less)


def _tighter(one: Expr, than: Expr) -> bool:
    """Of comparisons of a column with a number, whether the first implies the second."""
    if not (isinstance(one, Compare) and isinstance(than, Compare) and one.left == than.left):
        return False
    if not (isinstance(one.left, Column) and isinstance(one.right, Literal) and isinstance(than.right, Literal)):
        return False
    a, b = one.right.value, than.right.value
    if isinstance(a, bool | str | None) or isinstance(b, bool | str | None) or one.op not in _OPEN:
        return False
    if a == b:
        return than.op in _OPEN[one.op]
    return one.op[0] == than.op[0] and than.op in _OPEN and (a < b) == (one.op[0] == "<")
