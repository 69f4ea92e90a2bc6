"""Compiles Weir's kernels ahead of time with small runs that take every path through engine and codecs.

`weir warmup` uses it. Numba compiles a kernel once for each combination of argument types (for example, a column that
owns its memory or borrows it), so a list of kernels would not be enough: the runs must pass the same types as real
runs. A test checks that random queries compile nothing more after a warm-up.

Numba keeps compiled kernels in a folder (`services.process.kernel_cache`), per kernel and its sources
(`schemas.compiled`), Python version, Numba version and processor model. `fresh` deletes the folder's contents.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from google.protobuf import descriptor_pb2

import operators.kernels
import schemas.codecs.kernels
from operators.autopilot.evidence import Arrivals, Evidence
from operators.autopilot.search import cheapest_of_order
from operators.autopilot.survey import load_kernels
from operators.data.tuples import FOREVER, Tuples
from operators.engine.engine import Engine
from operators.engine.lookups import VersionedTable
from operators.engine.repeats import Firsts
from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.signatures import Signatures
from operators.groups.shared import SharedQueries
from operators.juggler.feedback.guards import PartnerTable
from operators.juggler.operator import Juggler
from operators.juggler.predicates.order import ADAPTIVE, ORDERS
from operators.juggler.routing.tuples_in_flight import ENCODINGS
from operators.kernels.lattice import minimal_alive, note_matches
from operators.kernels.partition import groups_of
from operators.kernels.scan import OPS
from operators.plan.plan import parse_plan
from operators.state.checkpoint import blocks_by_time
from operators.state.side_state import SideState
from operators.state.store import SourceStore
from schemas.avro.decoder import AvroDecoder
from schemas.avro.encoder import AvroValues
from schemas.avro.schema import parse_avro
from schemas.codecs.blocks import decode_block, encode_block
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.encode import encode_results, encode_tuples
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.parquet_codec import ParquetDecoder
from schemas.codecs.results import FramedKeys, FramedValues, JsonKeys, JsonValues, ResultRecords, TextKeys
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch, Column
from schemas.groups import query_group
from schemas.language.program import parse_program
from schemas.members import flat_members
from schemas.nested.json_arrays import UnnestingDecoder
from schemas.nested.json_values import json_values
from schemas.protobuf.decoder import ProtobufDecoder
from schemas.protobuf.descriptors import parse_file
from schemas.protobuf.encoder import ProtobufKeys, ProtobufValues
from schemas.query import GONE, Array, Field, Program, Stream, Type

ROWS: Final = 600
"""Tuples per stream and run: rings grow, are compacted and wrap around."""

SEED: Final = 1

_FIELDS: Final = "ts TIMESTAMP, k BIGINT, v BIGINT, d DOUBLE, s STRING, b BOOLEAN"
_STREAMS: Final = "".join(
    f"CREATE STREAM {name} ({_FIELDS}) WITH (topic = '{name}', timestamp = 'ts', disorder = '20 MILLISECONDS');\n"
    for name in "ABC"
)
_ALL: Final = "SELECT * FROM A, B, C"

_QUERIES: Final = (
    # Hash joins: one whole number; several columns; text; doubles with whole numbers; truth values.
    f"{_ALL} WINDOW RANGE 200 MILLISECONDS WHERE A.k = B.k AND B.v = C.v",
    f"{_ALL} WINDOW RANGE 200 MILLISECONDS WHERE A.k = B.k AND A.v = B.v AND B.k = C.k AND A.v = C.v",
    f"{_ALL} WINDOW RANGE 60 MILLISECONDS WHERE A.s = B.s AND B.k = C.k AND C.s = A.s",
    f"{_ALL} WINDOW RANGE 60 MILLISECONDS WHERE A.d = B.d AND B.d + 1.0 = C.d AND A.v < C.v",
    f"{_ALL} WINDOW RANGE 60 MILLISECONDS WHERE A.k = B.d AND COALESCE(B.d, 0.5) = C.d",
    f"{_ALL} WINDOW RANGE 60 MILLISECONDS WHERE A.k = B.k AND COALESCE(A.v, 1) = COALESCE(B.v, 1) "
    "AND COALESCE(A.b, TRUE) = C.b AND UPPER(A.s) = UPPER(C.s)",
    f"{_ALL} WINDOW RANGE 20 MILLISECONDS WHERE A.b = B.b AND ABS(A.v) = B.k AND ABS(B.v) = C.v",
    # Nested loops: order comparisons of whole numbers, of doubles, of both, and anything else.
    f"{_ALL} WINDOW RANGE 5 MILLISECONDS WHERE A.v < B.v AND B.ts <= C.ts AND A.v - C.v > 3",
    f"{_ALL} WINDOW RANGE 5 MILLISECONDS WHERE A.d < B.d AND B.d >= C.d",
    f"{_ALL} WINDOW RANGE 5 MILLISECONDS WHERE A.d < B.d AND A.v > B.v AND B.s <> C.s",
    # Other windows, selections, one stream under two names.
    "SELECT * FROM A [ROWS 9], B [RANGE 30 MILLISECONDS], C [UNBOUNDED] WHERE A.k = B.k AND B.v = C.v AND C.k = 1",
    "SELECT * FROM A [ROWS 3], B [ROWS 4], C [ROWS 5] WHERE A.v < B.v AND B.d < C.d",
    "SELECT X.s AS x, Y.s AS y, Z.v AS z FROM A X, A Y, B Z WINDOW RANGE 40 MILLISECONDS "
    "WHERE X.k = Y.k AND Y.s = Z.s AND X.v > 2 AND Y.s LIKE 't%'",
    # Aggregates: of doubles, of whole numbers, of text; one group and many.
    "SELECT COUNT(*) AS n, SUM(A.v) AS s, MEDIAN(C.v) AS m FROM A, B, C WINDOW RANGE 40 MILLISECONDS "
    "WHERE A.k = B.k AND B.v = C.v EMIT EVERY 7 MILLISECONDS",
    "SELECT COUNT(A.s) AS n, AVG(A.d) AS a, MIN(B.d) AS l, MAX(B.v) AS h FROM A [ROWS 9], B [RANGE 30 MILLISECONDS], "
    "C [ROWS 5] WHERE A.k = B.k AND B.v = C.v GROUP BY A.s, B.d, C.b EMIT EVERY 3 MILLISECONDS",
    # Sliding aggregates, over whole numbers, doubles and nothing; set difference.
    "SELECT A.s AS s, COUNT(*) AS n, SUM(A.v) AS whole, MIN(B.v) AS least, MEDIAN(C.v) AS middle FROM A, B, C "
    "WINDOW RANGE 60 MILLISECONDS WHERE A.k = B.k AND B.v = C.v GROUP BY A.s EMIT EVERY 20 MILLISECONDS",
    "SELECT SUM(A.d) AS sum, AVG(B.d) AS mean, MAX(C.d) AS most, MEDIAN(A.d) AS middle, COUNT(B.d) AS n "
    "FROM A, B, C WINDOW RANGE 60 MILLISECONDS WHERE A.k = B.k AND B.v = C.v EMIT EVERY 20 MILLISECONDS",
    "SELECT * FROM A [RANGE 40 MILLISECONDS] WHERE A.v > 0 EXCEPT B [RANGE 20 MILLISECONDS] ON A.k = B.k "
    "EXCEPT C [ROWS 9] ON A.v < C.v AND C.d > 1",
)
_GROUP: Final = (
    # Lists of one predicate and of many; keys, ranges of whole numbers and of doubles, times; windows of all kinds.
    "SELECT A.k, B.v AS w FROM A, B WINDOW RANGE 60 MILLISECONDS WHERE A.k = B.k AND A.v > 3",
    "SELECT A.k, B.v AS w FROM A, B WINDOW RANGE 90 MILLISECONDS WHERE A.k = B.k AND A.v > 9 AND B.v < 20",
    "SELECT A.s, C.d AS x FROM A [RANGE 20 MILLISECONDS], C [RANGE 30 MILLISECONDS] WHERE A.v < C.v + 2 "
    "AND A.ts > C.ts",
    "SELECT A.s, C.d AS x FROM A [RANGE 20 MILLISECONDS], C [RANGE 20 MILLISECONDS] WHERE A.v < 2 * C.v AND A.d <= C.d",
    "SELECT A.v, B.v AS w, C.v AS x FROM A, B, C WINDOW RANGE 40 MILLISECONDS WHERE A.k = B.k AND B.v <= C.v "
    "AND B.ts > A.ts AND B.ts <= C.ts AND C.k > 2",
    "SELECT A.v, B.v AS w FROM A [ROWS 9], B [RANGE 30 MILLISECONDS] WHERE A.k = B.k",
    "SELECT A.v, B.v AS w FROM A [ROWS 5], B [ROWS 7] WHERE A.s = B.s",
    "SELECT A.v, B.v AS w FROM A, B WINDOW RANGE 20 MILLISECONDS WHERE A.v < COALESCE(B.v, 1) AND ABS(A.v) > 1 "
    "AND A.s LIKE 't%' AND A.v * B.v > 3",
    "SELECT C.k, COUNT(*) AS n FROM B, C WINDOW RANGE 40 MILLISECONDS WHERE B.k = C.k GROUP BY C.k "
    "EMIT EVERY 20 MILLISECONDS",
)
"""Queries that share an operator, which has kernels of its own; run in every order of predicate types."""
_PLANS: Final = ("((A B) C)", "(A (B C))")
_EDDIES: Final = ("eddy", "stairs")
"""The executors that have kernels of their own. They run the first queries, which are all they need."""


@dataclass(frozen=True, slots=True)
class Warmth:
    """What a warm-up did.

    Attributes:
        kernels: kernels that are called from outside of kernels.
        compiled: versions of them that had to be compiled.
        loaded: versions that were in the cache.
        folders: where the cache is.
    """

    kernels: int
    compiled: int
    loaded: int
    seconds: float
    folders: tuple[Path, ...]


def kernels() -> dict[str, Any]:
    """Every Numba kernel of Weir by its full name."""
    found = {}
    for package in (operators.kernels, schemas.codecs.kernels):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                function = getattr(value, "py_func", None)
                if function is not None and function.__module__ == module.name:
                    found[f"{module.name}.{name}"] = value
    return found


def signatures() -> dict[str, list[str]]:
    """The argument types for which each kernel is ready in this process."""
    return {name: [str(s) for s in kernel.signatures] for name, kernel in kernels().items()}


def warm_up(progress: Callable[[str], None] = lambda _: None, *, fresh: bool = False) -> Warmth:
    """Compile whatever this machine's cache does not have yet.

    Args:
        progress: is told what runs now.
        fresh: forget the cache first.
    """
    began = time.perf_counter()
    found = kernels()
    if fresh:
        for kernel in found.values():
            kernel._cache.flush()
    helper: BaseProcess | None = None
    for name, step in _steps():
        progress(name)
        step()
        if helper is None and any(kernel.stats.cache_misses for kernel in found.values()) and (os.cpu_count() or 1) > 1:
            helper = get_context("spawn").Process(target=_compile_from_the_end, daemon=True)
            helper.start()
    if helper is not None:
        helper.kill()
        helper.join()
    used = [kernel.stats for kernel in found.values() if kernel.signatures]
    return Warmth(
        kernels=len(used),
        compiled=sum(sum(stats.cache_misses.values()) for stats in used),
        loaded=sum(sum(stats.cache_hits.values()) for stats in used),
        seconds=time.perf_counter() - began,
        folders=tuple(sorted({Path(stats.cache_path) for stats in used})),
    )


def _compile_from_the_end() -> None:
    """Compile the same in another process, in the opposite order. What either has compiled the other finds in the
    cache, so the two meet halfway."""
    for _, step in reversed(_steps()):
        step()


def _steps() -> list[tuple[str, Callable[[], object]]]:
    """The parts of a warm-up with their names, which together run everything once."""
    return [
        ("decoders", _batches),
        *((f"query {n} of {len(_QUERIES)}", partial(_run_query, n, text)) for n, text in enumerate(_QUERIES, 1)),
        *((executor, partial(_run_executor, executor)) for executor in _EDDIES),
        *((f"a group of queries, {order}", partial(_run_group, order)) for order in (*ORDERS, ADAPTIVE)),
        ("feedback", _feedback),
        ("spill", _spill),
        ("repeats", _repeats),
        ("search for plans", _plans),
    ]


@cache
def _batches() -> tuple[dict[str, Batch], dict[str, Batch]]:
    """Tuples of all streams, by name: in memory of their own, and in that of a snapshot's block."""
    program = parse_program(_STREAMS + f"{_ALL} WINDOW RANGE 1 SECOND")
    fresh = {stream.name: _through_codecs(stream, _rows(stream, n)) for n, stream in enumerate(program.streams, SEED)}
    return fresh, {name: decode_block(encode_block(name, 0, batch), "warm-up").batch for name, batch in fresh.items()}


