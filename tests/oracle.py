"""The oracle: computes a query's results by nested loops over the definition in `ops/docs/language.md`.

Plain Python, no code of the engine. Slow on purpose: nothing here is clever enough to be wrong in the way
that the engine might be. Expressions follow the docstrings of `schemas.query`.
`rows` maps a stream's name to its tuples in arrival order (offset order): a list of dicts for one
partition, or a list of such lists for several; and a table's name to the list of its rows. A dict maps fields
to values, None for null (a missing key is null too); event time is the stream's `timestamp` field, or the key
`_ts` where it declares none.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from schemas import query as q

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row] | Sequence[Sequence[Row]]]
Bound = Mapping[str, "Tuple"]


@dataclass(frozen=True)
class Tuple:
    """A tuple that is not late.

    Attributes:
        position: its position in the total order of all streams' tuples.
        arrivals: the positions of all tuples of its stream, ascending; its own is `arrivals[index]`.
    """

    ts: int
    row: Row
    position: int
    index: int
    arrivals: Sequence[int]


def results(query: q.Query, rows: Rows) -> list[dict[str, Any]]:
    """All results, ordered by timestamp: output names to values, and `_ts`.

    For a set difference its changes, for aggregates their emissions: both in order, and continued after the input's
    end.
    """
    if query.subtracted:
        return changes(query, rows)
    streams = in_order(query, rows)
    if query.aggregation is not None:
        return emissions(query, query.aggregation, streams, combinations(query, streams))
    return [
        {output.name: evaluate(output.expr, bound) for output in query.outputs} | {"_ts": latest(bound).ts}
        for bound in combinations(query, streams)
    ]


def nested(query: q.Query, row: Row) -> dict[str, Any]:
    """A result as the object that is written: values whose alias has dots are in objects in each other."""
    aliased = {output.name for output in query.outputs if output.nested}
    found: dict[str, Any] = {}
    for name, value in row.items():
        inside = found
        # The name of a header may have dots.
        *around, last = name.split(".", 1 if name.startswith("_headers.") else -1) if name in aliased else [name]
        for step in around:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return found


def combinations(query: q.Query, streams: Mapping[str, Sequence[Tuple]]) -> list[Bound]:
    """The results as one tuple per alias, in the order of their newest components."""
    checks = first_checks(query)
    found: list[Bound] = []

    def extend(bound: dict[str, Tuple]) -> None:
        """Try every tuple of the next source with those bound; recurse where the combination can still be a result."""
        if len(bound) == len(query.sources):
            found.append(bound)
            return
        source = query.sources[len(bound)]
        for candidate in near(query, bound, source, streams[source.stream.name]):
            now = {**bound, source.alias: candidate}
            if all_alive(query, now) and all(evaluate(p, now) is True for p in checks[source.alias]):
                extend(now)

    extend({})
    return sorted(found, key=lambda bound: latest(bound).position)


def emissions(
    query: q.Query, aggregation: q.Aggregation, streams: Mapping[str, Sequence[Tuple]], joined: Sequence[Bound]
) -> list[dict[str, Any]]:
    """The emissions of aggregates of the joined tuples: at each multiple of EMIT EVERY the groups whose values have
    changed, by group."""
    every = aggregation.every_ms
    groups: dict[Any, list[tuple[int, int | None, Bound]]] = {}
    multiples: set[int] = set()
    for bound in joined:
        ends = [instants(s.window, bound[s.alias], streams[s.stream.name])[1] for s in query.sources]
        begin, dead = latest(bound).ts, min((end for end in ends if end is not None), default=None)
        key = tuple(without_sign_of_zero(evaluate(expr, bound)) for expr in aggregation.group_by)
        groups.setdefault(key, []).append((begin, dead, bound))
        multiples |= {-(-time // every) * every for time in (begin, dead) if time is not None}
    emitted: dict[Any, dict[str, Any]] = {}
    found = []
    # Nulls first; within a column all values are of one type.
    keys = sorted(groups, key=lambda key: [() if value is None else (value,) for value in key])
    for time in sorted(multiples):  # nothing changes in between
        for key in keys:
            groups[key] = [lifetime for lifetime in groups[key] if lifetime[1] is None or time < lifetime[1]]
            alive = [bound for begin, _, bound in groups[key] if begin <= time]
            values = of_group(query, aggregation, key, alive)
            if (alive and emitted.get(key) != values) or (not alive and key in emitted):
                found.append(values | {"_ts": time})
            if alive:
                emitted[key] = values
            else:
                emitted.pop(key, None)
    return found


def of_group(query: q.Query, aggregation: q.Aggregation, key: Any, alive: Sequence[Bound]) -> dict[str, Any]:
    """The SELECT list's values for a group of these results."""
    row = {f"group {k}": value for k, value in enumerate(key)}
    for k, aggregate in enumerate(aggregation.aggregates):
        values: list[Any] = [1] * len(alive)
        if aggregate.argument is not None:
            found = [without_sign_of_zero(evaluate(aggregate.argument, bound)) for bound in alive]
            values = [value for value in found if value is not None]
        row[f"aggregate {k}"] = aggregated(aggregate.function, values, aggregate.type)
    group = {q.GROUPED: Tuple(0, row, 0, 0, ())}
    return {output.name: evaluate(output.expr, group) for output in query.outputs}


