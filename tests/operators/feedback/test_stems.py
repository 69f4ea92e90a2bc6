"""What M-Joins and eddies keep back and let in, tuple by tuple. Their results: `test_stems_properties`.

Most tests follow one query: A meets B by k and C by v, in windows of 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.feedback import stem_guard, stems
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff import tuple_cost
from operators.feedback.payoff.path_controller import PathController
from operators.feedback.stem_guard import StemGuard
from operators.feedback.stems import StemFeedback
from operators.plan.plan import left_deep
from schemas.language.program import parse_program
from tests.feeding import to_batch, to_rows
from tests.operators.feedback.test_stems_properties import watchful
from tests.operators.inside import feedback_of
from tests.operators.tiny import chain, numbers, query, rows

TWO = "SELECT A.ts AS a, B.ts AS b, C.ts AS c FROM a A {w}, b B {w}, c C {w} WHERE A.k = B.k AND A.v = C.v"
EXECUTORS = pytest.mark.parametrize("executor", ["mjoin", "eddy"])


@pytest.fixture(autouse=True)
def _watchful(request: pytest.FixtureRequest) -> Iterator[None]:
    if "economy" in request.node.name:
        yield
        return
    with watchful():
        yield


class Fed:
    """A task that is fed slice by slice."""

    def __init__(self, select: str = TWO, executor: str = "mjoin", window: str = "[RANGE 10 ms]") -> None:
        self.engine = Engine(
            query(select.format(w=window)), plan=left_deep(["A", "B", "C"]), executor=executor, feedback=True
        )

    def __call__(self, cut: int, **streams: str) -> list[tuple[int, int, int]]:
        """The results of a slice that ends before `cut`, as timestamps of A, B and C."""
        for name, text in streams.items():
            (source,) = [s for s in self.engine.query.sources if s.stream.name == name]
            self.engine.push(name, 0, to_batch(source.stream, rows(text)))
        return [(row["a"], row["b"], row["c"]) for row in to_rows(self.engine.advance(cut))]

    @property
    def feedback(self) -> StemFeedback:
        found = feedback_of(self.engine)
        assert isinstance(found, StemFeedback)
        return found

    @property
    def controller(self) -> PathController[StemGuard]:
        return self.feedback._controller

    def guard(self, name: str) -> StemGuard:
        """`A -> B` keeps A's tuples back for want of B's."""
        (found,) = [g for g in self.feedback.guards if f"{g.alias} -> {g.observed_alias}" == name]
        return found

    def held(self, alias: str) -> list[int]:
        """The timestamps of what the SteMs of an alias hold, which is the same in each."""
        found = [state.tuples() for _, _, state in self.feedback._stems[alias]]
        rows = {tuple(sorted(tuples.ts.tolist())) for tuples in found}
        assert len(rows) == 1
        return list(rows.pop())


def watching(executor: str = "mjoin", select: str = TWO, window: str = "[RANGE 10 ms]") -> Fed:
    """With a first slice in which every tuple has partners, so that all guards watch."""
    fed = Fed(select, executor, window)
    assert fed(2, a="0 k=0 v=0", b="0 k=0 v=0", c="0 k=0 v=0") == [(0, 0, 0)]
    assert all(g.watching for g in fed.feedback.guards)
    return fed


@EXECUTORS
def test_a_tuple_without_partners_stays_out_until_one_comes(executor: str) -> None:
    """a1 fits no b: it and a similar a2 are kept back, start on no way, and are let in by b5, which finds them."""
    fed = watching(executor)
    assert fed(5, a="2 k=1 v=0 | 3 k=1 v=0 | 4 k=0 v=0") == [(4, 0, 0)]
    assert fed.held("A") == [0, 4]
    guarded = fed.guard("A -> B")
    assert (len(guarded.blacklist), guarded.counters.suspend, guarded.counters.kept_back) == (2, 1, 2)
    assert fed(7, b="5 k=2 | 6 k=0") == [(0, 6, 0), (4, 6, 0)]
    assert (fed.held("A"), fed.held("B")) == ([0, 4], [0, 6]), "b5 fits no a, kept back or not"
    assert fed(9, b="8 k=1") == [(2, 8, 0), (3, 8, 0)]
    assert (fed.held("A"), len(guarded.blacklist), guarded.counters.resume) == ([0, 2, 3, 4], 0, 1)


def test_partners_in_the_same_slice_count() -> None:
    """Whatever their order: all of a slice is observed before any of it is let in."""
    fed = watching()
    assert fed(9, a="4 k=7 v=7", b="3 k=7 | 8 k=7", c="6 v=7") == [(4, 3, 6), (4, 8, 6)]
    assert fed.feedback.kept_back() == 0


def test_what_is_kept_back_is_known() -> None:
    """b3 is kept back for want of a's; a4 fits it but no c, and is kept back for that. c5 brings a4 back. Neither waits
    for the other, although neither was ever seen by the other's half joins."""
    fed = watching()
    assert fed(4, b="3 k=7") == []
    assert fed(5, a="4 k=7 v=7") == []
    assert (len(fed.guard("B -> A").blacklist), len(fed.guard("A -> C").blacklist)) == (0, 1)
    assert fed(6, c="5 v=7") == [(4, 3, 5)]