def _run_query(number: int, text: str) -> None:
    for batches in _batches():
        _run(parse_program(_STREAMS + text), batches, number)


def _run_executor(executor: str) -> None:
    for number, text in enumerate(_QUERIES[:2], 1):
        _run(parse_program(_STREAMS + text), _batches()[0], number, executor)


def _run_group(order: str) -> None:
    for encoding in ENCODINGS:
        _run_shared(_batches()[0], order, encoding)


def _run_shared(batches: dict[str, Batch], order: str, encoding: str) -> None:
    """All queries of the group in one operator; one goes and comes again."""
    queries = parse_program(_STREAMS + "".join(f"INSERT INTO q{n} {text};" for n, text in enumerate(_GROUP))).queries
    made = SharedQueries(query_group(queries), partial(Juggler, order=order, encoding=encoding), name="warm-up")
    ordered = {name: batch.take(np.argsort(batch.ts, kind="stable")) for name, batch in batches.items()}
    first, last = (min(int(b.ts[0]) for b in ordered.values()), max(int(b.ts[-1]) for b in ordered.values()) + 1)
    cuts = np.linspace(first, last, 8).astype(np.int64)
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        epoch = {}
        for name, batch in ordered.items():
            low, high = np.searchsorted(batch.ts, [begin, end])
            if high > low:
                epoch[name] = batch.slice(int(low), int(high))
        for results in made.process(epoch, int(end)).values():
            encode_results(results)
        if number == 3:
            made.drop(queries[0].name)
            made.add(queries[0], from_now=False)