def aggregated(function: str, values: Sequence[Any], type_: q.Type) -> Any:
    """An aggregate of values that are not null, exact until it is rounded; an average is the rounded sum over n."""
    if function == "COUNT":
        return len(values)
    if not values:
        return None
    match function:
        case "MIN":
            return min(values)
        case "MAX":
            return max(values)
        case "SUM":
            total = sum(map(Fraction, values))
            return rounded(total) if type_ is q.Type.DOUBLE else fitting(int(total), type_)
        case "AVG":
            total_ = rounded(sum(map(Fraction, values), Fraction(0)))
            return None if total_ is None else total_ / len(values)
    return rounded(statistics.median(map(Fraction, values)))


def rounded(value: Fraction | int) -> float | None:
    """The nearest double; null beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return None


def without_sign_of_zero(value: Any) -> Any:
    """Replace -0.0 by 0.0, where values are grouped or aggregated."""
    return value + 0.0 if isinstance(value, float) else value


def changes(query: q.Query, rows: Rows) -> list[dict[str, Any]]:
    """The changes of a set difference's answer, instant by instant; event time runs on when the input has ended.

    At an instant: the exits before the entries, both in the total order.
    """
    streams = in_order(query, rows)
    lifetimes = {
        s.alias: [(t, *instants(s.window, t, streams[s.stream.name])) for t in streams[s.stream.name]]
        for s in query.sources
    }
    first = query.sources[0].alias
    accepted = [
        lifetime
        for lifetime in lifetimes[first]
        if all(evaluate(p, {first: lifetime[0]}) is True for p in query.predicates)
    ]
    times = {time for of in lifetimes.values() for _, begin, dead in of for time in (begin, dead) if time is not None}

    def alive(lifetime: tuple[Tuple, int, int | None], time: int) -> bool:
        return lifetime[1] <= time and (lifetime[2] is None or time < lifetime[2])

    def matched(tuple_: Tuple, part: q.Subtraction, living: list[Tuple]) -> bool:
        return any(all(evaluate(p, {first: tuple_, part.alias: other}) is True for p in part.on) for other in living)

    answer: list[Tuple] = []
    found = []
    for time in sorted(times):
        living = {alias: [lifetime[0] for lifetime in of if alive(lifetime, time)] for alias, of in lifetimes.items()}
        now = [
            lifetime[0]
            for lifetime in accepted
            if alive(lifetime, time)
            and not any(matched(lifetime[0], part, living[part.alias]) for part in query.subtracted)
        ]
        left, come = [t for t in answer if t not in now], [t for t in now if t not in answer]
        for sign, tuples in (("-", left), ("+", come)):
            for tuple_ in tuples:
                values = {output.name: evaluate(output.expr, {first: tuple_}) for output in query.outputs}
                found.append(values | {"_op": sign, "_ts": time})
        answer = now
    return found


def instants(window: q.Window, tuple_: Tuple, stream: Sequence[Tuple]) -> tuple[int, int | None]:
    """The first instant at which a tuple is alive, and the first after it at which it is dead; None if never.

    At an instant all tuples with that timestamp have arrived.
    """
    if window.kind == "RANGE":
        return tuple_.ts, tuple_.ts + window.size + 1
    if window.kind == "ROWS" and tuple_.index + window.size < len(stream):
        return tuple_.ts, stream[tuple_.index + window.size].ts
    return tuple_.ts, None


def first_checks(query: q.Query) -> dict[str, list[q.Expr]]:
    """Under each alias the predicates whose aliases are all bound once it is, in FROM order."""
    checks: dict[str, list[q.Expr]] = {}
    open_ = list(query.predicates)
    for n, source in enumerate(query.sources, 1):
        bound = {s.alias for s in query.sources[:n]}
        checks[source.alias] = [p for p in open_ if q.aliases_of(p) <= bound]
        open_ = [p for p in open_ if not q.aliases_of(p) <= bound]
    return checks


def latest(bound: Bound) -> Tuple:
    """The newest component: its position is the instant of the combination, its ts that of the result."""
    return max(bound.values(), key=lambda component: component.position)


def all_alive(query: q.Query, bound: Bound) -> bool:
    """Whether all components are alive at the instant at which the newest of them arrives.

    A tuple that has died does not become alive again, so a combination that fails for some sources fails for all of
    them: it is right to ask before all are bound.
    """
    newest = latest(bound)
    for alias, component in bound.items():
        window = query.source(alias).window
        if window.kind == "RANGE" and newest.ts > component.ts + window.size:
            return False
        if window.kind == "ROWS":
            # At the position at which the n-th later tuple of its stream arrives it is dead already.
            nth = component.index + window.size
            end = component.arrivals[nth : nth + 1]
            if end and newest.position >= end[0]:
                return False
    return True


def near(query: q.Query, bound: Bound, source: q.Source, tuples: Sequence[Tuple]) -> Sequence[Tuple]:
    """The tuples that RANGE windows do not exclude at first sight: `all_alive` decides, this only saves time."""
    low, high = 0, len(tuples)
    if bound and source.window.kind == "RANGE":
        low = bisect_left(tuples, latest(bound).ts - source.window.size, key=lambda t: t.ts)
    for alias, component in bound.items():
        window = query.source(alias).window
        if window.kind == "RANGE":
            high = min(high, bisect_right(tuples, component.ts + window.size, key=lambda t: t.ts))
    return tuples[low:high]


def in_order(query: q.Query, rows: Rows) -> dict[str, list[Tuple]]:
    """Each stream's tuples that are neither late nor repeats, in the total order (ts, stream ordinal, partition,
    offset)."""
    merged = []
    for ordinal, stream in enumerate(query.joined_streams()):
        arrived = []
        for partition, tuples in enumerate(partitions(rows, stream)):
            for offset, (row, is_late) in enumerate(with_lateness(stream, tuples)):
                if not is_late:
                    arrived.append((event_time(stream, row), ordinal, partition, offset, stream.name, row))
        arrived.sort(key=lambda entry: entry[:4])
        drops = repeats(query, stream, [(ts, partition, row) for ts, _, partition, _, _, row in arrived])
        kept = [entry for entry, dropped in zip(arrived, drops, strict=True) if not dropped]
        merged += [(*place, looked_up(query, rows, stream, row)) for *place, row in kept]
    merged.sort(key=lambda entry: entry[:4])
    arrivals: dict[str, list[int]] = {stream.name: [] for stream in query.joined_streams()}
    ordered: dict[str, list[Tuple]] = {stream.name: [] for stream in query.joined_streams()}
    for position, (ts, _, _, _, name, row) in enumerate(merged):
        ordered[name].append(Tuple(ts, row, position, len(arrivals[name]), arrivals[name]))
        arrivals[name].append(position)
    for table in query.tables():  # before all other tuples
        ordered[table.name] = [Tuple(q.TABLE_TS, row, -1, 0, ()) for row in rows[table.name]]  # type: ignore[arg-type]
    return ordered


def repeats(query: q.Query, stream: q.Stream, arrived: Sequence[tuple[int, int, Row]]) -> list[bool]:
    """Which tuples of a stream are repeats.

    A tuple repeats the newest first of equal values if it is no later than that first's ts and the declared time. With
    PARTITION BY a partition's tuples repeat each other only.

    Args:
        arrived: ts, partition and values, in the total order.
    """
    types = {field.name: field.type for field in stream.fields}
    firsts: dict[Any, int] = {}
    found = []
    for ts, partition, row in arrived:
        if any(row[f"{array.name}._ordinal"] > 1 for array in stream.unnested):
            found.append(found[-1])  # as the element of the same record before it
            continue
        values = [without_sign_of_zero(typed(row.get(name), types[name])) for name in stream.deduplicate]
        key = (partition if query.partition_by else 0, *values)
        if not values or None in values:
            found.append(False)
        elif key in firsts and ts <= firsts[key] + stream.deduplicate_within_ms:
            found.append(True)
        else:
            firsts[key] = ts
            found.append(False)
    return found


def looked_up(query: q.Query, rows: Rows, stream: q.Stream, row: Row) -> Row:
    """A tuple with the columns of the tables' rows that it is looked up in, as they are at its event time."""
    ts = event_time(stream, row)
    for lookup in query.lookups_of(stream.name):
        key = [evaluate(expr, {lookup.of: Tuple(ts, row, 0, 0, ())}) for expr in lookup.key]
        held = [
            version
            for version in versions(lookup.table, rows)
            if version[0] <= ts and [version[3].get(name) for name in lookup.table.primary_key] == key
        ]
        since, *_, newest = max(held, key=lambda version: version[:3], default=(0, {"_op": "-"}))
        there = {} if newest.get("_op") == "-" else {**newest, "_ts": since}
        row = {**row, **{q.looked_up(lookup.alias, name): value for name, value in there.items()}}
    return row