def test_one_that_comes_back_may_be_kept_back_for_another_reason() -> None:
    """a2 wants a b and a c; a b comes, then a c."""
    fed = watching()
    fed(3, a="2 k=7 v=7")
    assert len(fed.guard("A -> B").blacklist) == 1
    fed(4, b="3 k=7")
    assert (len(fed.guard("A -> B").blacklist), len(fed.guard("A -> C").blacklist)) == (0, 1)
    assert fed.held("A") == [0]
    assert fed(5, c="4 v=7") == [(2, 3, 4)]


def test_the_dead_do_not_come_back() -> None:
    """a2 lives until 12."""
    fed = watching()
    fed(3, a="2 k=7 v=7")
    fed(12, b="11 k=0")
    assert fed(14, b="13 k=7", c="13 v=7") == []
    assert fed.held("A") == []


def test_what_is_null_is_forgotten() -> None:
    """It can be in no result: it is neither entered nor kept."""
    fed = watching()
    assert fed(4, a="2 v=0 | 3 k=0", c="2") == []
    assert (fed.held("A"), fed.held("C"), fed.feedback.kept_back()) == ([0], [0], 0)
    assert fed.guard("A -> B").counters.forgotten == 1


def test_dead_rows_of_a_rows_window_do_not_come_back() -> None:
    """[ROWS 2]: a3 and a4 have followed a2 when its partner comes, but not a3's."""
    fed = watching(window="[ROWS 2]")
    fed(3, a="2 k=7 v=0")
    fed(5, a="3 k=7 v=0 | 4 k=7 v=0")
    assert fed(7, b="6 k=7") == [(3, 6, 0), (4, 6, 0)]
    assert fed.held("A") == [3, 4]


@EXECUTORS
def test_while_a_stream_has_nothing_the_others_wait(executor: str) -> None:
    """Nothing is entered or looked up before c5; then everything that lives is observed and let in."""
    fed = Fed(executor=executor)
    assert fed(5, a="0 k=1 v=1 | 4 k=1 v=1", b="1 k=1 | 4 k=2") == []
    assert (fed.feedback.kept_back(), fed.engine.statistics().state_tuples) == (4, 0)
    assert sum(edge.checked for edge in fed.feedback.edges()) == 0
    assert fed(6, c="5 v=1") == [(0, 1, 5), (4, 1, 5)]
    assert fed(16, c="15 v=9") == []
    assert fed(27, a="26 k=1 v=1") == []
    assert len(fed.feedback._idle["A"]) == 1, "all c's are dead: a26 waits"
    assert fed(28, b="27 k=1", c="27 v=1") == [(26, 27, 27)]


def test_what_waited_unseen_is_seen_when_it_is_let_in() -> None:
    """b9 is kept back for want of an a; a12 waits, as all c's are dead. c14 lets a12 in, and that brings b9 back."""
    fed = watching()
    assert fed(10, b="9 k=5") == []
    assert fed(13, a="12 k=5 v=0") == []
    assert (len(fed.guard("B -> A").blacklist), len(fed.feedback._idle["A"])) == (1, 1)
    assert fed(15, c="14 v=0") == [(12, 9, 14)]


def test_a_stream_lives_as_long_as_its_last_tuple() -> None:
    """Of a slice longer than the window the first a's end says nothing."""
    fed = watching()
    fed(22, a="2 k=0 v=0 | 21 k=0 v=0", b="21 k=0", c="21 v=0")
    assert fed(31, b="30 k=0") == [(21, 30, 21)]
    assert fed(32, a="31 k=0 v=0") == [(31, 21, 21), (31, 30, 21)]


