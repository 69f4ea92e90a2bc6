"""The bound model of a query group: several queries that share the inputs of one operator (Juggler 3.1, 3.2).

An *input* is a stream under a name, with the longest window that any query of the group declares for it (Juggler
3.1.1: the operator's maximum window). Where one query declares a RANGE and another a ROWS window, neither of which
contains the other, the input has the longest of each (`QueryGroup.windows`). Every source of every query reads one
input. Two sources of one query never read the same input, so a stream that a query joins with itself is two inputs. A
source takes the input of its stream that has its alias, else the first input of its stream that its query does not read
yet, else a new input.

A query appears in two forms: `Member.query` is the query as it was registered, `Member.over_inputs` is the same query
with input names in place of its aliases, and otherwise with its own windows, predicates and SELECT list.
`QueryGroup.query` is not a registered query: it has all inputs with their longest windows and nothing else. The stores,
the intake, the watermark and the snapshots of the whole group are made from it.

Invariants: adding and dropping a query never changes which input another member's source reads, nor an input's name.
The inputs are in the order of their first use, in the order of registration.

Limits: a group cannot take EXCEPT, nor aggregates over [ROWS n] windows (`schemas.refusals`); such queries run
standalone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas import refusals
from schemas.errors import UsageError, listed
from schemas.query import (
    ColumnRef,
    Compare,
    Expr,
    Literal,
    Query,
    Source,
    Stream,
    Table,
    Type,
    Window,
    columns_of,
)
from schemas.shared_lookups import over_columns, replace_columns, with_shared_names

GROUP = "group"
"""The name of `QueryGroup.query`, the query over all inputs."""


@dataclass(frozen=True, slots=True)
class Member:
    """A query of a group.

    Attributes:
        query: the query as it was registered.
        inputs: the name of the input that each of its sources reads, in FROM order.
        over_inputs: the query with input names in place of its aliases, and names for its lookups that all queries
            have in common.
    """

    query: Query
    inputs: tuple[str, ...]
    over_inputs: Query

    @property
    def name(self) -> str:
        """The query's name, which is that of its output topic."""
        return self.query.name

    def input_of(self) -> Mapping[str, str]:
        """The input's name for each alias of the query."""
        return dict(zip((source.alias for source in self.query.sources), self.inputs, strict=True))


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Queries that are executed together.

    Attributes:
        members: in the order of registration.
        inputs: what the members read: the alias is the input's name, the window the first of `windows`.
    """

    members: tuple[Member, ...]
    inputs: tuple[Source, ...]

    @property
    def query(self) -> Query:
        """All inputs and lookups, no predicates, no output: the group's stores, intake and watermark are made from
        it."""
        lookups = {(one.of, one.alias): one for member in self.members for one in member.over_inputs.lookups}
        return Query(GROUP, None, self.inputs, (), (), lookups=tuple(lookups.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The queries' names, in the order of registration."""
        return tuple(member.name for member in self.members)

    def windows(self, name: str) -> tuple[Window, ...]:
        """The windows of an input that contain those of all members: UNBOUNDED, or the longest RANGE and ROWS."""
        declared = [
            source.window for member in self.members for source in member.over_inputs.sources if source.alias == name
        ]
        if any(window.kind == "UNBOUNDED" for window in declared):
            return (Window("UNBOUNDED"),)
        kinds = ([window for window in declared if window.kind == kind] for kind in ("RANGE", "ROWS"))
        return tuple(max(same, key=lambda window: window.size) for same in kinds if same)

    def member(self, name: str) -> Member:
        """The query called `name`; KeyError when there is no such query."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(name)

    def columns(self) -> tuple[ColumnRef, ...]:
        """Every column of an input that a predicate or an output of some query reads, each column once."""
        exprs: list[Expr] = []
        for member in self.members:
            exprs += [*member.over_inputs.predicates, *member.over_inputs.result_expressions()]
        return tuple(dict.fromkeys(column for expr in exprs for column in columns_of(expr)))

    def adding(self, query: Query) -> QueryGroup:
        """The group with one more query. Where the query needs it, inputs are added or get longer windows.

        Raises:
            UsageError: no group can take the query, or this group cannot.
        """
        if objection := refusals.objection(query, refusals.SHARED):
            raise UsageError(f"query {query.name!r}: {objection}")
        self._check_beside(query)
        inputs = list(self.inputs)
        taken: dict[str, str] = {}
        for source in query.sources:
            if any(i.alias == source.alias and i.stream == source.stream for i in inputs):
                taken[source.alias] = source.alias
        for source in query.sources:
            if source.alias not in taken:
                taken[source.alias] = _free_input(inputs, source, taken.values())
        names = tuple(taken[source.alias] for source in query.sources)
        member = Member(query, names, _renamed(with_shared_names(query), taken))
        return _of((*self.members, member), inputs)

    def dropping(self, name: str) -> QueryGroup:
        """The group without a query. Inputs that no query reads any more are removed, others may get shorter windows.

        Raises:
            UsageError: there is no such query.
        """
        if name not in self.names:
            raise UsageError(f"the group has no query {name!r}, it has {listed(self.names) or 'none'}")
        return _of(tuple(member for member in self.members if member.name != name), self.inputs)

    def renaming(self, name: str, other: str) -> QueryGroup:
        """The group with query `name` called `other`."""
        members = (
            replace(m, query=replace(m.query, name=other), over_inputs=replace(m.over_inputs, name=other))
            if m.name == name
            else m
            for m in self.members
        )
        return replace(self, members=tuple(members))

    def restricted(self, members: Iterable[Member]) -> QueryGroup:
        """The group of these members over the same inputs, reduced to the inputs that they read."""
        return _of(tuple(members), self.inputs)

    def _check_beside(self, query: Query) -> None:
        """Refuse a query that conflicts with the members."""
        if query.name in self.names:
            raise UsageError(
                f"two queries of the group are called {query.name!r}; each needs a topic of its own, "
                "INSERT INTO 'topic'"
            )
        together = self.query
        known: list[Stream | Table] = [*together.streams(), *together.tables()]
        there = {one.name: one for one in known}
        asked: list[Stream | Table] = [*query.streams(), *query.tables()]
        for stream in asked:
            if there.get(stream.name, stream) != stream:
                raise UsageError(
                    f"query {query.name!r} declares {stream} otherwise than the group's other queries; "
                    "a group has one declaration of each stream"
                )
        writers = {member.query.sink: member.query for member in self.members if member.query.sink is not None}
        for read in query.streams():
            if read.topic in writers:
                raise _read_by_own_group(query, writers[read.topic])
        if any(read.topic == query.sink for read in together.streams()):
            for member in self.members:
                if any(stream.topic == query.sink for stream in member.query.streams()):
                    raise _read_by_own_group(member.query, query)


def _read_by_own_group(reader: Query, writer: Query) -> UsageError:
    return UsageError(
        f"query {reader.name!r} reads what query {writer.name!r} of the same group writes, topic {writer.sink!r}; "
        "put them into two groups"
    )


def query_group(queries: Iterable[Query]) -> QueryGroup:
    """The group of these queries, in this order.

    Raises:
        UsageError: no group can take one of them, or one conflicts with the others.
    """
    group = QueryGroup((), ())
    for query in queries:
        group = group.adding(query)
    return group


def seeing(query: Query, since: Mapping[str, int]) -> Query:
    """The query over tuples with ts >= `since`, event time by alias; an alias that is absent keeps all its tuples."""
    floors = {
        alias: Compare(">=", ColumnRef(alias, "_ts", Type.TIMESTAMP), Literal(ts, Type.TIMESTAMP))
        for alias, ts in since.items()
    }
    if not floors:
        return query
    subtracted_aliases = {subtraction.alias for subtraction in query.subtracted}
    return replace(
        query,
        predicates=(
            *query.predicates,
            *(floor for alias, floor in floors.items() if alias not in subtracted_aliases),
        ),
        subtracted=tuple(
            replace(subtraction, on=(*subtraction.on, floors[subtraction.alias]))
            if subtraction.alias in floors
            else subtraction
            for subtraction in query.subtracted
        ),
    )


def _free_input(inputs: list[Source], source: Source, taken: Iterable[str]) -> str:
    """The name of the first input of the source's stream that is not taken; adds an input where all are taken."""
    used = set(taken)
    for existing in inputs:
        if existing.stream == source.stream and existing.alias not in used:
            return existing.alias
    names = {existing.alias for existing in inputs}
    name, number = source.alias, 2
    while name in names:
        name, number = f"{source.alias}_{number}", number + 1
    inputs.append(replace(source, alias=name))
    return name


