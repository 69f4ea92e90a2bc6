"""The parts of sliding aggregates: exact sums, sorted multisets, queues and groups; and their running time."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregate import groups as groups_module
from operators.aggregate.groups import Groups
from operators.aggregate.lifetimes import EventQueue, Events, LivingResults
from operators.aggregate.values import Reading, Values
from operators.data.tuples import FOREVER
from operators.engine.engine import Engine
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import Aggregate, Type
from schemas.query import ColumnRef as Ref
from tests.feeding import to_batch, to_rows
from tests.profiles import PROPERTY

ALL = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "MEDIAN"})
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, -0.1, 1e16, -1e16, 1.0, 2.0**-1074, 2.0**-1022, 1.7976931348623157e308, -0.0]),
)
INTEGERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**52 + 1])
)


def touched(slots: list[int], signs: list[int], group: int = 0) -> Events:
    """Events of one group, each a touch of its own."""
    n = len(slots)
    ends = np.arange(1, n + 1)
    return Events(np.array(slots), np.array(signs, np.int8), np.arange(n), np.full(n, group), ends)


def column(function: str, type: Type) -> Aggregate:
    result = Type.BIGINT if function == "COUNT" else Type.DOUBLE if function in ("AVG", "MEDIAN") else type
    return Aggregate(function, Ref("A", "x", type), result)  # type: ignore[arg-type]


def rounded(value: Fraction) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def of(values: list[Any], function: str, type: Type) -> Any:
    """The aggregate by its definition."""
    if function == "COUNT":
        return len(values)
    if not values:
        return None
    total = sum(map(Fraction, values), Fraction(0))
    match function:
        case "SUM":
            if type is Type.DOUBLE:
                return rounded(total)
            return int(total) if -(2**63) <= total < 2**63 else None
        case "AVG":
            near = rounded(total)
            return None if near is None else near / len(values)
        case "MIN":
            return min(values)
        case "MAX":
            return max(values)
    return rounded(Fraction(statistics.median(map(Fraction, values))))


@PROPERTY
@given(
    st.sampled_from([Type.DOUBLE, Type.BIGINT]).flatmap(
        lambda type: st.tuples(
            st.just(type), st.lists(st.one_of(st.none(), FLOATS if type is Type.DOUBLE else INTEGERS), max_size=12)
        )
    ),
    st.randoms(use_true_random=False),
)
def test_values_that_are_added_and_removed(typed: tuple[Type, list[Any]], rng: Random) -> None:
    """In any order."""
    type, values = typed
    steps = [(slot, sign) for slot in range(len(values)) for sign in (1, -1)]
    rng.shuffle(steps)
    seen: set[int] = set()
    ordered = []
    for slot, _ in steps:  # whichever step of a slot is drawn first lets it enter
        ordered.append((slot, -1 if slot in seen else 1))
        seen.add(slot)
    check_steps(type, values, ordered)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (Type.DOUBLE, [1e16, 1.0, -1e16]),
        (Type.DOUBLE, [1.7976931348623157e308, 9.979201547673599e291]),
        (Type.DOUBLE, [5e-324, 3e-310, -(2.0**-1022), 1.5e-323]),
        (Type.DOUBLE, [1.0, 0.0, 1e-300, 1e300, -1.0, 0.0]),
        (Type.DOUBLE, [1.0, 2.0**-53, 2.0**-200, -(2.0**-199)]),
        (Type.DOUBLE, [-1.0, -(2.0**-53), -(2.0**-200)]),
        (Type.DOUBLE, [1e308, 1e308, None, -0.0]),
        (Type.BIGINT, [2**63 - 1, 1, -1]),
        (Type.BIGINT, [-(2**63), 2**63 - 1, -1, -1]),
        (Type.BIGINT, [2**53 + 1, 2**53 + 2, None]),
        (Type.BIGINT, [-(2**53) - 2, -(2**53) - 1]),
        (Type.BIGINT, [2**53 + 1, 2**53, 2**53 + 2, 2**52 + 1, 2**52 + 2]),
    ],
)
def test_values_at_the_edges(type: Type, values: list[Any]) -> None:
    """Rounding to even and away from it, beyond both ends, subnormal: entering in order, leaving in order."""
    check_steps(type, values, [(slot, sign) for sign in (1, -1) for slot in range(len(values))])


def check_steps(type: Type, values: list[Any], steps: list[tuple[int, int]]) -> None:
    """After each step every aggregate is that of the values which are there: exact, then rounded once."""
    alive: list[int] = []
    held = Values(type, ALL, 16, 4)
    for slot, sign in steps:
        alive = [*alive, slot] if sign > 0 else [other for other in alive if other != slot]
        known = [values[k] + (0.0 if type is Type.DOUBLE else 0) for k in alive if values[k] is not None]
        if sign > 0:
            held.put(np.array([slot]), Column.from_values([values[slot]], type))
        after = held.apply(touched([slot], [sign], group=2))
        for reading in (after, held.read(np.array([2]))):
            for function in sorted(ALL):
                (got,) = held.column(column(function, type), reading).to_values()
                assert repr(got) == repr(of(known, function, type)), function
    if steps:
        assert held.column(column("COUNT", type), held.read(np.array([1, 2]))).to_values() == [0, 0]


def test_doubles_are_summed_as_by_fsum() -> None:
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(5000) * 10.0 ** rng.integers(-300, 290, 5000)).tolist()
    held = Values(Type.DOUBLE, {"SUM"}, 8192, 1)
    held.put(np.arange(5000), Column.from_values(values, Type.DOUBLE))
    reading = held.apply(touched([*range(5000), *range(4990)], [1] * 5000 + [-1] * 4990))
    sums = held.column(column("SUM", Type.DOUBLE), reading).to_values()
    for n in (1, 2, 3, 100, 4999, 5000):
        assert sums[n - 1] == math.fsum(values[:n])
    assert sums[-1] == math.fsum(values[4990:]), "nothing is left of what has gone"


def test_ten_thousand_values_that_fill_their_digits() -> None:
    """Their sum reaches beyond the digits that each of them does."""
    values = np.full(10_000, 3.9999999999999996)
    held = Values(Type.DOUBLE, {"SUM"}, 10_000, 1)
    for sign in (1.0, -1.0):
        held.put(np.arange(10_000), Column(Type.DOUBLE, sign * values))
        reading = held.apply(touched([*range(10_000)] * 2, [1] * 10_000 + [-1] * 10_000))
        sums = held.column(column("SUM", Type.DOUBLE), reading).to_values()
        assert [sums[9_999], sums[-2], sums[-1]] == [sign * math.fsum(values), sign * values[0], None]


def test_sorted_multisets_of_thousands() -> None:
    """Duplicates, growing and shrinking, several groups in one array."""
    rng = np.random.default_rng(5)
    held = Values(Type.BIGINT, {"MIN", "MAX", "MEDIAN"}, 4096, 3)
    values = rng.integers(0, 50, 4096)
    held.put(np.arange(4096), Column(Type.BIGINT, values))
    alive: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(300):
        group = int(rng.integers(3))
        free = sorted(set(range(4096)) - set().union(*alive.values()))
        come = rng.choice(free, int(rng.integers(0, 40)), replace=False).tolist()
        go = [slot for slot in alive[group] if rng.random() < 0.4]
        if not come and not go:
            continue
        events = touched([*go, *come], [-1] * len(go) + [1] * len(come), group)
        reading = held.apply(events)
        alive[group] = [slot for slot in alive[group] if slot not in go] + come
        left = sorted(int(values[slot]) for slot in alive[group])
        for function in ("MIN", "MAX", "MEDIAN"):
            got = held.column(column(function, Type.BIGINT), last_of(reading)).to_values()
            assert got == [of(left, function, Type.BIGINT)]


def last_of(reading: Reading) -> Reading:
    """The reading after the last touch."""
    assert reading.quantiles is not None
    return Reading(reading.counts[-1:], None, None, None, reading.quantiles[:, -1:])


@PROPERTY
@given(st.lists(st.one_of(st.lists(st.integers(-5, 5), max_size=6), st.integers(-6, 6)), max_size=12))
def test_queues(steps: list[Any]) -> None:
    """`take` removes the smaller keys, ascending; the others stay."""
    queue, known, number = EventQueue(), [], 0
    for step in steps:
        if isinstance(step, list):
            items = list(range(number, number + len(step)))
            number += len(step)
            queue.push(np.array(step, np.int64), np.array(items, np.int64))
            known += zip(step, items, strict=True)
        else:
            keys, taken = queue.take(step)
            due = [pair for pair in known if pair[0] < step]
            known = [pair for pair in known if pair[0] >= step]
            assert keys.tolist() == sorted(keys.tolist())
            assert sorted(zip(keys.tolist(), taken.tolist(), strict=True)) == sorted(due)


KEY = st.tuples(
    st.sampled_from([None, "", "a", "b", "ä", "a longer one"]), st.sampled_from([None, 0.0, -0.0, 1.5]), st.booleans()
)


@PROPERTY
@given(st.lists(st.tuples(st.lists(KEY, max_size=8), st.integers(0, 8)), max_size=8), st.booleans(), st.booleans())
def test_groups_keep_their_numbers_while_they_are_used(turns: list[Any], small: bool, collide: bool) -> None:
    types = [Type.STRING, Type.DOUBLE, Type.BOOLEAN]
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(groups_module, "FIRST_CAPACITY", 1)
            patch.setattr(groups_module, "SWEEP_FROM", 0)
        if collide:
            patch.setattr(groups_module, "_hashes", lambda codes: np.zeros(codes.shape[1], np.uint64))
        of_keys = Groups(types)
        known: dict[Any, int] = {}
        for keys, gone in turns:
            columns = [Column.from_values([key[k] for key in keys], type) for k, type in enumerate(types)]
            found = of_keys.find(columns, len(keys)).tolist()
            for key, group in zip(keys, found, strict=True):
                plain = tuple(value + 0.0 if isinstance(value, float) else value for value in key)
                assert known.setdefault(plain, group) == group
                of_keys.uses[group] = 1
            assert len(set(known.values())) == len(known)
            for k in range(3):
                read = of_keys.key(k, np.array(list(known.values()), np.int64)).to_values()
                assert list(map(repr, read)) == [repr(key[k]) for key in known]
            left = sorted(known, key=repr)[gone:]
            forgotten = np.array([group for key, group in known.items() if key not in left], np.int64)
            of_keys.uses[forgotten] = 0
            of_keys.forget_unused(forgotten)
            known = {key: known[key] for key in known if key in left}


def test_a_sweep_of_strings_leaves_groups_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remaining groups keep number and text, nulls too; a forgotten group can return."""
    monkeypatch.setattr(groups_module, "SWEEP_FROM", 0)
    of_texts = Groups([Type.STRING, Type.STRING])

    def find(*texts: str | None) -> list[int]:
        columns = [Column.from_values([*texts], Type.STRING), Column.from_values([None, *texts[1:]], Type.STRING)]
        return of_texts.find(columns, len(texts)).tolist()

    found = find("gone", *(f"text {k}" for k in range(40)), None, "last")
    of_texts.uses[found] = [0] * 41 + [1, 1]
    of_texts.forget_unused(np.array(found))
    assert of_texts.key(0, np.array(found[-2:])).to_values() == [None, "last"]
    again = find("new", None, "last", "text 7")
    assert again[1:3] == found[-2:]
    assert of_texts.key(0, np.array(again)).to_values() == ["new", None, "last", "text 7"]
    assert of_texts.key(1, np.array(again)).to_values() == [None, None, "last", "text 7"]


