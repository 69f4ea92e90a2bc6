"""The engine against the oracle, over random queries, plans, data, disorder, partitions and epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data import slices
from operators.engine import intake, repeats
from operators.engine.executors import EXECUTORS
from operators.migration import hybmig
from operators.migration.jisc import strategy as jisc
from operators.state import side_state as state
from operators.state import store
from schemas.query import Stream
from tests import oracle
from tests.cases import Case, cases, plan
from tests.feeding import Rows, canonical, engine_of, feed, to_batch, to_rows
from tests.profiles import PROPERTY


def run(case: Case, executor: str = "xjoin") -> list[dict[str, object]]:
    """The engine's results for a case."""
    task = engine_of(case, executor)
    return feed(task, case.rows, case.push_sizes, case.epoch_ms)


@contextmanager
def cramped() -> Iterator[None]:
    """Rings that start tiny; slices, pieces of migrations, candidate room of a few tuples: every growth path runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_CAPACITY", 2)
        patch.setattr(state, "CANDIDATES_AT_ONCE", 3)
        patch.setattr(intake, "MERGED_CHUNKS", 2)
        patch.setattr(intake, "MERGED_TUPLES", 5)
        patch.setattr(repeats, "FIRST_CAPACITY", 2)
        patch.setattr(repeats, "FIRST_BYTES", 16)
        patch.setattr(store, "FIRST_CAPACITY", 2)
        patch.setattr(slices, "SLICE_TUPLES", 5)
        patch.setattr(slices, "SLICE_LEAST_TUPLES", 2)
        patch.setattr(slices, "SAMPLES_PER_SLICE", 2)
        patch.setattr(jisc, "COUNTED_TUPLES", 2)
        patch.setattr(jisc, "COUNTED_PER_TUPLE", 1)
        patch.setattr(hybmig, "CHUNK_TUPLES", 2)
        patch.setattr(hybmig, "SLICE_OLD_TUPLES", 3)
        yield


@PROPERTY
@given(cases(most_rows=25))
def test_growth_and_slicing_change_nothing(case: Case) -> None:
    """The same with every ring, slice and output forced to grow, wrap and resume all the time."""
    with cramped():
        got = run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
    assert got == run(case), "not even the order may change"


@PROPERTY
@given(cases(most_aliases=5), st.data())
def test_every_plan_makes_the_same_sequence(case: Case, data: st.DataObject) -> None:
    """Results have one order, ties included, whatever the plan."""
    other = data.draw(plan(tuple(s.alias for s in case.query.sources)))
    assert run(case) == run(replace(case, plan=other))


@PROPERTY
@given(cases(most_aliases=5), st.sampled_from(sorted(EXECUTORS)), st.booleans())
def test_every_executor_makes_the_same_sequence(case: Case, executor: str, tiny: bool) -> None:
    """And the oracle's results, with rings that grow and outputs that resume too."""
    with cramped() if tiny else nullcontext():
        got = run(case, executor)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(cases())
def test_any_plan_epoch_and_disorder_give_the_oracles_results(case: Case) -> None:
    """The multiset of results is the oracle's, in timestamp order, each once."""
    got = run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
    times = [row["_ts"] for row in got]
    assert times == sorted(times)  # type: ignore[type-var]


@PROPERTY
@given(cases(), st.data())
def test_accepted_tuples_make_the_oracles_results(case: Case, data: st.DataObject) -> None:
    """With partitions going idle and waking at random: the oracle's results over the tuples not refused."""
    task = engine_of(case)
    streams = {stream.name: stream for stream in case.query.streams()}
    waiting = {(name, p): list(part) for name, parts in case.rows.items() for p, part in enumerate(parts)}
    taken: Rows = {name: [[] for _ in parts] for name, parts in case.rows.items()}
    got: list[dict[str, object]] = []
    largest = dict.fromkeys(waiting, 0)
    refused = 0
    while any(waiting.values()):
        name, p = data.draw(st.sampled_from([place for place, left in waiting.items() if left]))
        size = data.draw(st.integers(1, 4))
        piece, waiting[name, p] = waiting[name, p][:size], waiting[name, p][size:]
        cut = task.cut
        late = task.push(name, p, to_batch(streams[name], piece)).late
        for row, is_late in zip(piece, late.tolist(), strict=True):
            if streams[name].is_versioned:
                # A version that is late holds from the watermark on, or from where the task is.
                reached = largest[name, p] - streams[name].disorder_ms
                taken[name][p].append({**row, "ts": max(row["ts"], reached, cut)})
                largest[name, p] = max(largest[name, p], row["ts"])
            elif not is_late:
                taken[name][p].append(row)
        refused += int(late.sum())
        idle = data.draw(st.sampled_from(list(waiting)))
        task.set_idle(*idle, data.draw(st.booleans()))
        got += to_rows(task.advance())
    for name, p in waiting:
        task.close(name, p)
    got += to_rows(task.advance())
    assert task.statistics().late == refused
    # Refused tuples advanced the clocks too, so the oracle must not judge lateness by the remaining tuples.
    lenient = tuple(
        replace(s, stream=replace(s.stream, disorder_ms=1_000)) if isinstance(s.stream, Stream) else s
        for s in case.query.sources
    )
    tables = tuple(replace(one, table=replace(one.table, disorder_ms=1_000)) for one in case.query.lookups)
    expected = oracle.results(replace(case.query, sources=lenient, lookups=tables), {**taken, **case.tables})
    assert canonical(got) == canonical(expected)
    times = [row["_ts"] for row in got]
    assert times == sorted(times)  # type: ignore[type-var]