def versions(table: q.Stream, rows: Rows) -> list[tuple[int, int, int, Row]]:
    """The versions of a table's rows, each with the time from which it holds, its partition and its offset.

    A late version holds from the watermark of its partition on.
    """
    found = []
    for partition, tuples in enumerate(partitions(rows, table)):
        largest = 0
        for offset, row in enumerate(tuples):
            ts = event_time(table, row)
            found.append((max(ts, largest - table.disorder_ms), partition, offset, row))
            largest = max(largest, ts)
    return found


def late(query: q.Query, rows: Rows) -> dict[str, list[Row]]:
    """The late tuples of each stream, by partition and offset."""
    found: dict[str, list[Row]] = {stream.name: [] for stream in query.streams()}
    for stream in query.streams():
        for tuples in partitions(rows, stream):
            found[stream.name] += [row for row, is_late in with_lateness(stream, tuples) if is_late]
    return found


def with_lateness(stream: q.Stream, tuples: Sequence[Row]) -> list[tuple[Row, bool]]:
    """One partition's tuples in arrival order, each with whether it is late.

    Late: more than the declared disorder behind the largest timestamp that arrived before it. Changes of a database's
    rows are never late.
    """
    largest: int | None = None
    classified = []
    for row in tuples:
        ts = event_time(stream, row)
        is_late = largest is not None and ts < largest - stream.disorder_ms
        classified.append((row, is_late and not stream.format.startswith("debezium")))
        largest = ts if largest is None else max(largest, ts)
    return classified