def test_strings_of_keys_count_by_their_length() -> None:
    """Each counted as 100 bytes, so long keys exceeded a budget unnoticed."""
    of_texts = Groups([Type.STRING])
    before = of_texts.size_bytes()
    found = of_texts.find([Column.from_values([f"{n:02}" * 5_000 for n in range(50)], Type.STRING)], 50)
    assert of_texts.size_bytes() - before > 500_000
    of_texts.uses[found] = 0
    of_texts.forget_unused(found)
    of_texts._sweep()
    assert of_texts.size_bytes() - before < 10_000


def test_a_slot_is_used_again_and_old_ends_do_not_matter() -> None:
    """A window ends a result before its time: the later end is void, also for who gets the slot next."""
    living = LivingResults(["A"])
    slots = living.add(np.array([7, 7]), np.array([1, 1]), np.array([5, 9]))
    living.watch("A", np.array([100, 101]), slots)
    rows, items = living.take_watched("A", 101)
    assert rows.tolist() == [100]
    living.end(np.array([3]), items)
    events, over = living.take(3)
    assert (events.multiples.tolist(), events.signs.tolist()) == ([1, 3], [1, 1, -1])
    assert over.tolist() == [slots[0]]
    living.free(over)
    again = living.add(np.array([8]), np.array([4]), np.array([FOREVER]))
    assert again.tolist() == [slots[0]]
    events, over = living.take(20)
    assert (events.multiples.tolist(), events.groups.tolist(), events.signs.tolist()) == ([4, 9], [8, 7], [1, -1])
    living.free(over)
    assert len(living) == 1