def _feedback() -> None:
    """The parts of feedback between operators, which runs as short as these would find that it does not pay."""
    hashes, times = np.arange(ROWS, dtype=np.uint64), np.arange(ROWS, dtype=np.int64)
    suspended = Signatures()
    suspended.add(hashes, times)
    suspended.remove(suspended.hit(hashes)[: ROWS // 2])
    seen = Bloom()
    seen.add(hashes)
    seen.contains(hashes)
    held = Blacklist(("A",))
    held.put(Tuples(("A",), times[np.newaxis], times, times), hashes, 0)
    held.has(hashes)
    held.take(hashes, ROWS // 2)
    partners = PartnerTable("A", (), 1)
    sets, everybody = np.ones((ROWS, 1), np.uint64), np.ones(1, np.uint64)
    partners.observe(hashes, times >= 0, times, sets, 0)
    partners.drop_unmatched(hashes, times >= 0, everybody, 0, sets)
    whole, real = times[np.newaxis], times[np.newaxis].astype(np.float64)
    op, node = np.array([OPS["="]], np.int64), np.zeros(1, np.int64)
    matched = np.zeros((ROWS, 2), np.bool_)
    ring = (FOREVER, times[:512], times[:512], 0, 512)
    note_matches(op, whole, whole[:, :512], node, op, real, real[:, :512], node, times, True, False, *ring, matched)
    minimal_alive(matched)


def _spill() -> None:
    """Rows and partition groups that leave memory, in place and to rings made anew."""
    stream, batch = parse_program(_STREAMS + f"{_ALL} WINDOW RANGE 1 SECOND").streams[0], _batches()[0]["A"]
    order = np.argsort(batch.ts, kind="stable")
    batch = batch.take(order)
    store = SourceStore([*((field.name, field.type) for field in stream.fields), ("_ts", Type.TIMESTAMP)])
    rows = store.append(batch)
    for stays in (20, 2):
        store.release(rows % stays == 0)
        held = store.stored_rows()
        store.gather("s", held)
        store.first_at(int(batch.ts[0]))
        store.append(batch.slice(0, 1))
        rows = np.arange(store.lo, store.hi)
    store.are_stored(rows)
    numbers = np.arange(ROWS, dtype=np.int64)
    tuples = Tuples(("A", "B"), np.stack([numbers, numbers]), numbers, numbers + ROWS)
    state = SideState(("A", "B"), FOREVER, hashed=True)
    state.insert(tuples, numbers.astype(np.uint64))
    state.groups()
    state.group_sizes()
    state.newer_in_groups(np.zeros(state.partition_groups, np.int64))
    state.by_group(0)
    state.mark_rows("A", 0, 0, np.zeros(ROWS, np.bool_))
    groups_of(state.read_keys(0, ROWS), state.partition_groups)
    state.take_out(state.in_groups(np.arange(state.partition_groups) % 2 == 0))
    loops = SideState(("A", "B"), FOREVER, hashed=False, int_terms=1, float_terms=1)
    loops.insert(tuples, None, numbers[np.newaxis], numbers[np.newaxis].astype(np.float64))
    loops.take_out(numbers % 2 == 0)


def _repeats() -> None:
    """Firsts that are remembered and forgotten, with keys of all types."""
    for batches in _batches():
        for batch in (batches["A"], batches["A"].take(np.arange(ROWS // 2, dtype=np.int64))):
            memory = Firsts(20)
            memory.find(np.sort(batch.ts), list(batch.columns.values()), np.zeros(len(batch), np.int8))
            for begin in range(0, 4 * ROWS, ROWS):  # more than there is room for at first
                keys = Column(Type.BIGINT, np.arange(begin, begin + len(batch)))
                memory.find(np.sort(batch.ts), [keys], np.zeros(len(batch), np.int8))


def _plans() -> None:
    """The search for the cheapest plan, by subsets and by intervals."""
    query = parse_program(_STREAMS + f"{_ALL} WINDOW RANGE 1 SECOND WHERE A.k = B.k AND B.v = C.v").queries[0]
    load_kernels(query, parse_plan(_PLANS[0], query))
    known = Evidence(query, {alias: Arrivals(1.0, 1.0, 0.1) for alias in "ABC"}, {}, frozenset())
    cheapest_of_order(known, ("A", "B", "C"))


def _rows(stream: Stream, seed: int) -> list[bytes]:
    """JSON records: every type, nulls, escapes, numbers of every form, some out of order, some bad."""
    rng = np.random.default_rng((SEED, seed))
    texts = ('"t"', '"tea"', '"a longer text"', '"\\u00e4\\n\\"\\\\"', '"t\N{SNOWMAN}"', "null", '""')
    doubles = ("1", "2.0", "-0.0", "3.25", "1e300", "0.1234567890123456789", "null", "2")
    truths = ("true", "false", "null")
    lines = []
    for i in range(ROWS):
        ts = str(1_700_000_000_000 + i * 2 - int(rng.integers(0, 20)))
        if i % 50 == 7:
            ts = f'"2023-11-14T22:13:20.{i:03d}+00:00"'
        k = "null" if i % 29 == 5 else str(rng.integers(0, 12))
        key = "k" if i % 40 else "\\u006b"  # an escaped name goes the long way
        v = "null" if i % 31 == 6 else str(rng.integers(-9, 30))
        lines.append(
            f'{{"ts": {ts}, "{key}":{k},"v": {v}, "more": [1, {{"x": null}}], '
            f'"d": {doubles[rng.integers(len(doubles))]}, "s": {texts[rng.integers(len(texts))]}, '
            f'"b": {truths[rng.integers(len(truths))]}}}'.encode()
        )
    lines[ROWS // 2] = b'{"ts": "yesterday", "k": 1.5'
    return lines


def _through_codecs(stream: Stream, lines: list[bytes]) -> Batch:
    """Decode the records as lines, as Kafka's values, and as CSV and Parquet; the lines' batch."""
    decoder = JsonDecoder(stream)
    decoder.decode_values([*lines, None, b"{\n}"])
    batch = decoder.decode_lines(b"\n".join(lines)).batch
    decoder.decode_lines(encode_tuples(batch.slice(0, ROWS // 4)).data)
    texts = Column.from_values([line.decode() for line in lines], Type.STRING)
    json_values(texts, "$.more[1].x", Type.STRING)
    more = Array("more", (Field("value", Type.STRING),), rows=False)
    UnnestingDecoder(stream.unnest(more)).decode_values(lines)
    _through_avro(stream, batch.slice(0, ROWS // 4))
    _through_protobuf()
    _through_lookups(stream, batch.slice(0, ROWS // 4))
    names = [field.name for field in stream.fields]
    csv = CsvDecoder.with_header(stream, ",".join(names).encode(), "warm-up.csv")
    csv.decode_lines(
        b'1700000000000,1,2,0.5,"a ""quoted"" text",true\n2023-11-14T22:13:20Z,,-3,1e-7,plain,\n'
        b"1700000000000,x,2,0.12345678901234567890,,false\n"
    )
    table = pa.table({name: column.to_arrow() for name, column in batch.columns.items()})
    ParquetDecoder(stream, table.schema, "warm-up.parquet").decode(table.to_batches()[0])
    return batch


def _through_avro(stream: Stream, results: Batch) -> None:
    """Decode one record in Avro, with and without a registry's frame, and encode some."""
    ResultRecords(AvroValues(1, phase=True), TextKeys(), ("s",)).encode(results)
    ResultRecords(ProtobufValues(1), ProtobufKeys(1, flat_members(["s"])), ("s",)).encode(results)
    ResultRecords(FramedValues(1, JsonValues()), FramedKeys(1, JsonKeys(flat_members(["s"]))), ("s",)).encode(results)
    kinds = {Type.BIGINT: "long", Type.DOUBLE: "double", Type.STRING: "string", Type.BOOLEAN: "boolean"}
    fields = [{"name": field.name, "type": kinds.get(field.type, "long")} for field in stream.fields]
    schema = parse_avro(orjson.dumps({"type": "record", "name": "warm_up", "fields": fields}))
    wanted = [Wanted(field.name, field.place, field.type) for field in stream.fields]
    raw = b"".join(bytes(8 if field.type is Type.DOUBLE else 1) for field in stream.fields)
    AvroDecoder(stream, wanted, schema).decode_values([raw])
    AvroDecoder(stream, wanted, lambda _: schema).decode_values([bytes(5) + raw])


def _through_lookups(stream: Stream, versions: Batch) -> None:
    """Look tuples up in a table whose rows change."""
    names = [field.name for field in stream.fields]
    table = VersionedTable(replace(stream, primary_key=tuple(names)), names)
    gone = Column(Type.BOOLEAN, np.arange(len(versions)) % 5 == 0)
    table.begin(Batch(versions.ts, {**versions.columns, GONE: gone}))
    found = table.find([versions.columns[name] for name in names], versions.ts)
    for name in names:
        table.gather(name, found)
    table.end()


def _through_protobuf() -> None:
    """Decode one record in Protobuf, with and without a registry's frame."""
    file = descriptor_pb2.FileDescriptorProto(name="warm_up.proto", syntax="proto3")
    message = file.message_type.add(name="WarmUp")
    kinds = {"k": "TYPE_INT64", "s": "TYPE_STRING"}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        type = descriptor_pb2.FieldDescriptorProto.Type.Value(kind)
        message.field.add(name=name, number=number, type=type)
    schema = parse_file(file.SerializeToString())
    fields = (Field("k", Type.BIGINT), Field("s", Type.STRING))
    wanted = [Wanted(field.name, field.place, field.type) for field in fields]
    stream, raw = Stream("warm_up", fields, "warm_up", "protobuf"), b"\x08\1\x12\1a"
    ProtobufDecoder(stream, wanted, schema.named(None)).decode_values([raw], np.zeros(1, np.int64))
    ProtobufDecoder(stream, wanted, lambda _: schema).decode_values([bytes(6) + raw], np.zeros(1, np.int64))


def _run(program: Program, batches: dict[str, Batch], number: int, executor: str = "xjoin") -> None:
    """One query over the batches, in pushes and epochs of uneven size, with a change of plans and a restart from a
    checkpoint."""
    query = program.queries[0]
    aliases = [source.alias for source in query.sources]
    text = _PLANS[0 if query.subtracted else (number - 1) % len(_PLANS)]
    others = "((A C) B)"
    for old, new in zip("ABC", aliases, strict=True):
        text, others = text.replace(old, new), others.replace(old, new)
    plan = parse_plan(text, query)
    partitions = {stream.name: (0, 1) for stream in query.streams()}
    engine = Engine(query, plan=plan, partitions=partitions, executor=executor)
    size = 37 + number
    for start in range(0, ROWS, size):
        if start // size == ROWS // size // 2:
            engine.migrate(parse_plan(others, query), "jisc", engine.cut)
        for stream in query.streams():
            batch = batches[stream.name]
            engine.push(stream.name, start // size % 2, batch.slice(start, min(start + size, len(batch))))
        encode_results(engine.advance())
    checkpoint = engine.checkpoint()
    again = Engine(query, plan=plan, partitions=partitions, executor=executor)
    again.restore(checkpoint.cut, blocks_by_time(checkpoint.blocks))
    for name, numbers in partitions.items():
        for partition in numbers:
            engine.close(name, partition)
    encode_results(engine.advance())