def elements(stream: q.Stream, tuples: Sequence[Row]) -> Sequence[Row]:
    """The tuples of an unnested stream: one for each element of its array; of several, for each choice of elements."""
    for array in stream.unnested:
        found = []
        for row in tuples:
            for ordinal, element in enumerate(row.get(array.name) or [], 1):
                values = {f.name: inside(element, f.place) if array.rows else element for f in array.fields}
                own = {f"{array.name}.{name}": value for name, value in values.items()}
                found.append({**row, **own, f"{array.name}._ordinal": ordinal})
        tuples = found
    return tuples


def inside(value: Any, place: q.Path) -> Any:
    """What is at a place within objects and arrays; null if nothing is."""
    for step in place:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def partitions(rows: Rows, stream: q.Stream) -> list[Sequence[Row]]:
    """The stream's partitions; none when it has no rows."""
    return [elements(stream, tuples) for tuples in _partitions(rows, stream)]


def _partitions(rows: Rows, stream: q.Stream) -> list[Sequence[Row]]:
    given: Any = rows.get(stream.name, ())
    if given and isinstance(given[0], Mapping):
        return [given]
    return list(given)


def event_time(stream: q.Stream, row: Row) -> int:
    """The tuple's timestamp in milliseconds."""
    return int(row[stream.timestamp or "_ts"])


