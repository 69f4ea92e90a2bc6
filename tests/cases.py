"""Random cases for property tests: queries, rows, plans and ways to feed them (Hypothesis strategies).

Values come from tiny domains, so that matches, duplicates, nulls and ties of timestamps are common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from operators.plan.plan import Join, Leaf, Plan
from schemas.query import (
    ELEMENT,
    Aggregate,
    Aggregation,
    And,
    Arithmetic,
    Array,
    Call,
    ColumnRef,
    Compare,
    Expr,
    Field,
    InList,
    IsNull,
    Like,
    Literal,
    Lookup,
    Not,
    Or,
    Output,
    Query,
    Source,
    Stream,
    Table,
    Type,
    Window,
    aggregate_column,
    group_column,
    looked_up,
    type_of,
)

FIELDS = (
    Field("ts", Type.TIMESTAMP),
    Field("k", Type.BIGINT),
    Field("v", Type.BIGINT),
    Field("d", Type.DOUBLE),
    Field("s", Type.STRING),
    Field("b", Type.BOOLEAN),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from([0, 1, 1, 2, None]),
    "v": st.sampled_from([0, 1, 2, -3, 7, None, 2**63 - 1, -(2**63), 2**53 + 1]),
    "d": st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.5, None, 9007199254740992.0, 9.3e18]),
    "s": st.sampled_from(["", "a", "b", "ab", "ä", "a%b", "longer than eight", None]),
    "b": st.sampled_from([True, False, None]),
}
ALIASES = ("A", "B", "C", "D", "E")


@dataclass(frozen=True)
class Case:
    """A query, its input in arrival order per stream and partition, the rows of its tables, a plan, and how to feed
    it."""

    query: Query
    rows: dict[str, list[list[dict[str, Any]]]]
    plan: Plan
    push_sizes: list[int]
    epoch_ms: int
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """The rows of streams and tables, for the oracle."""
        return {**self.rows, **self.tables}


def window(ranged: bool = False) -> st.SearchStrategy[Window]:
    """A small window; only RANGE when `ranged`."""
    ranges = st.builds(Window, st.just("RANGE"), st.sampled_from([0, 1, 3, 10, 50]))
    if ranged:
        return ranges
    rows = st.builds(Window, st.just("ROWS"), st.integers(1, 4))
    return st.one_of(ranges, ranges, rows, st.just(Window("UNBOUNDED")))


def plan(aliases: tuple[str, ...]) -> st.SearchStrategy[Plan]:
    """Any binary tree over the aliases in any order."""

    def build(order: list[str]) -> st.SearchStrategy[Plan]:
        if len(order) == 1:
            return st.just(Leaf(order[0]))
        return st.integers(1, len(order) - 1).flatmap(
            lambda cut: st.builds(Join, build(order[:cut]), build(order[cut:]))
        )

    return st.permutations(aliases).flatmap(build)


def column(alias: str, name: str) -> ColumnRef:
    """A column of the test streams, or the pseudo-column `_ts`."""
    types = {f.name: f.type for f in FIELDS}
    return ColumnRef(alias, name, types.get(name, Type.TIMESTAMP))


def numeric(aliases: list[str]) -> st.SearchStrategy[Expr]:
    """A numeric expression over one or two columns."""
    base = st.builds(column, st.sampled_from(aliases), st.sampled_from(["k", "v", "d", "k", "_ts"]))

    def combine(pair: tuple[ColumnRef, str, Expr]) -> Expr:
        left, op, right = pair
        kinds = {left.type, right.type}  # type: ignore[union-attr]
        if Type.DOUBLE in kinds:
            return Arithmetic(op, left, right, Type.DOUBLE)  # type: ignore[arg-type]
        return Arithmetic(op, left, right, Type.BIGINT)  # type: ignore[arg-type]

    constant = st.one_of(
        st.builds(Literal, st.sampled_from([0, 1, 2, -1, 5]), st.just(Type.BIGINT)),
        st.builds(Literal, st.sampled_from([0.5, 2.0]), st.just(Type.DOUBLE)),
    )
    mixed = st.tuples(base, st.sampled_from(["+", "-", "*", "/", "%"]), st.one_of(base, constant)).map(combine)
    absolute = base.map(lambda c: Call("ABS", (c,), Type.DOUBLE if c.type is Type.DOUBLE else Type.BIGINT))
    sign = base.map(lambda c: Call("SIGN", (c,), Type.BIGINT))
    return st.one_of(base, base, mixed, absolute, sign)


ORDER = st.sampled_from(["=", "=", "<", "<=", ">", ">=", "<>"])


@st.composite
def join_predicate(draw: st.DrawFn, left: list[str], right: list[str]) -> Expr:
    """A predicate between two groups of aliases."""
    a, b = draw(st.sampled_from(left)), draw(st.sampled_from(right))
    kind = draw(st.sampled_from(["key", "key", "key", "key", "string", "bool", "cross", "order", "band", "any", "or"]))
    match kind:
        case "key":
            return Compare("=", column(a, "k"), column(b, draw(st.sampled_from(["k", "v"]))))
        case "string":
            return Compare(draw(ORDER), column(a, "s"), column(b, "s"))
        case "bool":
            return Compare("=", column(a, "b"), column(b, "b"))
        case "cross":
            return Compare("=", column(a, draw(st.sampled_from(["k", "v", "d"]))), column(b, "d"))
        case "order":
            name = draw(st.sampled_from(["k", "v", "d", "_ts"]))
            return Compare(draw(ORDER), column(a, name), column(b, name))
        case "band":
            name = draw(st.sampled_from(["k", "v", "_ts"]))
            gap = Arithmetic(draw(st.sampled_from(["-", "+"])), column(a, name), column(b, name), Type.BIGINT)
            return Compare(draw(ORDER), gap, Literal(draw(st.sampled_from([0, 1, -2, 5])), Type.BIGINT))
        case "or":
            return Or(
                (
                    Compare("=", column(a, "k"), column(b, "k")),
                    And((IsNull(column(a, "s"), False), Compare("<", column(b, "d"), column(a, "d")))),
                )
            )
        case _:
            return Compare(draw(ORDER), draw(numeric([a, b])), draw(numeric([a, b])))


def text(alias: str) -> st.SearchStrategy[Expr]:
    """A string over one alias."""
    plain = column(alias, "s")
    return st.one_of(
        st.sampled_from([plain, Literal("A", Type.STRING)]),
        st.sampled_from(["LOWER", "UPPER"]).map(lambda name: Call(name, (plain,), Type.STRING)),
        st.just(Call("CONCAT", (plain, Literal("a", Type.STRING)), Type.STRING)),
        st.sampled_from(["$.a[0]", "$.a[1]", "$.b"]).map(lambda path: in_json(plain, path)),
        st.integers(-1, 3).map(lambda n: Call("SUBSTRING", (plain, Literal(n, Type.BIGINT)), Type.STRING)),
        st.just(Call("COALESCE", (plain, Literal("b", Type.STRING)), Type.STRING)),
    )


def in_json(text: Expr, path: str) -> Expr:
    """A value at a place of a text in JSON with another text in it, which breaks some."""
    parts = (Literal('{"a": ["', Type.STRING), text, Literal('", 5]}', Type.STRING))
    return Call("JSON_VALUE", (Call("CONCAT", parts, Type.STRING), Literal(path, Type.STRING)), Type.STRING)


def selection(alias: str) -> st.SearchStrategy[Expr]:
    """A predicate over one alias."""
    return st.one_of(
        st.builds(Compare, ORDER, numeric([alias]), numeric([alias])),
        st.just(Compare(">", column(alias, "k"), Literal(0, Type.BIGINT))),
        st.just(Like(column(alias, "s"), "a%", False)),
        st.just(Like(column(alias, "s"), "a\\%_", True)),
        st.builds(Compare, ORDER, text(alias), text(alias)),
        st.builds(Compare, ORDER, st.just(Call("LENGTH", (column(alias, "s"),), Type.BIGINT)), numeric([alias])),
        st.just(IsNull(column(alias, "v"), True)),
        st.just(Not(column(alias, "b"))),
        st.just(InList(column(alias, "k"), (Literal(1, Type.BIGINT), Literal(None, Type.BIGINT)), True)),
    )


@st.composite
def with_tables(draw: st.DrawFn, sources: tuple[Source, ...], *, first: int = 0) -> tuple[Source, ...]:
    """Sometimes make one or more, but not all, of the sources from number `first` on tables."""
    count = len(sources)
    if count == 1 or draw(st.integers(0, 3)):
        return sources
    chosen = draw(st.sets(st.integers(first, count - 1), min_size=1, max_size=min(count - 1, 2)))
    return tuple(
        Source(s.alias, Table(f"T{s.stream.name}", FIELDS, ""), Window("UNBOUNDED")) if n in chosen else s
        for n, s in enumerate(sources)
    )


def deduplication() -> st.SearchStrategy[dict[str, Any]]:
    """Stream options: often none."""
    columns = st.lists(st.sampled_from(["k", "v", "d", "s", "b", "k"]), min_size=1, max_size=2, unique=True).map(tuple)
    some = st.fixed_dictionaries(
        {"deduplicate": columns, "deduplicate_within_ms": st.sampled_from([1, 3, 10, 30, 1000])}
    )
    return st.one_of(st.just({}), st.just({}), some)


@st.composite
def versioned_table(draw: st.DrawFn, name: str, *, in_file: bool = False) -> Stream:
    """A table in a topic; with `in_file` one that a file can have, too."""
    of_database = not in_file and draw(st.booleans())
    return Stream(
        name=name,
        fields=FIELDS,
        topic=name,
        timestamp="ts",
        disorder_ms=0 if of_database else draw(st.sampled_from([0, 2, 20])),
        format="debezium-json" if of_database else "json",
        primary_key=draw(st.sampled_from([("k",), ("s",), ("s", "k"), ("d",)])),
    )


@st.composite
def lookups(
    draw: st.DrawFn, sources: tuple[Source, ...], tables: Sequence[Stream] = (), *, in_files: bool = False
) -> tuple[Lookup, ...]:
    """Sometimes look tuples of some streams up in tables in topics, of those given if any; a second may use what the
    first has found."""
    streams = [source.alias for source in sources if not source.is_static]
    found: list[Lookup] = []
    if draw(st.integers(0, 2)):
        return ()
    for n in range(draw(st.integers(1, 2))):
        of, earlier = draw(st.sampled_from(streams)), list(found)
        table = draw(
            st.sampled_from(tables) if tables else versioned_table(f"V{draw(st.integers(0, n))}", in_file=in_files)
        )
        table = next((one.table for one in found if one.table.name == table.name), table)
        names = [draw(st.sampled_from(["k", "v"])) if name == "k" else name for name in table.primary_key]
        key = [column(of, name) for name in names]
        if earlier and earlier[0].of == of and draw(st.booleans()):
            key = [replace(one, name=looked_up("L0", one.name)) for one in key]
        found.append(Lookup(f"L{n}", table, of, tuple(key)))
    return tuple(found)


def lookup_column(lookup: Lookup, name: str) -> ColumnRef:
    """A column that is looked up."""
    types = {f.name: f.type for f in FIELDS}
    return ColumnRef(lookup.of, looked_up(lookup.alias, name), types.get(name, Type.TIMESTAMP))


@st.composite
def over_lookups(draw: st.DrawFn, found: Sequence[Lookup], aliases: tuple[str, ...]) -> list[Expr]:
    """Conditions on what is looked up: a row must be there, joins over its columns, selections."""
    predicates: list[Expr] = []
    for one in found:
        if draw(st.booleans()):
            predicates.append(IsNull(lookup_column(one, one.table.primary_key[0]), True))
        if draw(st.booleans()):
            other = draw(st.sampled_from(aliases))
            predicates.append(Compare(draw(ORDER), lookup_column(one, "v"), column(other, "v")))
    return predicates


@st.composite
def make_versions(draw: st.DrawFn, parts: list[list[dict[str, Any]]]) -> None:
    """Make rows versions of a table's rows: with keys, and some of them ends."""
    for row in (row for part in parts for row in part):
        row["k"], row["s"], row["d"] = row["k"] or 0, row["s"] or "a", row["d"] or 0.0
        if draw(st.integers(0, 3)) == 0:
            row["_op"] = "-"


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    most_aliases: int = 4,
    most_rows: int = 14,
    ranged: bool = False,
    partitions: int = 2,
    in_files: bool = False,
) -> Case:
    """A random case; with `ranged`, all windows are RANGE; with `in_files` one that files can have, too."""
    aliases = ALIASES[: draw(st.integers(1, most_aliases))]
    streams = [
        Stream(
            name=f"S{i}",
            fields=FIELDS,
            topic=f"S{i}",
            timestamp="ts",
            disorder_ms=draw(st.sampled_from([0, 0, 2, 20])),
            **draw(deduplication()),
        )
        for i in range(len(aliases))
    ]
    if len(aliases) > 1 and draw(st.booleans()):
        streams[1] = streams[0]
    sources = tuple(Source(a, s, draw(window(ranged))) for a, s in zip(aliases, streams, strict=True))
    sources = draw(with_tables(sources))
    predicates: list[Expr] = []
    for i in range(1, len(aliases)):
        for _ in range(draw(st.integers(0 if i > 1 else 1, 2))):
            predicates.append(draw(join_predicate(list(aliases[:i]), [aliases[i]])))
    for alias in aliases:
        if draw(st.integers(0, 3)) == 0:
            predicates.append(draw(selection(alias)))
    outputs = [Output(f"{a}.{f.name}", column(a, f.name)) for a in aliases for f in FIELDS]
    outputs.append(Output("at", column(aliases[-1], "_ts")))
    found = draw(lookups(sources, in_files=in_files))
    predicates += draw(over_lookups(found, aliases))
    for one in found:
        outputs += [Output(f"{one.alias}.{name}", lookup_column(one, name)) for name in ("v", "s", "d", "_ts")]
    query = Query(
        "q", None, sources, tuple(draw(st.permutations(predicates))), tuple(outputs), lookups=found
    )
    rows: dict[str, list[list[dict[str, Any]]]] = {}

    def some(least: int = 0) -> list[dict[str, Any]]:
        return [
            {"ts": draw(st.integers(0, 60)), **{name: draw(v) for name, v in VALUES.items()}}
            for _ in range(draw(st.integers(least, most_rows)))
        ]

    for stream in query.streams():
        rows[stream.name] = [some(least=stream.is_versioned) for _ in range(draw(st.integers(1, partitions)))]
        if stream.is_versioned:
            draw(make_versions(rows[stream.name]))
        if draw(st.booleans()):
            for part in rows[stream.name]:
                part.sort(key=lambda row: row["ts"])
    return Case(
        query,
        rows,
        draw(plan(aliases)),
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)),
        draw(st.sampled_from([1, 7, 30, 1000])),
        {table.name: some() for table in query.tables()},
    )


