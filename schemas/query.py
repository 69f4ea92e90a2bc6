"""The bound model of a query: what the language means once names and types are resolved.

The parser (`schemas.language.program`) produces these objects; the engine, the oracle and `weir explain` read them.
Everything is frozen and hashable, so a plan or a snapshot can identify a query by value.

Conventions: durations and event times are int64 milliseconds. A null makes a comparison unknown, and
only rows for which every predicate is true are results (three-valued logic, as in SQL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal as Choice

from schemas.durations import format_duration


class Type(StrEnum):
    """Column types. TIMESTAMP values are int64 milliseconds since the epoch, UTC."""

    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    TIMESTAMP = "TIMESTAMP"


Path = tuple[str | int, ...]
"""Where a value is in a record: names of fields and keys of maps, and places in arrays, from 0."""


METADATA: dict[str, Type] = {
    "_key": Type.STRING,
    "_headers": Type.STRING,
    "_partition": Type.BIGINT,
    "_offset": Type.BIGINT,
    "_timestamp": Type.TIMESTAMP,
}
"""The parts of a Kafka record other than its value that a column may be read from (`FROM '_offset'`), each with the
type that such a column must have. A header is `_headers["name"]`. In files these are ordinary fields."""

HEADERS = "_headers"
"""The name of a record's headers. As the first part of an output's alias (`"_headers.trace-id"`) it makes the output a
header of the result."""

VALUE = "value"
KEY = "key"


@dataclass(frozen=True, slots=True)
class Field:
    """A declared column of a stream.

    Attributes:
        path: where its value is, as FROM says; empty without FROM.
        key: whether it is in the record's key, and not in its value.
    """

    name: str
    type: Type
    path: Path = ()
    key: bool = False

    @property
    def place(self) -> Path:
        """Where its value is in a record: without FROM, in the field of the column's name."""
        return self.path or (self.name,)

    @property
    def part(self) -> str:
        """What of a topic's record has it: VALUE, KEY, or one of METADATA."""
        first = str(self.place[0])
        return KEY if self.key else first if first in METADATA else VALUE


OWN_PREFIX = "#"
"""The engine's own columns of a stream's tuples have names that begin with it. Declared columns do not."""

ELEMENT = "value"
"""What the element of an array of plain values is called."""

ORDINAL = "_ordinal"
"""The pseudo-column of an array's elements: the place of each, from 1."""


@dataclass(frozen=True, slots=True)
class Array:
    """A declared array of a stream, whose elements UNNEST makes rows of.

    Attributes:
        fields: what each element has, with paths within it; without `rows` the one value that it is.
        rows: whether elements are objects.
        path: as that of a field.
    """

    name: str
    fields: tuple[Field, ...]
    rows: bool
    path: Path = ()

    @property
    def place(self) -> Path:
        """Where it is in a record."""
        return self.path or (self.name,)

    @property
    def part(self) -> str:
        """What of a topic's record has it; as of a field."""
        first = str(self.place[0])
        return first if first in METADATA else VALUE

    def column(self, name: str) -> str:
        """The name in an unnested stream of what elements have under a name."""
        return f"{self.name}.{name}"

    def columns(self) -> tuple[Field, ...]:
        """The columns that an unnested stream has of it."""
        return (*self.fields_within(self.place), Field(self.column(ORDINAL), Type.BIGINT, (*self.place, ORDINAL)))

    def fields_within(self, element: Path) -> tuple[Field, ...]:
        """The fields under the names of their columns, with their places where an element is at one."""
        places = [(*element, *field.place) if self.rows else element for field in self.fields]
        return tuple(Field(self.column(f.name), f.type, place) for f, place in zip(self.fields, places, strict=True))


