"""The engine on tiny inputs that can be checked by eye: windows, ties, shapes of plans, odd inputs, counters.

`run` compares every result with the oracle's as well.
"""

from __future__ import annotations

import numpy as np
import pytest

from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.plan.plan import Join, Leaf, Plan, left_deep, parse_plan
from operators.state import side_state as state
from tests.feeding import feed, to_batch, to_rows
from tests.operators.tiny import chain, inputs, numbers, query, rows, run


def pairs(got: list[dict[str, object]]) -> list[str]:
    """Results as `value,value@ts`."""
    return [",".join(str(value) for name, value in row.items() if name != "_ts") + f"@{row['_ts']}" for row in got]


# --- Windows -----------------------------------------------------------------------------------------


def test_range_is_inclusive() -> None:
    """A at 1 with [RANGE 3] is alive to 4; B at 0 with [RANGE 2] to 2.

    A    1
    B  0 . . . 4 5
    """
    ranges = query("SELECT A.v, B.v FROM a A [RANGE 3 ms], b B [RANGE 2 ms]")
    got, _ = run(ranges, inputs(a="1 v=1", b="0 v=10 | 4 v=14 | 5 v=15"))
    assert pairs(got) == ["1,10@1", "1,14@4"]


def test_each_window_counts_for_its_own_stream() -> None:
    """A has a long lifetime, B a short one: an old A meets a new B, not the other way round."""
    ranges = query("SELECT A.v, B.v FROM a A [RANGE 100 ms], b B [RANGE 1 ms]")
    got, _ = run(ranges, inputs(a="1 v=1 | 50 v=2", b="2 v=10 | 40 v=11"))
    assert pairs(got) == ["1,10@2", "1,11@40"]


def test_intermediate_results_die_with_their_oldest_part() -> None:
    """(A B) is alive to 4 through A, whichever plan makes it."""
    ranges = query("SELECT A.v, B.v, C.v FROM a A [RANGE 3 ms], b B [RANGE 9 ms], c C [RANGE 9 ms]")
    given = inputs(a="1 v=1", b="3 v=2", c="4 v=3 | 5 v=4")
    for plan in ("((A B) C)", "(A (B C))", "((A C) B)", "(C (B A))"):
        assert pairs(run(ranges, given, plan=plan)[0]) == ["1,2,3@4"]


def test_intermediate_results_die_with_their_newest_part() -> None:
    """If its window is the shortest, (A B) is alive to exactly 4 through B."""
    ranges = query("SELECT A.v, B.v, C.v FROM a A [RANGE 99 ms], b B [RANGE 1 ms], c C [RANGE 99 ms]")
    given = inputs(a="1 v=1", b="3 v=2", c="4 v=3 | 5 v=4")
    for plan in ("((A B) C)", "((B A) C)", "(A (B C))", "(B (C A))"):
        assert pairs(run(ranges, given, plan=plan)[0]) == ["1,2,3@4"]


def test_rows_counts_arrivals_of_its_stream() -> None:
    """[ROWS 2] of A: the two newest tuples; B is unbounded.

    A  1   3   5
    B    2   4   6
    """
    latest = query("SELECT A.v, B.v FROM a A [ROWS 2], b B [UNBOUNDED]")
    got, _ = run(latest, inputs(a="1 v=1 | 3 v=3 | 5 v=5", b="2 v=2 | 4 v=4 | 6 v=6"))
    assert pairs(got) == ["1,2@2", "3,2@3", "1,4@4", "3,4@4", "5,2@5", "5,4@5", "3,6@6", "5,6@6"]


def test_rows_at_equal_ts_follow_the_total_order() -> None:
    """At ts 5 both of A precede B: the first is dead when B arrives. With B first in FROM it is alive."""
    given = inputs(a="5 v=1 | 5 v=2", b="5 v=9")
    assert pairs(run(query("SELECT A.v, B.v FROM a A [ROWS 1], b B [ROWS 1]"), given)[0]) == ["2,9@5"]
    assert pairs(run(query("SELECT A.v, B.v FROM b B [ROWS 1], a A [ROWS 1]"), given)[0]) == [
        "1,9@5",
        "2,9@5",
    ]


