"""Cost grows as the algorithm says: by counters at 1x, 4x, 16x the input and the window, and (slow) by clock.

A tuple's work must not depend on how much came before it, nor on how much arrives at once; a window's
length may cost only what it holds of equal keys.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from operators.data.statistics import EngineStatistics
from operators.engine.engine import Engine
from operators.state import side_state as state
from operators.state import store
from operators.state.store import SourceStore
from schemas.query import Query
from tests.operators.tiny import chain, inputs, numbers, query, run


def feed(one: Query, count: int, *, keys: int, epochs: int = 20) -> tuple[EngineStatistics, Engine]:
    """`count` tuples per stream, one per ms in each, keys and values at random, in so many epochs."""
    random = np.random.default_rng(7)
    engine = Engine(one)
    names = [stream.name for stream in one.streams()]
    columns = {name: {"k": random.integers(0, keys, count), "v": random.integers(0, keys, count)} for name in names}
    for begin, stop in zip(
        range(0, count, count // epochs), range(count // epochs, count + 1, count // epochs), strict=True
    ):
        for name in names:
            part = {column: values[begin:stop] for column, values in columns[name].items()}
            engine.push(name, 0, numbers(np.arange(begin, stop), **part))
        engine.advance()
    for name in names:
        engine.close(name, 0)
    engine.advance()
    return engine.statistics(), engine


def pair(windows: str, condition: str = "A.k = B.k") -> Query:
    a, b = windows.split("|")
    return query(f"SELECT A.v FROM a A [{a}], b B [{b}] WHERE {condition}")


@pytest.mark.parametrize(
    "windows",
    ["RANGE 400 ms|RANGE 400 ms", "ROWS 400|ROWS 400", "ROWS 10|RANGE 400 ms", "RANGE 40 ms|ROWS 10"],
)
@pytest.mark.parametrize("epochs", [1, 20])
def test_per_tuple_work_is_the_same_for_long_inputs(windows: str, epochs: int) -> None:
    """1x, 4x, 16x the input with the same windows: work per tuple and state are bounded.

    Regression: a ROWS window was judged on candidate pairs only, and a slice has 10,000 of those per tuple.
    """
    for count in (2_000, 8_000, 32_000):
        statistics, _ = feed(pair(windows), count, keys=100, epochs=epochs)
        per_tuple = statistics.comparisons / statistics.input_tuples
        assert per_tuple < 40, (count, per_tuple)
        candidates = sum(o.candidates for o in statistics.operators)
        # Of a ROWS window a slice's last tuples do not know yet what will end them: at most as many again.
        assert candidates <= 2 * statistics.results + 100
        assert statistics.peak_state_tuples < 3_500, count


@pytest.mark.parametrize("windows", ["RANGE 20 ms|RANGE 20 ms", "ROWS 20|ROWS 20"])
def test_a_nested_loop_compares_what_is_alive(windows: str) -> None:
    """20 alive on either side: about 20 comparisons per tuple, at any length (ROWS: as many again)."""
    for count in (2_000, 8_000, 32_000):
        statistics, _ = feed(pair(windows, "A.v < B.v"), count, keys=100, epochs=1)
        per_tuple = statistics.comparisons / statistics.input_tuples
        assert 15 < per_tuple < (45 if "ROWS" in windows else 25)


def test_a_longer_window_costs_only_its_matches() -> None:
    """1x, 4x, 16x the window, with as many more keys: matches stay, and so do comparisons per tuple."""
    seen = []
    for factor in (1, 4, 16):
        one = pair(f"RANGE {500 * factor} ms|RANGE {500 * factor} ms")
        statistics, _ = feed(one, 24_000, keys=500 * factor)
        seen.append(statistics.comparisons / statistics.input_tuples)
    assert max(seen) < 4
    assert max(seen) < 1.6 * min(seen)


def test_chains_of_joins_stay_linear() -> None:
    """Five streams: comparisons per tuple do not grow with the input."""
    for count in (1_000, 4_000, 16_000):
        statistics, _ = feed(chain(5, window="[RANGE 100 ms]"), count, keys=200, epochs=count // 200)
        assert 1 < statistics.comparisons / statistics.input_tuples < 3


@pytest.mark.parametrize(
    "one",
    [
        pair("RANGE 100 ms|RANGE 100 ms"),
        pair("RANGE 100 ms|RANGE 100 ms", "A.v < B.v AND A.k = 1"),
        pair("ROWS 100|ROWS 100"),
        pair("ROWS 100|RANGE 100 ms"),
        query("SELECT A.v, B.v FROM a A [RANGE 100 ms], a B [ROWS 50] WHERE A.k = B.k"),
        query("SELECT A.v FROM a A [ROWS 50], b B [RANGE 100 ms], c C [ROWS 9] WHERE A.k = B.k AND B.v = C.v"),
        query("SELECT A.v FROM a A [UNBOUNDED] WHERE A.k = 1"),
        query("SELECT A.v FROM a A [ROWS 1000000]"),
    ],
    ids=lambda q: " ".join(str(s.window) for s in q.sources),
)
def test_memory_is_bounded_over_a_long_stream(one: Query) -> None:
    """300 windows long: as little is held at the end as after a tenth, in states and stores.

    Regression: a query over one source stored its tuples for their window's life, `[UNBOUNDED]` for ever,
    though nothing would ever meet them.
    """
    short, _ = feed(one, 3_000, keys=50, epochs=30)
    long, engine = feed(one, 30_000, keys=50, epochs=300)
    assert long.peak_state_tuples <= 1.2 * short.peak_state_tuples + 50
    assert long.peak_state_bytes <= short.peak_state_bytes
    assert engine.unsaved_tuples <= 1_000 * len(one.streams())


@pytest.mark.parametrize("windows", ["RANGE 10 ms|RANGE 30 ms|RANGE 5 ms", "ROWS 5|RANGE 20 ms|ROWS 3"])
@pytest.mark.parametrize("capacity", [2, 1024])
def test_nothing_alive_is_purged(windows: str, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred windows long, states and stores tiny or roomy: the oracle's results to the last."""
    monkeypatch.setattr(state, "FIRST_CAPACITY", capacity)
    monkeypatch.setattr(store, "FIRST_CAPACITY", capacity)
    a, b, c = windows.split("|")
    three = query(f"SELECT A.v, B.v, C.v FROM a A [{a}], b B [{b}], c C [{c}] WHERE A.k = B.k AND B.v <= C.v")
    random = np.random.default_rng(2)
    given = inputs(
        **{
            name: " | ".join(
                f"{t} k={k} v={v}"
                for t, k, v in zip(
                    np.sort(random.integers(0, 1_000, 450)),
                    random.integers(0, 4, 450),
                    random.integers(0, 9, 450),
                    strict=True,
                )
            )
            for name in "abc"
        }
    )
    got, engine = run(three, given, push=7, epoch_ms=13)
    assert len(got) > 1_000
    assert engine.statistics().peak_state_tuples < 700