def _of(members: tuple[Member, ...], inputs: Sequence[Source]) -> QueryGroup:
    """The group of these members: the inputs that they read, in the order given, with the longest windows."""
    group = QueryGroup(members, tuple(inputs))
    windows = {source.alias: group.windows(source.alias) for source in inputs}
    return QueryGroup(members, tuple(replace(i, window=windows[i.alias][0]) for i in inputs if windows[i.alias]))


def _renamed(query: Query, names: Mapping[str, str]) -> Query:
    """The query with other aliases."""

    def over(column: ColumnRef) -> ColumnRef:
        # Columns that read the groups of an aggregation keep their alias.
        return replace(column, alias=names.get(column.alias, column.alias))

    return replace(
        replace_columns(query, over),
        sources=tuple(replace(source, alias=names[source.alias]) for source in query.sources),
        lookups=tuple(
            replace(one, of=names[one.of], key=tuple(over_columns(expr, over) for expr in one.key))
            for one in query.lookups
        ),
    )


def streams_of(queries: Iterable[Query]) -> tuple[Stream, ...]:
    """The distinct streams of several queries, in order of first use."""
    return tuple({stream.name: stream for query in queries for stream in query.streams()}.values())


def read_by(queries: Iterable[Query]) -> Query:
    """A query with the sources of all these queries, for callers that ask which streams and tables they read."""
    found = tuple(queries)
    return Query(
        GROUP,
        None,
        tuple(source for query in found for source in query.sources),
        (),
        (),
        lookups=tuple(lookup for query in found for lookup in query.lookups),
    )
