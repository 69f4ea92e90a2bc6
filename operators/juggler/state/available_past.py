"""Decides how much of a stream's history a query added to a group may see: what the stores hold without a gap.

`operators.juggler.operator` asks `AvailableHistory.add` when it registers a query. The stores hold tuples for the
longest window, and no more than the queries read: columns that some query reads, and tuples that some query's
predicates over that stream alone select. So a new query sees tuples of a stream as far back as

- the longest window of the stream has held them (`GroupSources.known_from`);
- every column that the query reads has been kept: a new column since the first query that reads it was added;
- some running query has seen them, and the new query's predicates over the stream alone imply all of that query's
  (`implied`). If the new query has a ROWS window and the stream's tuples were not counted, that query must have no
  such predicate.

If that is less than its own window holds, the query sees no tuple from before that time. If no running query meets the
last condition, it sees no tuple from before it was added. All this depends on which queries were registered when, not
on the data and not on when rows were purged. So it makes no difference whether unselected tuples are stored anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from operators.data.tuples import FOREVER
from schemas.groups import Member, QueryGroup
from schemas.query import ColumnRef, Compare, Expr, Literal, Source, aliases_of, columns_of, substitute

ANY_INPUT = ""
"""Replaces aliases, so that predicates of different queries over one stream can be compared."""
_OPEN = {"<": ("<", "<="), "<=": ("<=",), ">": (">", ">="), ">=": (">=",)}
"""By comparison operator, the operators that follow from it for the same constant."""


class AvailableHistory:
    """Records since when columns and tuples have been kept, by the queries registered; -FOREVER: from the start.

    Args:
        group: the first queries.
        since: the ts from which they see tuples.
    """

    def __init__(self, group: QueryGroup, since: int) -> None:
        self._columns_since: dict[tuple[str, str], int] = {}
        self._seen_since = {(m.name, name): since for m in group.members for name in m.inputs}

    def add(
        self, group: QueryGroup, member: Member, cut: int, known: Callable[[Source], int], counted: Collection[str]
    ) -> dict[str, int]:
        """Register a query that is added at `cut`.

        Args:
            group: the queries that run already.
            member: the new query.
            cut: everything before it has been processed.
            known: returns the ts since which the stream of a source was stored.
            counted: the streams whose tuples have numbers.

        Returns:
            By input of the query the least ts of tuples that it could see.
        """
        kept = {(stream_of(group, column), column.name) for column in group.columns()}
        found = {}
        for source in member.over_inputs.sources:
            least = known(source)
            for name in columns_read(member, source.alias):
                column = (source.stream.name, name)
                if column not in kept:
                    self._columns_since[column] = cut
                least = max(least, self._columns_since.get(column, -FOREVER))
            numbered = source.window.kind != "ROWS" or source.stream.name in counted
            asked = selection(member, source.alias) if numbered else ()
            found[source.alias] = max(least, self._covered(group, source, asked, cut))
        self._seen_since |= {(member.name, name): least for name, least in found.items()}
        return found

    def rename(self, name: str, other: str) -> None:
        """Rename a query."""
        self._seen_since = {(other if of == name else of, source): ts for (of, source), ts in self._seen_since.items()}

    def _covered(self, group: QueryGroup, source: Source, asked: tuple[Expr, ...], cut: int) -> int:
        """The ts since which all tuples of a source were kept that satisfy the predicates `asked`."""
        least = cut
        for other in group.members:
            if not all(aliases_of(predicate) for predicate in other.over_inputs.predicates):
                # A predicate without columns may select nothing.
                continue
            for one in other.over_inputs.sources:
                if one.stream == source.stream and implied(selection(other, one.alias), asked):
                    least = min(least, self._seen_since[other.name, one.alias])
        return least


def stream_of(group: QueryGroup, column: ColumnRef) -> str:
    """The stream of a column over inputs."""
    return group.query.source(column.alias).stream.name


def columns_read(member: Member, name: str) -> set[str]:
    """The columns of an input that a query reads."""
    exprs = [*member.over_inputs.predicates, *member.over_inputs.result_expressions()]
    return {c.name for expr in exprs for c in columns_of(expr) if c.alias == name and c.name != "_ts"}


def selection(member: Member, name: str) -> tuple[Expr, ...]:
    """A query's predicates over one input alone, with ANY_INPUT for its alias."""
    own = [p for p in member.over_inputs.predicates if aliases_of(p) == {name}]
    return tuple(substitute(p, {c: ColumnRef(ANY_INPUT, c.name, c.type) for c in columns_of(p)}) for p in own)


def implied(weaker: Iterable[Expr], stronger: Iterable[Expr]) -> bool:
    """Whether every tuple that satisfies all of `stronger` satisfies all of `weaker`, as far as their text shows: the
    same predicates, or comparisons of a column with a constant."""
    return all(any(one == other or _implies(other, one) for other in stronger) for one in weaker)


def _implies(one: Expr, than: Expr) -> bool:
    """Whether one comparison of a column with a number implies another one."""
    if not (isinstance(one, Compare) and isinstance(than, Compare) and one.left == than.left):
        return False
    if not (isinstance(one.left, ColumnRef) and isinstance(one.right, Literal) and isinstance(than.right, Literal)):
        return False
    a, b = one.right.value, than.right.value
    if isinstance(a, bool | str | None) or isinstance(b, bool | str | None) or one.op not in _OPEN:
        return False
    if a == b:
        return than.op in _OPEN[one.op]
    return one.op[0] == than.op[0] and than.op in _OPEN and (a < b) == (one.op[0] == "<")
