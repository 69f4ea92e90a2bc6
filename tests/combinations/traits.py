"""Features and settings that can be combined, and random queries that have given features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from operators.engine.executors import EXECUTORS
from operators.join.executor import JUGGLER, XJOIN
from operators.migration.strategies import STRATEGIES
from schemas import refusals
from schemas.query import Source, Stream, Table, Window
from schemas.refusals import Feature
from tests.cases import FIELDS, Case, aggregating, cases, unnesting
from tests.subtractions import busy_subtractions, subtractions

TABLE, SELF_JOIN, REPEATS, UNNEST = "table", "self-join", "without repeats", "elements of arrays"
FEATURES = (*(Feature.ROWS, Feature.UNBOUNDED, Feature.EXCEPT, Feature.AGGREGATES), TABLE, SELF_JOIN, REPEATS, UNNEST)

MEMORY, JIT, DEATHS, PER_OPERATOR, SPLIT, GROUP = "memory", "jit", "deaths", "per-operator", "split", "group"
EXECUTOR_TRAITS = tuple(name for name in (*EXECUTORS, JUGGLER) if name != XJOIN)
CHANGES = {f"change by {name}": name for name in STRATEGIES}
SETTINGS = (MEMORY, JIT, DEATHS, PER_OPERATOR, SPLIT, GROUP, *EXECUTOR_TRAITS, *CHANGES)

TRAITS = (*FEATURES, *SETTINGS)


def excluded_by_choice(traits: frozenset[str]) -> bool:
    """Whether traits are two values of one setting, or belong to no query or command."""
    executors, changes = traits & {*EXECUTOR_TRAITS}, traits & {*CHANGES}
    elsewhere = len(executors) + bool(traits & {PER_OPERATOR, SPLIT}) + (GROUP in traits)
    return (
        elsewhere > 1  # only `weir run` of one query takes an executor
        or len(changes) > 1
        or {Feature.EXCEPT, Feature.AGGREGATES} <= traits
        or (GROUP in traits and bool(changes))  # a group has no plan
        or {GROUP, MEMORY, DEATHS} <= traits  # see `tests/operators/groups/test_group_spill_deaths.py`
        or (DEATHS in traits and bool(executors))  # a worker's executor is the join tree
    )


def refusable(traits: Iterable[str]) -> set[str]:
    """The names that the table of refusals has for traits."""
    given = {*traits}
    distributed = bool(given & {PER_OPERATOR, SPLIT})
    found = given & {*Feature}
    if {Feature.ROWS, Feature.AGGREGATES} <= given:
        found |= {Feature.ROWS_AGGREGATES}
    found |= {refusals.executor(name) for name in given & {*EXECUTOR_TRAITS}}
    found |= {refusals.migration(CHANGES[name]) for name in given & {*CHANGES}}
    if distributed:
        found |= {refusals.PER_OPERATOR}
    return found


def is_refused(traits: Iterable[str]) -> bool:
    """Whether the table refuses traits together."""
    names = refusable(traits)
    return any((a, b) in refusals.REFUSALS for a in names for b in names)


def pairs() -> list[frozenset[str]]:
    """All pairs of traits that can be combined."""
    every = (frozenset(pair) for pair in combinations(TRAITS, 2))
    return [pair for pair in every if not excluded_by_choice(pair) and not is_refused(pair)]


@st.composite
def further(draw: st.DrawFn, pair: frozenset[str]) -> frozenset[str]:
    """A pair and, often, one or two more traits that go with it."""
    chosen = pair
    for trait in draw(st.permutations(TRAITS))[: draw(st.sampled_from([0, 2, 6]))]:
        more = chosen | {trait}
        if len(more) <= len(pair) + 2 and not excluded_by_choice(more) and not is_refused(more):
            chosen = more
    return chosen


@st.composite
def case_with(draw: st.DrawFn, traits: frozenset[str]) -> Case:
    """A random case that has the features among the traits. Of those that some setting may exclude it has no others."""
    needed = 2 + (TABLE in traits) + (SELF_JOIN in traits)
    if Feature.EXCEPT in traits:
        simple = st.one_of(subtractions(), busy_subtractions())
    else:
        simple = cases(most_aliases=4)
    case = _as_streams(draw(simple.filter(lambda case: len(case.query.sources) >= needed)))
    sources = list(case.query.sources)
    if REPEATS in traits:
        changed = draw(st.sampled_from(sources)).stream
        options = {"deduplicate": ("k",), "deduplicate_within_ms": draw(st.sampled_from([3, 10, 30]))}
        deduplicated = replace(changed, **options)
        sources = [replace(s, stream=deduplicated) if s.stream == changed else s for s in sources]
    if SELF_JOIN in traits:
        sources[1] = replace(sources[1], stream=sources[0].stream)
    ranges = st.sampled_from([0, 1, 3, 10, 50])
    sources = [replace(source, window=Window("RANGE", draw(ranges))) for source in sources]
    order = draw(st.permutations(range(len(sources))))
    if Feature.ROWS in traits:
        sources[order[0]] = replace(sources[order[0]], window=Window("ROWS", draw(st.integers(1, 4))))
    if Feature.UNBOUNDED in traits:
        sources[order[1]] = replace(sources[order[1]], window=Window("UNBOUNDED"))
    case = replace(case, query=replace(case.query, sources=tuple(sources)))
    names = {stream.name for stream in case.query.streams()}
    case = replace(case, rows={name: parts for name, parts in case.rows.items() if name in names})
    if TABLE in traits:
        case = _with_table(case, order)
    if UNNEST in traits:
        case = draw(unnesting(case))
    if Feature.AGGREGATES in traits:
        case = replace(case, query=draw(aggregating(case.query)))
    return case


def _as_streams(case: Case) -> Case:
    """The case with streams in place of tables."""

    def stream(source: Source) -> Source:
        name = source.stream.name
        return replace(source, stream=Stream(name, FIELDS, name, timestamp="ts")) if source.is_static else source

    rows = {**case.rows, **{name: [found] for name, found in case.tables.items()}}
    query = replace(case.query, sources=tuple(map(stream, case.query.sources)))
    return replace(case, query=query, rows=rows, tables={})


def _with_table(case: Case, order: list[int]) -> Case:
    """The case with a table in place of one stream that is read once: neither the first, nor one whose window a trait
    asks for, if there is a choice."""
    sources = list(case.query.sources)
    read = [source.stream.name for source in sources]
    looked_up = {lookup.of for lookup in case.query.lookups}
    usable = [n for n in reversed(order) if n > 0 and read.count(read[n]) == 1 and sources[n].alias not in looked_up]
    at = next((n for n in usable if sources[n].window.kind == "RANGE"), None)
    if at is None:
        return case
    # Without its tables, a case has streams of the names that its tables had.
    name = f"TT{read[at]}"
    sources[at] = Source(sources[at].alias, Table(name, FIELDS, ""), Window("UNBOUNDED"))
    rows = {stream: parts for stream, parts in case.rows.items() if stream != read[at]}
    flat = [row for part in case.rows[read[at]] for row in part]
    return replace(case, query=replace(case.query, sources=tuple(sources)), rows=rows, tables={name: flat})
