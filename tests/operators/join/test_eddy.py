"""The eddy with SteMs: its lottery, the links it may draw, its counters. For results see `test_engine_properties`."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.join.eddy import Eddy, Lottery
from operators.kernels.hashing import F64
from operators.kernels.route import covers, draw_links
from operators.plan.plan import left_deep
from operators.state.sources import Sources
from schemas.query import Query
from tests import oracle
from tests.feeding import Rows, canonical, feed
from tests.operators.inside import executor_as, executor_of
from tests.operators.tiny import chain, inputs, numbers, query


def eddy(given: Query, rows: Rows, *, epoch_ms: int = 1000, seed: int = 0) -> tuple[list[dict[str, object]], Eddy]:
    """Results in order, and the eddy as it is at the end."""
    engine = Engine(given, executor="eddy")
    executor = executor_as(engine, Eddy)
    executor._lottery = Lottery(seed)
    got = feed(engine, rows, [100], epoch_ms)
    return got, executor


def draw(
    visited: list[int], links: list[tuple[int, list[int], bool, float]], draws: list[float], words: int = 1
) -> list[int]:
    """Links drawn, each link being (SteM, aliases read, hashed, tickets), for tuples that visited the aliases."""

    def bits(aliases: list[int]) -> list[int]:
        return [sum(1 << (a % 64) for a in aliases if a // 64 == w) for w in range(words)]

    drawn = draw_links(
        np.repeat(np.array(bits(visited), np.uint64)[:, np.newaxis], len(draws), axis=1),
        np.array([bits(reads) for _, reads, _, _ in links], np.uint64),
        np.array([stem for stem, _, _, _ in links], np.int64),
        np.array([hashed for _, _, hashed, _ in links], np.bool_),
        np.array([tickets for _, _, _, tickets in links], np.float64),
        np.array(draws, np.float64),
    )
    return [int(link) for link in drawn]


# --- The lottery -------------------------------------------------------------------------------------


def test_draws_depend_on_the_counter_alone() -> None:
    """Draws do not depend on the batch size; another seed makes other draws."""
    one, other = Lottery(7), Lottery(7)
    at_once = one.draw(10)
    assert at_once.tolist() == [*other.draw(3).tolist(), *other.draw(7).tolist()]
    assert not set(at_once.tolist()) & set(one.draw(10).tolist())
    assert not set(at_once.tolist()) & set(Lottery(8).draw(10).tolist())


def test_draws_are_uniform() -> None:
    """Of 10,000 draws in [0, 1) about a tenth is in each tenth."""
    draws: F64 = Lottery(1).draw(10_000)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert np.abs(np.histogram(draws, 10, (0.0, 1.0))[0] - 1000).max() < 150


def test_tickets_share_the_draw() -> None:
    """3 tickets for SteM 1, 1 for SteM 2: the first three quarters go to 1."""
    links = [(1, [0], True, 3.0), (2, [0], True, 1.0)]
    assert draw([0], links, [0.0, 0.5, 0.74, 0.76, 0.99]) == [0, 0, 0, 1, 1]


def test_a_stem_is_visited_once_and_only_when_reached() -> None:
    """SteM 1 was visited; the link to 3 reads 2 too, which is not covered; 2 is left."""
    links = [(1, [0], True, 5.0), (2, [1], True, 1.0), (3, [0, 2], True, 9.0)]
    assert draw([0, 1], links, [0.0, 0.99]) == [1, 1]
    assert draw([0, 1, 2], links, [0.5]) == [2]
    assert draw([0, 1, 2, 3], links, [0.5]) == [-1]


def test_a_cross_product_is_the_last_resort() -> None:
    """It is drawn only when no predicate leads on, whatever its tickets."""
    links = [(1, [], False, 1e6), (2, [], False, 1.0), (2, [0], True, 1e-6)]
    assert draw([0], links, [0.0, 0.99]) == [2, 2]
    assert draw([1], links, [0.5]) == [1]


def test_a_stem_is_probed_by_its_best_link() -> None:
    """An index before none, then the most tickets; the SteM takes part with that link's tickets only."""
    links = [(2, [0], False, 9.0), (2, [1], True, 1.0), (2, [0, 1], True, 2.0), (3, [0], True, 2.0)]
    assert draw([0, 1], links, [0.0, 0.49, 0.51]) == [2, 2, 3]


def test_more_sources_than_a_word_has_bits() -> None:
    """Bits 63, 64 and 129 are distinguished."""
    links = [(63, [129], True, 1.0), (64, [129], True, 1.0), (129, [64], True, 1.0)]
    assert draw([63, 129], links, [0.5], words=3) == [1]
    assert draw([64], links, [0.5], words=3) == [2]
    assert draw([0], links, [0.5], words=3) == [-1]
    words = np.array([[1, 1], [0, 2]], np.uint64)
    assert covers(words, np.array([1, 2], np.uint64)).tolist() == [False, True]


# --- Routing -----------------------------------------------------------------------------------------


def test_counters() -> None:
    """A1 finds nothing (1 visit); A0 finds it, then nothing in A2 (2 visits); A2 finds both (2 visits)."""
    given = inputs(a1="1 k=1", a0="2 k=1", a2="3 k=1")
    got, executor = eddy(chain(3), given)
    assert len(got) == 1
    assert executor.routings == 5
    assert executor.intermediate_results() == 2
    # In one slice all are entered first, so A1 is compared with A0 and A2 too, to find that they are later.
    assert executor.comparisons() == 5