def test_rows_windows_count_unselected_tuples() -> None:
    """The window is over the stream, before WHERE."""
    latest = query("SELECT A.v, B.v FROM a A [ROWS 1], b B [RANGE 9 ms] WHERE A.k = 1")
    got, _ = run(latest, inputs(a="1 k=1 v=1 | 2 k=0 v=2", b="3 v=3"))
    assert got == []


def test_every_selection_must_pass() -> None:
    """Whichever of them refuses."""
    both = query("SELECT A.v, B.v FROM a A [RANGE 9 ms], b B [RANGE 9 ms] WHERE A.k = 1 AND A.v < 5 AND A.k = B.k")
    got, _ = run(both, inputs(a="1 k=1 v=2 | 1 k=2 v=3 | 1 k=1 v=7", b="2 k=1 v=4 | 2 k=2 v=6"))
    assert pairs(got) == ["2,4@2"]


def test_unbounded_remembers_all() -> None:
    """However long ago."""
    endless = query("SELECT A.v, B.v FROM a A [UNBOUNDED], b B [RANGE 1 ms] WHERE A.k = B.k")
    got, _ = run(endless, inputs(a="0 k=1 v=1", b=" | ".join(f"{t * 1000} k=1 v={t}" for t in range(50))))
    assert len(got) == 50


# --- Keys and values ---------------------------------------------------------------------------------

ON = "SELECT A.v, B.v FROM a A [RANGE 9 ms], b B [RANGE 9 ms] WHERE "


def test_null_never_matches() -> None:
    """Not even null."""
    given = inputs(a="1 v=1 | 1 k=1 v=2", b="2 v=3 | 2 k=1 v=4")
    for condition in ("A.k = B.k", "A.k <= B.k", "A.k = B.k AND A.v < B.v"):
        assert pairs(run(query(ON + condition), given)[0]) == ["2,4@2"]


def test_duplicates_count() -> None:
    """Two equal tuples meet three equal ones: six results."""
    got, _ = run(query(ON + "A.k = B.k"), inputs(a="1 k=1 | 1 k=1", b="1 k=1 | 2 k=1 | 2 k=1"))
    assert len(got) == 6


def test_results_order_ties_by_arrival_in_from_order() -> None:
    """At equal ts: by A's position, then B's, whatever the plan and whichever tuple found the other."""
    given = inputs(a="1 v=1 | 3 v=2", b="2 v=3 | 3 v=4 | 3 v=5")
    for plan in ("(A B)", "(B A)"):
        got, _ = run(query(ON + "1 = 1"), given, plan=plan)
        assert pairs(got) == ["1,3@2", "1,4@3", "1,5@3", "2,3@3", "2,4@3", "2,5@3"]


def test_whole_and_real_numbers_meet_by_exact_value() -> None:
    """1 = 1.0, 0 = -0.0; 2**53 + 1 is no double."""
    given = inputs(
        a=f"1 k=1 v=1 | 1 k=0 v=2 | 1 k={2**53 + 1} v=3 | 1 k={2**53} v=4",
        b=f"2 d=1.0 v=1 | 2 d=-0.0 v=2 | 2 d={float(2**53)} v=3",
    )
    assert pairs(run(query(ON + "A.k = B.d"), given)[0]) == ["1,1@2", "2,2@2", "4,3@2"]


def test_strings_by_content() -> None:
    """Prefixes, multiples of eight bytes, empty and null."""
    words = ["", "a", "12345678", "123456789", "1234567812345678", "ä"]
    stream = query("SELECT A.k FROM a A [ROWS 1]").streams()[0]
    given = [{**rows("1")[0], "s": word, "v": i} for i, word in enumerate(words)] + [rows("1 v=9")[0]]
    got, _ = run(query(ON + "A.s = B.s"), {"a": [given], "b": [given]})
    assert stream.name == "a"
    assert pairs(got) == [f"{i},{i}@1" for i in range(len(words))]