@dataclass(frozen=True, slots=True)
class Stream:
    """A declared stream (`CREATE STREAM`).

    Attributes:
        schema: the file of the schema with which all records are written, as the query names it; relative to the
            query's file.
        registry: the URL of the schema registry whose schemas the records name; None for the worker's.
        timestamp: the field that carries event time; None means the Kafka record's own timestamp.
        disorder_ms: how far behind the largest timestamp seen a tuple may arrive without being late.
        rate: declared tuples per second of event time, for plan choice; None when not declared.
        distinct: declared numbers of distinct values, (column, count) pairs, for plan choice.
        key_format: of the records' keys; None if no column is in the key.
        message: for Protobuf, the full name of the message type; None for the first of the schema.
        primary_key: of a table in a topic (`CREATE TABLE ... WITH (topic = ...)`), whose records are versions of rows:
            the columns that name a row. Empty for a stream.
        arrays: the declared arrays.
        unnested: the arrays whose elements multiply the stream's tuples; `fields` has their columns too.
        deduplicate: columns; of the tuples that agree in all of them, the first is taken and repeats are dropped. Empty
            where all tuples are taken.
        deduplicate_within_ms: a repeat is at most so much later than the first.
    """

    name: str
    fields: tuple[Field, ...]
    topic: str
    format: str = "json"
    timestamp: str | None = None
    disorder_ms: int = 0
    idle_timeout_ms: int | None = None
    rate: float | None = None
    distinct: tuple[tuple[str, int], ...] = ()
    schema: str | None = None
    registry: str | None = None
    key_format: str | None = None
    message: str | None = None
    primary_key: tuple[str, ...] = ()
    arrays: tuple[Array, ...] = ()
    unnested: tuple[Array, ...] = ()
    deduplicate: tuple[str, ...] = ()
    deduplicate_within_ms: int = 0

    def unnest(self, array: Array) -> Stream:
        """The stream that has a tuple for each element of an array of it."""
        return replace(self, fields=(*self.fields, *array.columns()), unnested=(*self.unnested, array))

    def of_records(self) -> Stream:
        """The stream as it is before its arrays are unnested: with one tuple for each record."""
        own = {column.name for array in self.unnested for column in array.columns()}
        return replace(self, fields=tuple(field for field in self.fields if field.name not in own), unnested=())

    def field(self, name: str) -> Field | None:
        """The field called `name`, or None."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def is_versioned(self) -> bool:
        """Whether it is a table in a topic, whose records are versions of rows."""
        return bool(self.primary_key)

    @property
    def in_log_order(self) -> bool:
        """Whether versions of rows hold in the order of the log, though a time may be less than the one before it.

        So it is with the changes of a database. The time of a snapshot is that of its beginning as a transaction, and
        changes that were made just before are behind it in the log.
        """
        return self.format in ENVELOPES

    def __str__(self) -> str:
        """For messages: `stream 'rooms'`."""
        return f"{'table' if self.is_versioned else 'stream'} {self.name!r}"


TABLE_TS = -1
"""The ts of every row of a table: before every event time, of which 0 is the first."""


@dataclass(frozen=True, slots=True)
class Table:
    """A declared reference table (`CREATE TABLE`): rows of a file that are there from the start and never leave.

    The rows have no event time of their own: they influence neither a result's ts nor its expiry.

    Attributes:
        path: as written in the query; relative to the query's file.
        format: None where the file's name determines it.
    """

    name: str
    fields: tuple[Field, ...]
    path: str
    format: str | None = None

    def field(self, name: str) -> Field | None:
        """The field called `name`, or None."""
        return next((f for f in self.fields if f.name == name), None)

    def __str__(self) -> str:
        """For messages: `table 'rooms'`."""
        return f"table {self.name!r}"


@dataclass(frozen=True, slots=True)
class Window:
    """How long a tuple lives: RANGE `size` ms, ROWS until `size` later tuples arrived, UNBOUNDED (size 0) for ever."""

    kind: Choice["RANGE", "ROWS", "UNBOUNDED"]
    size: int = 0

    def __str__(self) -> str:
        """The window as the language writes it: `[RANGE 5 MINUTES]`, `[ROWS 100]`, `[UNBOUNDED]`."""
        if self.kind != "RANGE":
            return f"[ROWS {self.size}]" if self.kind == "ROWS" else "[UNBOUNDED]"
        return f"[RANGE {format_duration(self.size)}]"


@dataclass(frozen=True, slots=True)
class Unnest:
    """`CROSS JOIN UNNEST(O.items) AS I (article, amount)`.

    Attributes:
        alias: I, of the elements.
        array: O.items.
        names: what the query calls the fields of an element, in the array's order.
    """

    alias: str
    array: Array
    names: tuple[str, ...]

    def columns(self) -> dict[str, Field]:
        """The columns of the unnested stream that are values of elements, by the names given here."""
        return dict(zip(self.names, self.array.columns()[:-1], strict=True))

    def column(self, name: str) -> Field | None:
        """The column that an element has under a name, or None."""
        return self.array.columns()[-1] if name == ORDINAL else self.columns().get(name)


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of FROM: a stream under an alias with a window, or a table, whose window is UNBOUNDED.

    Two aliases may name one stream.

    Attributes:
        unnests: the arrays that are unnested, in the order of the stream's.
    """

    alias: str
    stream: Stream | Table
    window: Window
    unnests: tuple[Unnest, ...] = ()

    @property
    def endless(self) -> bool:
        """Whether the source is an UNBOUNDED stream, whose tuples keep arriving and never leave."""
        return self.window.kind == "UNBOUNDED" and not self.is_static

    @property
    def is_static(self) -> bool:
        """Whether it is a table in a file, whose rows never change. One in a topic is in a `Lookup`."""
        return isinstance(self.stream, Table)