# --- Expressions -----------------------------------------------------------------------------------


def evaluate(expr: q.Expr, bound: Bound) -> Any:
    """The value of an expression over one tuple per alias; None is null, or unknown for a condition."""
    match expr:
        case q.ColumnRef():
            tuple_ = bound[expr.alias]
            return tuple_.ts if expr.name == "_ts" else typed(tuple_.row.get(expr.name), expr.type)
        case q.Literal():
            return typed(expr.value, expr.type)
        case q.Negate():
            value = evaluate(expr.operand, bound)
            return None if value is None else fitting(-value, expr.type)
        case q.Arithmetic():
            left, right = evaluate(expr.left, bound), evaluate(expr.right, bound)
            return None if left is None or right is None else arithmetic(expr.op, left, right, expr.type)
        case q.Call():
            return call(expr.name, [evaluate(arg, bound) for arg in expr.args], expr.type)
        case q.Compare():
            return compare(expr.op, evaluate(expr.left, bound), evaluate(expr.right, bound))
        case q.IsNull():
            return (evaluate(expr.operand, bound) is None) is not expr.negated
        case q.Like():
            value = evaluate(expr.operand, bound)
            return None if value is None else like(value, expr.pattern) is not expr.negated
        case q.InList():
            value = evaluate(expr.operand, bound)
            found = either([compare("=", value, evaluate(item, bound)) for item in expr.items])
            return negated(found) if expr.negated else found
        case q.Not():
            return negated(evaluate(expr.operand, bound))
        case q.And():
            return negated(either([negated(evaluate(term, bound)) for term in expr.terms]))
        case q.Or():
            return either([evaluate(term, bound) for term in expr.terms])


def typed(value: Any, type_: q.Type) -> Any:
    """A value with its type's Python class: JSON writes the DOUBLE 40.0 as 40."""
    return float(value) if value is not None and type_ is q.Type.DOUBLE else value


def negated(truth: bool | None) -> bool | None:
    """NOT in three-valued logic."""
    return None if truth is None else not truth


def either(truths: Sequence[bool | None]) -> bool | None:
    """OR in three-valued logic: true if any is true, else unknown if any is unknown."""
    if True in truths:
        return True
    return None if None in truths else False


def compare(op: str, left: Any, right: Any) -> bool | None:
    """A comparison; Python compares int with float exactly and strings by code point."""
    if left is None or right is None:
        return None
    answers = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return bool(answers[op])


def fitting(value: Any, type_: q.Type) -> Any:
    """The value, or null where it overflows int64 or is not a finite DOUBLE."""
    if type_ is q.Type.DOUBLE:
        return float(value) if math.isfinite(value) else None
    return value if -(2**63) <= value < 2**63 else None