def test_composite_keys_keep_their_order() -> None:
    """(1, 2) is not (2, 1)."""
    got, _ = run(query(ON + "A.k = B.k AND A.v = B.v"), inputs(a="1 k=1 v=2 | 1 k=2 v=2", b="1 k=2 v=1 | 1 k=1 v=2"))
    assert pairs(got) == ["2,2@1"]


# --- Shapes ------------------------------------------------------------------------------------------


def right_deep(aliases: list[str]) -> Plan:
    plan: Plan = Leaf(aliases[-1])
    for alias in reversed(aliases[:-1]):
        plan = Join(Leaf(alias), plan)
    return plan


def bushy(aliases: list[str]) -> Plan:
    if len(aliases) == 1:
        return Leaf(aliases[0])
    half = len(aliases) // 2
    return Join(bushy(aliases[:half]), bushy(aliases[half:]))


@pytest.mark.parametrize("shape", [left_deep, right_deep, bushy, None])
def test_101_streams(shape: object) -> None:
    """One tuple per stream at its own time, twice in three streams, and one too old for the window.

    Eight combinations: 2 * 2 * 2; the result's ts is the newest part's.
    """
    long = chain(101, window="[RANGE 201 ms]")
    aliases = [source.alias for source in long.sources]
    given = {f"a{i}": [rows(f"{300 + i * 37 % 101} k=1 v={i}")] for i in range(101)}
    for i in (0, 50, 100):
        given[f"a{i}"][0] += rows(f"{401 + i} k=1 v={1000 + i}")
    given["a7"][0] = rows("1 k=1 v=-7") + given["a7"][0]
    plan = shape(aliases) if callable(shape) else None
    got, engine = run(long, given, plan=plan, push=2, epoch_ms=50)
    assert len(got) == 8
    assert {row["_ts"] for row in got} == {400, 401, 451, 501}
    assert {(row["A0.v"], row["A50.v"], row["A100.v"]) for row in got} == {
        (a, b, c) for a in (0, 1000) for b in (50, 1050) for c in (100, 1100)
    }
    assert all(row["A7.v"] == 7 for row in got)
    assert len(engine.statistics().operators) == 100


def test_single_source() -> None:
    """Selection and projection, in total order."""
    one = query("SELECT A.v * 2 AS twice FROM a A [RANGE 1 ms] WHERE A.k = 1", disorder_ms=5)
    got, engine = run(one, inputs(a="5 k=1 v=1 | 3 k=1 v=2 | 4 k=2 v=3 | 4 v=4"), epoch_ms=100)
    assert pairs(got) == ["4@3", "2@5"]
    statistics = engine.statistics()
    assert (statistics.comparisons, statistics.intermediate_results, statistics.operators) == (0, 0, ())


def test_constant_predicates() -> None:
    """False, or unknown: no results and nothing kept."""
    given = inputs(a="1 k=1 v=1", b="1 k=1 v=2")
    assert len(run(query(ON + "A.k = B.k AND 1 = 1"), given)[0]) == 1
    for never in ("1 = 2", "1 IN (2, NULL)", "'a' LIKE 'b'"):
        got, engine = run(query(f"{ON}A.k = B.k AND {never}"), given)
        assert got == []
        assert engine.statistics().peak_state_tuples == 0


def test_self_join() -> None:
    """A tuple meets itself and each pair both ways."""
    own = query("SELECT A.v, B.v FROM a A [RANGE 9 ms], a B [RANGE 9 ms] WHERE A.k = B.k")
    got, _ = run(own, inputs(a="1 k=1 v=1 | 2 k=1 v=2 | 3 k=2 v=3"))
    assert pairs(got) == ["1,1@1", "1,2@2", "2,1@2", "2,2@2", "3,3@3"]


def test_self_join_with_a_selection_and_a_window_each() -> None:
    """The stream is stored once; each alias selects for itself."""
    own = query("SELECT A.v, B.v FROM a A [RANGE 9 ms], a B [RANGE 1 ms] WHERE A.k = 1 AND B.k = 2")
    got, _ = run(own, inputs(a="1 k=1 v=1 | 2 k=2 v=2 | 4 k=1 v=4 | 5 k=3 v=5"))
    assert pairs(got) == ["1,2@2"]