# --- Expressions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column reference `alias.name`; it is resolved, so `type` is the declared type."""

    alias: str
    name: str
    type: Type


def qualified(alias: str, name: str) -> str:
    """Return the name of a source's column among those of all sources; unique, since an alias with a dot is quoted."""
    quoted = '"' + alias.replace('"', '""') + '"' if "." in alias or '"' in alias else alias
    return f"{quoted}.{name}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `value` is int (BIGINT, TIMESTAMP), float, str, bool, or None for NULL."""

    value: int | float | str | bool | None
    type: Type


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left op right`, op in + - * / %.

    BIGINT with BIGINT stays BIGINT (`/` truncates toward zero, `%` takes the dividend's sign); a DOUBLE
    makes it DOUBLE; TIMESTAMP +- BIGINT is TIMESTAMP, TIMESTAMP - TIMESTAMP is BIGINT (milliseconds).
    Division by zero, BIGINT overflow and a DOUBLE result that is not finite are NULL.
    """

    op: Choice["+", "-", "*", "/", "%"]
    left: Expr
    right: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    operand: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function: ABS, FLOOR, CEIL, ROUND, SQRT, SIGN, LOWER, UPPER, LENGTH, COALESCE, CONCAT, SUBSTRING,
    JSON_VALUE.

    FLOOR, CEIL, ROUND of DOUBLE are DOUBLE (ROUND half to even); LENGTH counts Unicode code points;
    SUBSTRING(s, start [, count]) is 1-based; SQRT of a negative number is NULL. SIGN of either number is
    the BIGINT -1, 0 or 1, and 0 for -0.0. CONCAT with a null is NULL. JSON_VALUE(s, path) is the scalar
    at a place of the JSON text s, where the last of equal keys counts: as a STRING the text of a string, and
    numbers and truth values as they are written; as another type a value that a JSON field of this type accepts.
    All else is NULL, and so is each value of a text that is no JSON.
    """

    name: str
    args: tuple[Expr, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Compare:
    """`left op right`. Numbers compare by exact value (BIGINT against DOUBLE too), strings by code point."""

    op: Choice["=", "<", "<=", ">", ">=", "<>"]
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS [NOT] NULL`: never unknown."""

    operand: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """`operand [NOT] LIKE pattern`: % any run, _ one code point, backslash escapes; case-sensitive."""

    operand: Expr
    pattern: str
    negated: bool


@dataclass(frozen=True, slots=True)
class InList:
    """`operand [NOT] IN (literals)`. A NULL item makes a non-match unknown, as in SQL."""

    operand: Expr
    items: tuple[Literal, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT operand` over three-valued logic."""

    operand: Expr


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction inside an expression (top-level conjuncts are split into `Query.predicates`)."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction."""

    terms: tuple[Expr, ...]