def test_unbounded_windows_keep_all() -> None:
    """Nothing live is lost: state is the input."""
    statistics, engine = feed(pair("UNBOUNDED|UNBOUNDED"), 5_000, keys=5_000)
    assert statistics.peak_state_tuples == 10_000
    assert [source.living_tuples for source in engine.statistics().sources] == [5_000, 5_000]
    assert engine.unsaved_tuples == 10_000


def test_a_purged_store_reuses_its_room() -> None:
    """A million rows through a window of a thousand."""
    of = SourceStore([])
    for begin in range(0, 1_000_000, 500):
        of.append(numbers(np.arange(begin, begin + 500)))
        of.purge(1_000, begin + 500, None)
    assert of.capacity <= 4_096
    assert of.hi - of.lo <= 2_000


@pytest.mark.slow
def test_clock() -> None:
    """Sanity by clock: 4x the input takes at most 8x as long; 4x the window (and keys) at most 2.5x."""

    def seconds(count: int, window: int) -> float:
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            feed(pair(f"RANGE {window} ms|RANGE {window} ms"), count, keys=window)
            best = min(best, time.process_time() - began)
        return best

    seconds(10_000, 1_000)
    small = seconds(100_000, 10_000)
    assert seconds(400_000, 10_000) < 8 * small
    assert seconds(100_000, 40_000) < 2.5 * small