# --- Odd inputs --------------------------------------------------------------------------------------


def test_an_empty_stream_makes_no_results() -> None:
    """No error, no results, and no tuple stored at the end."""
    got, engine = run(query(ON + "A.k = B.k"), inputs(a="1 k=1 | 2 k=1"))
    assert got == []
    assert engine.statistics().state_tuples == 0
    assert run(query(ON + "A.k = B.k"), {})[0] == []


def test_all_late() -> None:
    """Late tuples are refused, reported and counted; the rest is exact."""
    two = query(ON + "A.k = B.k")
    got, engine = run(two, inputs(a="100 k=1 v=1 | 5 k=1 v=2 | 6 k=1 v=3 | 99 k=1 v=4", b="5 k=1 v=5"))
    assert got == []
    assert engine.statistics().late == 3
    assert engine.statistics().input_tuples == 5


def test_idle_partition_is_late_only_behind_the_cut() -> None:
    """b is silent; a's tuples are processed without it; b then sends tuples, some of them late."""
    two = query(ON + "A.k = B.k")
    a, b = two.streams()
    engine = Engine(two)
    engine.push("a", 0, to_batch(a, rows("10 k=1 v=1 | 20 k=1 v=2")))
    assert engine.watermark() == -1
    assert len(engine.advance()) == 0
    assert engine.pending_tuples == 2
    engine.set_idle("b", 0, True)
    assert engine.watermark() == 20
    engine.advance()
    assert (engine.cut, engine.pending_tuples) == (20, 1)
    late = engine.push("b", 0, to_batch(b, rows("19 k=1 v=7 | 20 k=1 v=8 | 22 k=1 v=9"))).late
    assert late.tolist() == [True, False, False]
    engine.close("a", 0)
    engine.close("b", 0)
    assert pairs(to_rows(engine.advance())) == ["2,8@20", "2,9@22"]
    assert engine.cut == END


def test_advance_takes_strictly_less_than_the_cut_and_never_goes_back() -> None:
    """Lower cuts are no-ops."""
    one = query("SELECT A.v FROM a A [ROWS 1]", disorder_ms=9)
    engine = Engine(one)
    engine.push("a", 0, to_batch(one.streams()[0], rows("5 v=1 | 6 v=2 | 7 v=3")))
    assert pairs(to_rows(engine.advance(6))) == ["1@5"]
    assert len(engine.advance(6)) == len(engine.advance(3)) == 0
    assert engine.cut == 6
    assert pairs(to_rows(engine.advance(7))) == ["2@6"]


def test_counters() -> None:
    """By hand. Each of A's tuples looks at B's of its key, which is later: 3 comparisons. B's walks A's at 8
    and 7, and stops at the one that is dead: 2 comparisons, 2 candidates, of which one passes the check."""
    checked = query("SELECT A.v FROM a A [RANGE 5 ms], b B [RANGE 5 ms] WHERE A.k = B.k AND A.v < B.v")
    given = inputs(a="1 k=1 v=1 | 7 k=1 v=2 | 8 k=1 v=30", b="9 k=1 v=9 | 9 k=2 v=9")
    _, engine = run(checked, given, push=9)
    statistics = engine.statistics()
    (join,) = statistics.operators
    assert (join.name, join.kind, join.complete) == ("(A B)", "hash", (True, True))
    assert (join.input_tuples, join.candidates, join.results) == (5, 2, 1)
    assert statistics.input_tuples == 5
    assert statistics.results == 1
    assert statistics.intermediate_results == 0
    assert statistics.late == 0
    assert statistics.pending_tuples == 0
    assert statistics.comparisons == join.comparisons
    assert join.comparisons == 5
    assert (statistics.state_tuples, statistics.peak_state_tuples) == (0, 5)
    assert 0 < statistics.state_bytes <= statistics.peak_state_bytes