def test_what_lost_its_last_partner_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """b0 dies at 11, and a9 has no partner any more; seen when the filter is made anew, and a9 comes back for b18."""
    monkeypatch.setattr(stem_guard, "MIN_HANDLED", 0)
    monkeypatch.setattr(stem_guard, "REBUILD_AFTER", 0)
    fed = watching()
    assert fed(10, a="9 k=0 v=0", b="9 k=3") == [(9, 0, 0)]
    assert fed(13, c="12 v=0", a="12 k=4 v=0") == []
    assert (fed.held("A"), len(fed.guard("A -> B").blacklist)) == ([], 2)
    assert fed(19, b="18 k=0") == [(9, 18, 12)]


def test_a_stem_is_compacted_for_many_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, but less than the share that pays for it has lost its partners."""
    monkeypatch.setattr(stem_guard, "MIN_HANDLED", 0)
    monkeypatch.setattr(stem_guard, "REBUILD_AFTER", 0)
    monkeypatch.setattr(stems, "COMPACT_SHARE", 1.0)
    fed = watching()
    fed(10, a="9 k=0 v=0", b="9 k=3")
    fed(13, c="12 v=0", a="12 k=4 v=0")
    assert fed.held("A") == [9]


def test_what_was_let_in_late_goes_to_its_place() -> None:
    """Once nothing watches the stream the SteM is as if it had come in time."""
    fed = watching()
    fed(4, a="2 k=7 v=0 | 3 k=0 v=0")
    fed(6, b="5 k=7")
    (state, *_) = [state for _, _, state in fed.feedback._stems["A"]]
    assert state.older is not None
    assert state.older.tuples().ts.tolist() == [2]
    fed.feedback._merge_late("A", 6)
    assert state.older is None
    assert state.tuples().ts.tolist() == [0, 2, 3]
    assert fed(8, b="7 k=7") == [(2, 7, 0)]


def test_equal_timestamps_keep_their_order() -> None:
    """What was let in late had been put before others of its ts; the binary search by which a ROWS window drops the
    dead then lost some that lived."""
    fed = watching(window="[ROWS 3]")
    fed(4, a="3 k=0 v=0 | 3 k=7 v=0 | 3 k=0 v=0")
    fed(6, b="5 k=7")
    fed.feedback._merge_late("A", 6)
    (state, *_) = [state for _, _, state in fed.feedback._stems["A"]]
    assert state.tuples().rows[0].tolist() == [1, 2, 3]
    assert fed(8, a="7 k=0 v=0") == [(7, 0, 0)]
    assert fed(10, b="9 k=7 | 9 k=0") == [(3, 9, 0), (3, 9, 0), (7, 9, 0)]


def test_a_late_tuple_is_dropped_when_it_is_dead() -> None:
    """The place beside the SteM is given up with the last of them."""
    fed = watching()
    fed(4, a="3 k=7 v=0")
    fed(6, b="5 k=7")
    state = fed.feedback._stems["A"][0][2]
    assert state.older is not None
    fed(13, c="12 v=0")
    assert state.older is not None, "until 13, its last instant"
    fed(14, c="13 v=0")
    assert state.older is None


def test_tables_never_change() -> None:
    """What fits no row of a table is forgotten at once."""
    text = "CREATE TABLE t (k BIGINT, v BIGINT) WITH (path = 't.csv');\n" + "".join(
        f"CREATE STREAM {name} (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (timestamp = 'ts');\n" for name in "ab"
    )
    window = "[RANGE 10 MILLISECONDS]"
    select = f"SELECT A.ts FROM a A {window}, b B {window}, t T WHERE A.k = B.k AND A.v = T.v"
    given = parse_program(text + select)
    one = np.ones(1, np.int64)
    engine = Engine(
        given.queries[0],
        plan=left_deep(["A", "B", "T"]),
        executor="mjoin",
        feedback=True,
        tables={"t": numbers(0 * one, k=one, v=one)},
    )
    for cut, v in ((2, [1]), (4, [1, 2])):
        values = np.array(v, np.int64)
        for name in "ab":
            engine.push(name, 0, numbers(0 * values + cut - 1, k=0 * values, v=values))
        engine.advance(cut)
    edges = {edge.consumer: edge for edge in engine.statistics().feedback}
    assert (edges["A -> T"].forgotten, edges["A -> T"].kept_back) == (1, 0)


def test_two_streams_have_no_feedback() -> None:
    """A tuple is entered and probes once: there is nothing to save."""
    engine = Engine(chain(2), executor="mjoin", feedback=True)
    assert feedback_of(engine) is None


# --- The economy -------------------------------------------------------------------------------------------


def test_economy_nothing_is_tried_before_it_has_been_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payoff, "TUPLES_PER_UPDATE", 1)
    monkeypatch.setattr(payoff, "FIRST_TRIAL_BUDGET", 0.0)
    fed = Fed()
    fed(2, a="0 k=0 v=0", b="0 k=0 v=0", c="0 k=0 v=0")
    assert not any(g.watching for g in fed.feedback.guards)
    assert fed.controller.trial_budget == pytest.approx(payoff.LOSS_SHARE * fed.feedback._work_done())
    fed.controller.trial_budget = 1e9
    fed(4, a="3 k=1 v=0")
    spent = 1e9 - fed.controller.trial_budget
    assert spent == pytest.approx(4 * stems.SCREEN_NS, rel=0.01), "all four were looked at; a tuple costs nothing here"
    monkeypatch.setattr(tuple_cost, "BLACKLIST_NS", -1e9)
    fed.controller.trial_budget = stems.SCREEN_NS
    fed(6, a="5 k=1 v=0")
    assert not any(g.watching for g in fed.feedback.guards), "a trial was worth it, and there was nothing left for it"
    assert fed.controller.trial_budget < payoff.TRIAL_NS
    fed.controller.trial_budget = 1e9
    fed(8, a="7 k=1 v=0")
    assert fed.guard("A -> B").watching


def test_economy_what_was_booked_is_not_booked_again() -> None:
    with watchful():
        fed = watching()
    fed(4, a="3 k=1 v=0")
    guarded = fed.guard("A -> B")
    guarded.balance.start(1e6)
    guarded.update_balance(0)
    left = guarded.balance.remaining
    assert guarded.watching
    assert left != 1e6
    guarded.update_balance(0)
    assert guarded.balance.remaining == left
    state = guarded.states[0]
    state.older = state
    guarded.tuple_cost.update(0.0, guarded.tuple_cost._sums._totals[1] + 7 * tuple_cost.RESULT_NS, 1)
    guarded.update_balance(2)
    spent = 2 * tuple_cost.PATH_PRICES.slice + 7 * tuple_cost.MERGE_NS
    assert guarded.balance.remaining == left - spent, "results are ordered while late tuples are there"


def test_economy_where_few_have_partners_and_ways_are_long() -> None:
    """B and C match A a lot, D never: what A, B and C make before they come to D is not made any more. When D begins to
    match it is let in: all results are found."""
    window = "[RANGE 2000 ms]"
    streams = ", ".join(f"{name} {name.upper()} {window}" for name in "abcd")
    given = query(f"SELECT A.ts AS a, D.ts AS d FROM {streams} WHERE A.k = B.k AND A.k = C.k AND A.v = D.v")
    ref, jit = (
        Engine(given, plan=left_deep(["A", "B", "C", "D"]), executor="mjoin", feedback=feedback)
        for feedback in (False, True)
    )
    found: list[list[list[int]]] = [[], []]
    for second in range(24):
        random = np.random.default_rng(second)
        for name in "abcd":
            ts = np.sort(random.integers(second * 1000, second * 1000 + 1000, 300))
            apart = 1000 if name == "d" and second < 22 else 0
            batch = numbers(ts, k=random.integers(0, 100, 300), v=random.integers(0, 600, 300) + apart)
            for engine in (ref, jit):
                engine.push(name, 0, batch)
        for engine, results in zip((ref, jit), found, strict=True):
            out = engine.advance((second + 1) * 1000)
            results += np.array([out.columns["a"].values, out.columns["d"].values]).T.tolist()
    assert found[0] == found[1]
    assert len(found[0]) > 100
    edges = {edge.consumer: edge for edge in jit.statistics().feedback}
    assert edges["A -> D"].suspend > 0
    assert jit.statistics().intermediate_results < 0.8 * ref.statistics().intermediate_results