def test_each_link_counts_for_itself() -> None:
    """A tuple without a key is sent but probes nothing; results are those that pass every link."""
    triangle = query(
        "SELECT A.v FROM a A [ROWS 9], b B [ROWS 9], c C [ROWS 9] WHERE A.k = B.k AND B.k = C.k AND A.v < C.v"
    )
    got, executor = eddy(triangle, inputs(b="1 k=1", a="2 k=1 v=5 | 3 k=1 v=1 | 4 v=1", c="5 k=1 v=3"), seed=2)
    assert canonical(got) == canonical([{"A.v": 1, "_ts": 5}])
    links = {operator.name: operator for operator in executor.operators()}
    assert set(links) == {"B -> A", "A -> B", "C -> B", "B -> C", "C -> A", "A -> C"}
    assert links["B -> A"].kind == "hash"
    assert links["A -> C"].kind == "nested-loop"
    # C was sent to B first, whose k leads to two of A; one passes A.v < C.v too.
    assert links["C -> B"].results == 1
    assert links["B -> A"].candidates == 2
    assert links["B -> A"].results == 1
    assert links["C -> A"].input_tuples == 0


def test_a_rows_window_ends_before_the_component_that_no_link_reads() -> None:
    """C finds B, and B finds A of ts 1; the second A precedes C too, at an equal ts."""
    latest = query("SELECT A.v FROM a A [ROWS 1], b B [ROWS 9], c C [ROWS 9] WHERE A.k = B.k AND B.v = C.v")
    got, _ = eddy(latest, inputs(a="1 k=1 | 4 k=2", b="2 k=1 v=1", c="4 v=1"))
    assert got == []


def test_no_cross_product_where_predicates_connect() -> None:
    """Links exist for predicates only; without enough of them there are cross products, and right results."""
    _, executor = eddy(chain(3), {})
    assert all(" -> " in operator.name for operator in executor.operators())
    apart = query("SELECT A.v, B.v, C.v FROM a A [ROWS 9], b B [ROWS 9], c C [ROWS 9] WHERE A.v + B.v = C.v")
    rows = inputs(a="1 v=1 | 4 v=2", b="2 v=1 | 5 v=3", c="3 v=2 | 6 v=4")
    got, executor = eddy(apart, rows)
    assert canonical(got) == canonical(oracle.results(apart, rows))
    assert len(got) == 2
    assert {"-> A", "-> B", "-> C"} <= {operator.name for operator in executor.operators()}


def test_the_lottery_learns() -> None:
    """A0 matches ten of A1 and none of A2, so most of A0 soon visit A2 first; when that reverses, so does the order."""
    engine = Engine(chain(3, window="[UNBOUNDED]", star=True), executor="eddy")
    one = np.ones(10, np.int64)
    engine.push("a1", 0, numbers(one, k=one))
    engine.push("a2", 0, numbers(one, k=one * 2))

    def sent(k: int, at: int) -> tuple[int, int]:
        """How many of 1000 tuples of A0 visited A1 and A2."""

        def visits() -> np.ndarray:
            names = {operator.name: operator.input_tuples for operator in executor_of(engine).operators()}
            return np.array([names["A0 -> A1"], names["A0 -> A2"]])

        before = visits()
        for ts in range(at, at + 20):
            engine.push("a0", 0, numbers(np.full(50, ts), k=np.full(50, k)))
            engine.advance(ts + 1)
        first, second = (visits() - before).tolist()
        return first, second

    to_a1, to_a2 = sent(1, 10)
    assert to_a1 < 100 < 900 < to_a2
    assert sent(2, 100)[1] < 100
    assert sent(2, 200)[1] < 20, "what was seen before has faded"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_seed_decides_probe_paths_not_results(seed: int) -> None:
    """The same seed makes the same counters, any seed the same results."""
    rng = np.random.default_rng(5)
    rows = {
        f"a{i}": [[{"ts": int(t), "k": int(k), "v": i, "d": None, "s": None, "f": None} for t, k in pairs]]
        for i in range(4)
        for pairs in [sorted(zip(rng.integers(0, 50, 20), rng.integers(0, 3, 20), strict=True))]
    }
    given = chain(4, window="[RANGE 8 ms]", star=True)
    got, first = eddy(given, rows, seed=seed)
    again, second = eddy(given, rows, seed=seed)
    assert got == again
    assert (first.routings, first.comparisons()) == (second.routings, second.comparisons())
    other, third = eddy(given, rows, seed=seed + 10)
    assert got == other
    assert first.routings != third.routings


def test_seventy_sources() -> None:
    """A result over more aliases than a word has bits."""
    given = chain(70, star=True)
    got, executor = eddy(given, inputs(**{f"a{i}": f"1 k=1 v={i}" for i in range(70)}))
    (row,) = got
    assert [row[f"A{i}.v"] for i in range(70)] == list(range(70))
    # At equal ts the last source finds the others: 69 visits, and some by tuples that find too few.
    assert executor.intermediate_results() >= 68


def test_a_single_source_needs_no_stem() -> None:
    """Nothing is routed."""
    got, executor = eddy(query("SELECT A.k FROM a A [ROWS 1]"), inputs(a="1 k=1 | 2 k=2"))
    assert [row["A.k"] for row in got] == [1, 2]
    assert executor.routings == 0
    assert executor.operators() == ()


def test_stems_are_purged() -> None:
    """Entries that no later tuple can meet are dropped, and SteMs that links share count once."""
    engine = Engine(chain(3, star=True), plan=left_deep(["A0", "A1", "A2"]), executor="eddy")
    for i in range(3):
        engine.push(f"a{i}", 0, numbers(np.arange(100)))
    engine.advance(100)
    assert engine.statistics().state_tuples == 3 * 11 - 3
    assert engine.statistics().state_bytes > 0
    assert Eddy(Sources(chain(3)), left_deep(["A0", "A1", "A2"])).state_tuples() == 0