def test_nested_loop_counters() -> None:
    """Every live pair is compared once."""
    _, engine = run(query(ON + "A.v < B.v"), inputs(a="1 v=1 | 2 v=5 | 3 v=9", b="4 v=6 | 5 v=0"), push=9)
    (join,) = engine.statistics().operators
    assert (join.kind, join.comparisons, join.candidates, join.results) == ("nested-loop", 6, 2, 2)


def test_every_join_is_a_nested_loop_on_demand() -> None:
    """By whole numbers in the kernel, by strings on every pair; the results are those of hash joins."""
    both = query("SELECT A.v FROM a A [RANGE 5 ms], b B [RANGE 5 ms], c C [RANGE 5 ms] WHERE A.k = B.k AND B.s = C.s")
    given = inputs(a="1 k=1 | 2 k=2 | 3", b="2 k=1 s=x | 3 k=2 s=y | 4 k=2 s=x", c="4 s=x | 5 s=y | 6 s=z | 7")
    hashed, _ = run(both, given, plan="((A B) C)", push=9)
    engine = Engine(both, plan=parse_plan("((A B) C)", both), hashed=False)
    assert feed(engine, given, [9], 1) == hashed
    assert [join.kind for join in engine.statistics().operators] == ["nested-loop"] * 2
    assert len(hashed) == 3


def test_intermediate_results_are_counted_below_the_top() -> None:
    """The topmost join's results are the query's."""
    three = query("SELECT A.v FROM a A [RANGE 9 ms], b B [RANGE 9 ms], c C [RANGE 9 ms] WHERE A.k = B.k")
    _, engine = run(three, inputs(a="1 k=1 | 1 k=1", b="2 k=1", c="3 | 3 | 3"), plan="((A B) C)")
    assert engine.statistics().intermediate_results == 2
    assert engine.statistics().results == 6


# --- Slices ------------------------------------------------------------------------------------------


def test_room_is_made_for_the_whole_slice_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full state of (A B) drops the entries that were dead at the start of the slice: C at 3 still meets the entries
    that die at 4, though (A B) results of 6 are inserted before C probes."""
    monkeypatch.setattr(state, "FIRST_CAPACITY", 2)
    three = query("SELECT A.v, B.v, C.v FROM a A [RANGE 3 ms], b B [RANGE 3 ms], c C [RANGE 3 ms]")
    engine = Engine(three, plan=Join(Join(Leaf("A"), Leaf("B")), Leaf("C")))
    given = ("1 v=1 | 6 v=2", "1 v=1 | 1 v=2 | 6 v=3", "3 v=9 | 6 v=8")
    for stream, text in zip(three.streams(), given, strict=True):
        engine.push(stream.name, 0, to_batch(stream, rows(text)))
    assert pairs(to_rows(engine.advance(2))) == []
    assert pairs(to_rows(engine.advance(END))) == ["1,1,9@3", "1,2,9@3", "2,3,9@6", "2,3,8@6"]


def test_a_long_epoch_is_sliced_where_any_stream_is_dense() -> None:
    """Regression: slices were cut by the largest stream alone. With A early and B, C late, all of B and C was one
    slice: states had all tuples at once, and the nested loop scanned them for every tuple."""
    three = query(
        "SELECT A.v FROM a A [RANGE 20 ms], b B [RANGE 20 ms], c C [RANGE 20 ms] WHERE A.k = B.k AND B.v < C.v"
    )
    n = 20_000
    random = np.random.default_rng(1)
    values = {s: random.integers(0, 1 << 30, n) for s in "bc"}
    engine = Engine(three, plan=Join(Join(Leaf("B"), Leaf("C")), Leaf("A")))
    engine.push("a", 0, numbers(np.arange(n + 1), k=np.arange(n + 1)))
    for name, v in values.items():
        engine.push(name, 0, numbers(np.arange(n) + n, v=v))
    for name in "abc":
        engine.close(name, 0)
    engine.advance()
    statistics = engine.statistics()
    assert statistics.comparisons < 60 * n
    assert statistics.peak_state_tuples < n