ARRAYS = (
    Array("items", (Field("k", Type.BIGINT), Field("s", Type.STRING)), rows=True),
    Array("tags", (Field(ELEMENT, Type.BIGINT),), rows=False),
)
ELEMENTS: tuple[st.SearchStrategy[Any], ...] = (
    st.fixed_dictionaries({"k": VALUES["k"], "s": VALUES["s"]}) | st.none(),
    VALUES["k"],
)
"""The elements of each of these arrays."""


@st.composite
def unnested(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A random case with arrays in some of its streams."""
    return draw(unnesting(draw(of)))


@st.composite
def unnesting(draw: st.DrawFn, case: Case) -> Case:
    """The case with arrays of some streams unnested; conditions and outputs read their elements."""
    streams = {stream.name: stream for stream in case.query.joined_streams()}
    chosen = draw(st.lists(st.sampled_from(sorted(streams)), min_size=1, unique=True))
    rows = dict(case.rows)
    for name in chosen:
        numbers = draw(st.sampled_from([(0,), (0,), (1,), (0, 1)]))
        for number in numbers:
            streams[name] = streams[name].unnest(ARRAYS[number])
            given = st.none() | st.lists(ELEMENTS[number], max_size=3)
            rows[name] = [[{**row, ARRAYS[number].name: draw(given)} for row in part] for part in rows[name]]
    sources = tuple(replace(s, stream=streams.get(s.stream.name, s.stream)) for s in case.query.sources)
    query = replace(case.query, sources=sources)
    outputs = list(query.outputs)
    aliases = [source.alias for source in sources]
    for alias in aliases:
        found = [ColumnRef(alias, field.name, field.type) for field in query.source(alias).stream.fields]
        columns = found[len(FIELDS) :]
        if not query.subtracted or alias == aliases[0]:
            outputs += [Output(f"{alias}.{one.name}", one) for one in columns]
        of_elements = [one for one in columns if one.type is Type.BIGINT]
        if of_elements and draw(st.booleans()):
            other = draw(st.sampled_from([aliases[0]] if query.subtracted else aliases))
            condition = Compare(draw(ORDER), draw(st.sampled_from(of_elements)), column(other, "k"))
            query = _on(query, condition, alias)
    return replace(case, query=replace(query, outputs=tuple(outputs)), rows=rows)


def _on(query: Query, condition: Expr, alias: str) -> Query:
    """The query with one more condition: in WHERE, or in the ON of a subtracted alias."""
    if not query.subtracted or alias == query.sources[0].alias:
        return replace(query, predicates=(*query.predicates, condition))
    parts = tuple(replace(p, on=(*p.on, condition)) if p.alias == alias else p for p in query.subtracted)
    return replace(query, subtracted=parts)


ARGUMENTS = ("k", "v", "d", "d", "_ts")


@st.composite
def aggregated(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A random case with aggregated results."""
    case = draw(of)
    return replace(case, query=draw(aggregating(case.query)))


@st.composite
def aggregating(draw: st.DrawFn, query: Query) -> Query:
    """A query with its results aggregated: any groups, functions and multiples."""
    aliases = [source.alias for source in query.sources]
    plain = st.builds(column, st.sampled_from(aliases), st.sampled_from(["k", "d", "s", "b"]))
    keys = st.one_of(plain, numeric(aliases))
    group_by = tuple(dict.fromkeys(draw(st.lists(keys, max_size=2))))
    outputs = [Output(f"group {i}", group_column(i, type_of(expr))) for i, expr in enumerate(group_by)]
    chosen: dict[Aggregate, None] = {}
    for _ in range(draw(st.integers(1, 4))):
        chosen.setdefault(draw(aggregate(aliases)))
    columns = [aggregate_column(i, found.type) for i, found in enumerate(chosen)]
    outputs += [Output(f"value {i}", column) for i, column in enumerate(columns)]
    if draw(st.booleans()) and columns[0].type is not Type.TIMESTAMP:
        # The values of the SELECT list may change less often than the aggregates do.
        half = Literal(2, Type.BIGINT)
        outputs[len(group_by)] = Output("value 0", Arithmetic("/", columns[0], half, columns[0].type))
    every = draw(st.sampled_from([1, 2, 5, 7, 20, 50, 1000]))
    aggregation = Aggregation(every, group_by, tuple(chosen))
    return replace(query, outputs=tuple(outputs), aggregation=aggregation)


def aggregate(aliases: list[str]) -> st.SearchStrategy[Aggregate]:
    """Any aggregate over some alias."""
    argument = st.one_of(st.builds(column, st.sampled_from(aliases), st.sampled_from(ARGUMENTS)), numeric(aliases))
    text = st.builds(column, st.sampled_from(aliases), st.just("s"))

    def of(function: str, argument: Expr) -> Aggregate:
        type = type_of(argument)
        if function == "COUNT" or (type is Type.TIMESTAMP and function not in ("MIN", "MAX")):
            return Aggregate("COUNT", argument, Type.BIGINT)
        if function in ("AVG", "MEDIAN"):
            return Aggregate(function, argument, Type.DOUBLE)  # type: ignore[arg-type]
        return Aggregate(function, argument, type)  # type: ignore[arg-type]

    return st.one_of(
        st.just(Aggregate("COUNT", None, Type.BIGINT)),
        st.builds(of, st.just("COUNT"), text),
        *[st.builds(of, st.sampled_from(["SUM", "MIN", "MAX", "AVG", "MEDIAN"]), argument)] * 3,
    )