def arithmetic(op: str, left: Any, right: Any, type_: q.Type) -> Any:
    """`left op right`: whole numbers exact, `/` toward zero, `%` with the dividend's sign; else doubles."""
    if op in "/%" and right == 0:
        return None
    if type_ is q.Type.DOUBLE:
        left, right = float(left), float(right)
        if op == "/":
            return fitting(left / right, type_)
        if op == "%":
            return fitting(math.fmod(left, right), type_)
    elif op in "/%":
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return fitting(quotient if op == "/" else left - quotient * right, type_)
    return fitting({"+": left + right, "-": left - right}[op] if op in "+-" else left * right, type_)


def call(name: str, args: list[Any], type_: q.Type) -> Any:
    """A scalar function."""
    if name == "COALESCE":
        return typed(next((arg for arg in args if arg is not None), None), type_)
    if None in args:
        return None
    match name:
        case "ABS":
            return fitting(abs(args[0]), type_)
        case "FLOOR":
            return typed(math.floor(args[0]), type_)
        case "CEIL":
            return typed(math.ceil(args[0]), type_)
        case "ROUND":
            return typed(round(args[0]), type_)
        case "SQRT":
            return math.sqrt(args[0]) if args[0] >= 0 else None
        case "SIGN":
            return 0 if args[0] == 0 else 1 if args[0] > 0 else -1
        case "LOWER":
            return "".join(one_character(c, c.lower(), {"İ": "i"}) for c in args[0])
        case "UPPER":
            return "".join(one_character(c, c.upper(), {"ß": "ẞ"}) for c in args[0])
        case "LENGTH":
            return len(args[0])
        case "CONCAT":
            return "".join(args)
        case "SUBSTRING":
            # Characters whose 1-based position is in [start, start + count).
            text, start, *count = args
            return "".join(c for i, c in enumerate(text, 1) if i >= start and (not count or i < start + count[0]))
        case "JSON_VALUE":
            return json_value(args[0], args[1], type_)
    raise ValueError(f"no such function: {name}")


class Number(str):
    """A number of JSON as it is written."""


def json_value(text: str, path: str, type_: q.Type) -> Any:
    """The scalar at a place of a JSON text, as Python's json reads it; null if it is not of the type."""

    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refused)
    except ValueError:
        return None
    for name, place, single, double in re.findall(r"""\.(\w+)|\[(\d+)\]|\['(.*?)'\]|\["(.*?)"\]""", path):
        step = int(place) if place else name or single.replace("''", "'") or double.replace('""', '"')
        fits = (isinstance(found, dict) and step in found) or (
            isinstance(found, list) and isinstance(step, int) and step < len(found)
        )
        found = found[step] if fits else None
    whole = isinstance(found, Number) and not set(found) & set(".eE")
    match type_:
        case q.Type.STRING if isinstance(found, bool):
            return "true" if found else "false"
        case q.Type.STRING if isinstance(found, str):
            return None if any("\ud800" <= c <= "\udfff" for c in found) else str(found)
        case q.Type.BOOLEAN if isinstance(found, bool):
            return found
        case q.Type.BIGINT if whole and len(found) < 30:
            return fitting(int(found), type_)
        case q.Type.DOUBLE if isinstance(found, Number):
            return fitting(float(found) + (0.0 if whole else -0.0), type_)
    return None


def one_character(character: str, mapped: str, simple: dict[str, str]) -> str:
    """Unicode's simple case mapping; Python's own makes several characters of some."""
    return simple.get(character, mapped if len(mapped) == 1 else character)


def like(text: str, pattern: str) -> bool:
    """LIKE: % any run, _ one code point, a backslash makes the next character plain."""
    wild = {"%": ".*", "_": "."}
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join(wild[p] if p in wild else re.escape(p[-1]) for p in pieces)
    return re.fullmatch(regex, text, re.DOTALL) is not None