def test_a_result_that_a_window_ends_before_it_is_seen_has_no_events() -> None:
    living = LivingResults(["A"])
    slots = living.add(np.array([0, 0]), np.array([2, 2]), np.array([FOREVER, FOREVER]))
    living.watch("A", np.array([1, 5]), slots)
    _, items = living.take_watched("A", 2)
    living.end(np.array([2]), items)
    events, over = living.take(2)
    assert (events.slots.tolist(), events.signs.tolist()) == ([slots[1]], [1])
    assert over.tolist() == [slots[0]]


# --- Through the engine ----------------------------------------------------------------------------

STREAMS = """CREATE STREAM a (k BIGINT, x DOUBLE, s STRING, at TIMESTAMP) WITH (timestamp = 'at');
CREATE STREAM b (k BIGINT, y DOUBLE, at TIMESTAMP) WITH (timestamp = 'at');
"""


def emissions(text: str, **rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    query = parse_program(STREAMS + text).queries[0]
    engine = Engine(query)
    for stream in query.streams():
        full = [{**{field.name: None for field in stream.fields}, **row} for row in rows.get(stream.name, [])]
        if full:
            engine.push(stream.name, 0, to_batch(stream, full))
        engine.close(stream.name, 0)
    return to_rows(engine.advance())


def test_each_multiple_has_its_value() -> None:
    """Alive from ts to ts + d, both ends included; emitted when changed; in the end once more with nothing."""
    rows = [{"at": 3, "x": 1.0}, {"at": 10, "x": 2.0}, {"at": 11, "x": 4.0}]
    got = emissions("SELECT COUNT(*) AS n, SUM(x) AS s FROM a [RANGE 10 MS] EMIT EVERY 5 MS", a=rows)
    assert [(row["_ts"], row["n"], row["s"]) for row in got] == [
        (5, 1, 1.0),
        (10, 2, 3.0),
        (15, 2, 6.0),
        (25, 0, None),
    ]


def test_groups_in_the_order_of_their_keys() -> None:
    rows = [{"at": 1, "s": s, "k": k} for k in (2, None, 1) for s in ("b", None, "ä", "a")]
    got = emissions("SELECT s, k, COUNT(*) AS n FROM a [RANGE 1 MS] GROUP BY s, k EMIT EVERY 1 MS", a=rows)
    keys = [(s, k) for s in (None, "a", "b", "ä") for k in (None, 1, 2)]
    assert [(row["s"], row["k"], row["n"], row["_ts"]) for row in got] == [
        *[(s, k, 1, 1) for s, k in keys],
        *[(s, k, 0, 3) for s, k in keys],
    ]


def test_a_group_that_returns_is_emitted_again() -> None:
    """Also with the values that it had before it was forgotten."""
    rows = [{"at": at, "x": 1.0} for at in (0, 100)]
    got = emissions("SELECT MAX(x) AS m FROM a [RANGE 5 MS] EMIT EVERY 10 MS", a=rows)
    assert [(row["_ts"], row["m"]) for row in got] == [(0, 1.0), (10, None), (100, 1.0), (110, None)]


def test_an_unchanged_item_is_not_emitted_again() -> None:
    rows = [{"at": at, "x": 1.0} for at in (0, 1, 2)]
    got = emissions("SELECT COUNT(*) > 0 AS some FROM a [RANGE 5 MS] EMIT EVERY 1 MS", a=rows)
    assert [(row["_ts"], row["some"]) for row in got] == [(0, True), (8, False)]


def test_results_alive_between_two_multiples_are_never_emitted() -> None:
    assert emissions("SELECT COUNT(*) AS n FROM a [RANGE 3 MS] EMIT EVERY 10 MS", a=[{"at": 1}, {"at": 6}]) == []


def test_nothing_is_done_where_nothing_changes() -> None:
    """Two billion multiples of silence."""
    rows = [{"at": 0, "x": 1.0}, {"at": 2_000_000_000, "x": 1.0}]
    got = emissions("SELECT COUNT(*) AS n FROM a [UNBOUNDED] EMIT EVERY 1 MS", a=rows)
    assert [(row["_ts"], row["n"]) for row in got] == [(0, 1), (2_000_000_000, 2)]


def test_rows_windows_end_results() -> None:
    """A tuple of [ROWS 2] is dead from the instant of its second successor on."""
    rows = [{"at": at, "x": float(at)} for at in (0, 4, 10, 10, 20)]
    got = emissions("SELECT COUNT(*) AS n, MIN(x) AS m FROM a [ROWS 2] EMIT EVERY 5 MS", a=rows)
    assert [(row["_ts"], row["n"], row["m"]) for row in got] == [(0, 1, 0.0), (5, 2, 0.0), (10, 2, 10.0)]


def test_median_above_a_join() -> None:
    a = [{"at": t, "k": 1, "x": float(t)} for t in range(0, 50, 10)]
    got = emissions(
        "SELECT MEDIAN(A.x) AS m, COUNT(B.y) AS y FROM a A [RANGE 20 MS], b B [UNBOUNDED] WHERE A.k = B.k "
        "EMIT EVERY 10 MS",
        a=a,
        b=[{"at": 15, "k": 1}],
    )
    assert [(row["_ts"], row["m"], row["y"]) for row in got] == [
        (20, 10.0, 0),
        (30, 20.0, 0),
        (40, 30.0, 0),
        (50, 35.0, 0),
        (60, 40.0, 0),
        (70, None, 0),
    ]


def test_keys_of_upserts_go_with_their_rows() -> None:
    query = parse_program(
        STREAMS + "SELECT COUNT(*) AS n FROM a [RANGE 5 MS] GROUP BY s, k + 1 EMIT EVERY 5 MS"
    ).queries[0]
    engine = Engine(query)
    rows = [{"at": t, "k": t % 2, "x": None, "s": "ab"[t % 2]} for t in range(4)]
    engine.push("a", 0, to_batch(query.streams()[0], rows))
    engine.close("a", 0)
    out: Batch = engine.advance()
    assert out.ts.tolist() == [0, 5, 5, 10, 10]
    assert [key.to_values() for key in out.keys] == [["a", "a", "b", "a", "b"], [1, 1, 2, 1, 2]]
    assert [key.to_values() for key in out.slice(1, 3).keys] == [["a", "b"], [1, 2]]
    twice = Batch.concat([out, out]).take(np.array([0, 7]))
    assert [key.to_values() for key in twice.keys] == [["a", "b"], [1, 2]]


def test_forgotten_groups_and_results_take_no_room() -> None:
    """Thousands of groups, each for a moment, as months bring them."""
    text = "SELECT MAX(x) AS m FROM a [RANGE 5 MS] GROUP BY k, s EMIT EVERY 2 MS"
    query = parse_program(STREAMS + text).queries[0]
    engine = Engine(query)
    sizes = []
    for start in range(0, 20_000, 500):
        rows = [{"at": t, "k": t, "x": 1.0, "s": f"text {t:05}"} for t in range(start, start + 500)]
        engine.push("a", 0, to_batch(query.streams()[0], rows))
        engine.advance()
        sizes.append(engine.statistics().state_bytes)
    assert max(sizes) == max(sizes[:20]), "the second ten thousand find room where the first were"


@pytest.mark.parametrize(("of_a", "of_b", "at_once"), [("ROWS 1", "RANGE 5 MS", 50), ("RANGE 1 DAYS", "ROWS 1", 1)])
def test_results_that_one_window_has_ended_take_no_room_until_the_other_does(
    of_a: str, of_b: str, at_once: int
) -> None:
    """One tuple of a, and many of b, which die at once: each left its end by the window of a, for as long as that
    lasted."""
    text = f"SELECT COUNT(*) AS n FROM a A [{of_a}], b B [{of_b}] WHERE A.k = B.k EMIT EVERY 1 MS"
    query = parse_program(STREAMS + text).queries[0]
    engine = Engine(query)
    a, b = query.streams()
    engine.push("a", 0, to_batch(a, [{"at": 0, "k": 1, "x": None, "s": None}]))
    engine.close("a", 0)
    sizes = []
    for start in range(0, 3_000 * at_once, at_once):
        engine.push("b", 0, to_batch(b, [{"at": t, "k": 1, "y": None} for t in range(start, start + at_once)]))
        engine.advance()
        if start % (100 * at_once) == 0:
            sizes.append(engine.statistics().state_bytes)
    assert max(sizes) == max(sizes[:10])


@pytest.mark.parametrize(("item", "shown"), [("MAX(k)", 2), ("SUBSTRING(s, 1, MAX(k))", "ab"), ("MAX(k) > 1", True)])
def test_to_null_and_back_is_a_change(item: str, shown: object) -> None:
    """Two rows are alive at a time; of some k is null."""
    rows = [{"at": at, "s": "abc", "k": 2 if at in (0, 30) else None} for at in (0, 5, 15, 25, 30)]
    got = emissions(f"SELECT {item} AS x FROM a [RANGE 10 MS] GROUP BY s EMIT EVERY 5 MS", a=rows)
    assert [(row["_ts"], row["x"]) for row in got] == [(0, shown), (15, None), (30, shown), (45, None)]