Expr = ColumnRef | Literal | Arithmetic | Negate | Call | Compare | IsNull | Like | InList | Not | And | Or


def type_of(expr: Expr) -> Type:
    """The type of an expression's value; predicates are BOOLEAN."""
    if isinstance(expr, ColumnRef | Literal | Arithmetic | Negate | Call):
        return expr.type
    return Type.BOOLEAN


def columns_of(expr: Expr) -> tuple[ColumnRef, ...]:
    """The columns that an expression reads, each column once, in order of first appearance."""
    found: dict[ColumnRef, None] = {}
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        match node:
            case ColumnRef():
                found.setdefault(node)
            case Arithmetic() | Compare():
                stack += (node.right, node.left)
            case Negate() | IsNull() | Like() | InList() | Not():
                stack.append(node.operand)
            case Call():
                stack += reversed(node.args)
            case And() | Or():
                stack += reversed(node.terms)
            case Literal():
                pass
    return tuple(found)


def substitute(expr: Expr, renamed: Mapping[ColumnRef, ColumnRef]) -> Expr:
    """The expression with its columns replaced; KeyError where `renamed` lacks a column."""

    def each(exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(substitute(e, renamed) for e in exprs)

    match expr:
        case ColumnRef():
            return renamed[expr]
        case Literal():
            return expr
        case Arithmetic() | Compare():
            return replace(expr, left=substitute(expr.left, renamed), right=substitute(expr.right, renamed))
        case Negate() | IsNull() | Like() | InList() | Not():
            return replace(expr, operand=substitute(expr.operand, renamed))
        case Call():
            return replace(expr, args=each(expr.args))
        case And() | Or():
            return replace(expr, terms=each(expr.terms))


def aliases_of(expr: Expr) -> frozenset[str]:
    """The aliases that an expression reads."""
    return frozenset(column.alias for column in columns_of(expr))


@dataclass(frozen=True, slots=True)
class Output:
    """One value of a result: `T.celsius`, or the alias given with AS.

    Attributes:
        nested: whether the dots of its name separate the names of objects in each other: an alias `"customer.id"`.
    """

    name: str
    expr: Expr
    nested: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Where it is in a result object: the keys on the way. The name of a header may have dots."""
        if not self.nested:
            return (self.name,)
        first, rest = self.name.split(".", 1)
        return (first, rest) if first == HEADERS else (first, *rest.split("."))

    @property
    def header(self) -> str | None:
        """The name of the header that a record has it in, an alias `"_headers.trace-id"`; None for a value."""
        return self.path[1] if self.path[0] == HEADERS else None


TIMESTAMP_KEY = "_ts"
"""The key of a result with its event time."""

PHASE_KEY = "_phase"
CLEANUP_PHASE = "cleanup"
"""The `_phase` of results that were pending because of a shortage of memory, and are produced after their time."""

OP_KEY = "_op"
"""The column that a set difference adds: "+" where a tuple enters the answer, "-" where it leaves the answer. In a file
of a table's versions "-" ends a row."""

GROUPED = ""
"""The alias of a column that holds a group's value or aggregate; no source has this alias."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate function over the living results of a group; `argument` is None for COUNT(*).

    Nulls are skipped. Over no values COUNT is 0 and every other function NULL. SUM of BIGINT stays BIGINT (NULL on
    overflow); AVG and MEDIAN are DOUBLE, the median of an even number of values the mean of the middle two.
    """

    function: Choice["COUNT", "SUM", "MIN", "MAX", "AVG", "MEDIAN"]
    argument: Expr | None
    type: Type


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`GROUP BY ... EMIT EVERY d`: sliding aggregates above the join.

    At each multiple t of `every_ms` in event time, the aggregates cover the results alive then (ts <= t <= expiry). A
    group whose values have changed since the last multiple is emitted with `_ts` = t, as an upsert keyed by the group.
    A group without any result alive is emitted once more, with the values over nothing, and then forgotten.

    The query's outputs read columns of the alias GROUPED: see `group_column` and `aggregate_column`.

    Attributes:
        group_by: expressions over one result; empty when all results form one group.
        aggregates: those that the SELECT list reads, each once.
    """

    every_ms: int
    group_by: tuple[Expr, ...]
    aggregates: tuple[Aggregate, ...]


def group_column(index: int, type: Type) -> ColumnRef:
    """The column that stands for a group's value of `Aggregation.group_by[index]`."""
    return ColumnRef(GROUPED, f"group {index}", type)


def aggregate_column(index: int, type: Type) -> ColumnRef:
    """The column that stands for a group's value of `Aggregation.aggregates[index]`."""
    return ColumnRef(GROUPED, f"aggregate {index}", type)


@dataclass(frozen=True, slots=True)
class Subtraction:
    """`EXCEPT B [w] ON ...`: a tuple of the first source is not in the answer while a living `alias` tuple matches it.

    `on` holds conjuncts over the first source and `alias`; those over `alias` alone select its tuples.
    """

    alias: str
    on: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """`rates FOR SYSTEM_TIME AS OF O._ts AS R`: each tuple of O gets the version of a table's row at its event time.

    A version of a row holds from its ts until the row's next version; of versions with equal ts the last in the log
    holds. The tuple's ts and lifetime stay its own.

    The table's columns are columns of `of`, called as `looked_up` says. They are NULL where the table has no such row
    at that time.

    Attributes:
        alias: R.
        table: a table in a topic.
        of: O, an alias of a stream.
        key: over columns of `of`: the values of the table's primary key, column by column.
    """

    alias: str
    table: Stream
    of: str
    key: tuple[Expr, ...]

    def fields(self) -> tuple[Field, ...]:
        """The columns that tuples of `of` get: the table's, and the version's ts."""
        own = (*self.table.fields, Field("_ts", Type.TIMESTAMP))
        return tuple(Field(looked_up(self.alias, field.name), field.type) for field in own)


def looked_up(alias: str, name: str) -> str:
    """What a column of a looked-up row is called among those of the tuple; no declared column is called so."""
    return f"{alias}.{name}"


GONE = "_gone"
"""The column, BOOLEAN, that says of a version of a table's row that the row ends with it."""

SOURCE_TIME = "_source_time"
"""The column with the time that a database gives a change of a row."""

ENVELOPES = {"debezium-json": "json", "debezium-avro": "avro"}
"""Formats of a table's records that describe changes of a database's rows, and what they are written in."""

WITH_SCHEMA = ("avro", "json-schema", "protobuf")
"""The formats whose records name a schema of a registry."""


REGISTERED = "registered"
"""In place of a schema's file: the latest schema that the registry has under the subject."""


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """How results are written as records (`INSERT INTO 'topic' WITH (...)`).

    Attributes:
        format: `json`, `json-schema`, `avro` or `protobuf`.
        registry: the URL of the schema registry; None for the worker's.
        subject: what the registry knows the schema by: the `topic`, the `record`'s name, or both (`topic-record`).
        record: the full name of the record in the schema; None for one made of the topic's name.
        key: outputs of which a record's key is made, which decides its partition. Aggregates have keys without it.
        key_format: `string`, `json`, `json-schema`, `avro` or `protobuf`; None without `key`.
        schema: the file of the schema of values, as the query names it, or REGISTERED; None for one that Weir makes.
        message: for Protobuf with such a schema, the full name of the message type; None for the first.
    """

    format: str = "json"
    registry: str | None = None
    subject: str = "topic"
    record: str | None = None
    key: tuple[str, ...] = ()
    key_format: str | None = None
    schema: str | None = None
    message: str | None = None

    @property
    def has_schema(self) -> bool:
        """Whether values or keys have a schema in a registry."""
        return not {self.format, self.key_format}.isdisjoint(WITH_SCHEMA)


@dataclass(frozen=True, slots=True)
class Query:
    """One continuous query.

    Attributes:
        name: the sink topic's name, or "results" when the query has no INSERT INTO.
        sink: the output topic; None when the query is a bare SELECT.
        sources: in FROM order, which also breaks ties in the total order.
        predicates: top-level conjuncts of WHERE and of the WINDOW clause, in text order.
        outputs: the SELECT list, expanded; over groups where there is an aggregation.
        partition_by: columns named by PARTITION BY, one per alias of a stream; empty when absent.
        aggregation: what is computed above the join; None when the join's results are the answer.
        subtracted: set difference (JISC 4.7): all sources but the first, in text order; empty for a join. `outputs`
            then read the first source only, and an entry into and an exit from the answer are emitted with `_op` "+"
            and "-".
        lookups: the tables in topics in which tuples of the sources are looked up.
        expiry: for aggregates, a column with the last instant at which a result is alive, where windows do not tell;
            None in a query as written (`operators.distributed.decompose`).
        result_format: of the records in the output topic.
        text: the query's text, for messages.
    """

    name: str
    sink: str | None
    sources: tuple[Source, ...]
    predicates: tuple[Expr, ...]
    outputs: tuple[Output, ...]
    partition_by: tuple[ColumnRef, ...] = ()
    aggregation: Aggregation | None = None
    subtracted: tuple[Subtraction, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    expiry: ColumnRef | None = None
    result_format: ResultFormat = ResultFormat()
    text: str = field(default="", compare=False)

    def source(self, alias: str) -> Source:
        """The source under `alias`; KeyError when there is no such source."""
        for source in self.sources:
            if source.alias == alias:
                return source
        raise KeyError(alias)

    def result_expressions(self) -> tuple[Expr, ...]:
        """The expressions that are computed from each result of the join."""
        if self.aggregation is None:
            return tuple(output.expr for output in self.outputs)
        arguments = [a.argument for a in self.aggregation.aggregates if a.argument is not None]
        expiry = () if self.expiry is None else (self.expiry,)
        return (*self.aggregation.group_by, *arguments, *expiry)

    def joined_streams(self) -> tuple[Stream, ...]:
        """The distinct streams among the sources in order of first use: the stream ordinals of the total order."""
        found = {s.stream.name: s.stream for s in self.sources if isinstance(s.stream, Stream)}
        return tuple(found.values())

    def streams(self) -> tuple[Stream, ...]:
        """All that is read from topics: the joined streams, and then the tables that tuples are looked up in."""
        tables = {lookup.table.name: lookup.table for lookup in self.lookups}
        return (*self.joined_streams(), *tables.values())

    def lookups_of(self, stream: str) -> tuple[Lookup, ...]:
        """The lookups of a stream's tuples."""
        return tuple(lookup for lookup in self.lookups if self.source(lookup.of).stream.name == stream)

    def fields_of(self, stream: Stream | Table) -> tuple[Field, ...]:
        """The columns of a source's tuples in the engine: its own, and those that have been looked up."""
        added = (field for lookup in self.lookups_of(stream.name) for field in lookup.fields())
        return (*stream.fields, *added)

    def tables(self) -> tuple[Table, ...]:
        """The distinct tables in order of first use."""
        found = {s.stream.name: s.stream for s in self.sources if isinstance(s.stream, Table)}
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed file: its streams and tables (all declared, used or not) and its queries, in text order."""

    streams: tuple[Stream, ...]
    queries: tuple[Query, ...]
    tables: tuple[Table, ...] = ()
