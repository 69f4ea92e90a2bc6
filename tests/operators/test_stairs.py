"""The eddy with STAIRs: what it counts, and how its state moves when it routes by another plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine import Engine
from operators.kernels.hashing import U64
from operators.plan import Plan, parse_plan
from operators.stairs import Stairs
from schemas.errors import UsageError
from schemas.query import Query
from tests.cases import Case, cases, plan
from tests.feeding import Rows, partitions_of, to_batch, to_rows
from tests.operators.profiles import PROPERTY
from tests.operators.tiny import chain, inputs, query

ABCD = query(
    "SELECT A.v, B.v, C.v, D.v FROM a A [RANGE 10 ms], b B [RANGE 10 ms], c C [RANGE 10 ms], d D [RANGE 10 ms] "
    "WHERE A.k = B.k AND B.k = C.k AND C.k = D.k"
)


def started(given: Query, rows: Rows, tree: Plan | str) -> tuple[Engine, Stairs]:
    """An engine that has taken all rows and processed none."""
    tree = parse_plan(tree, given) if isinstance(tree, str) else tree
    engine = Engine(given, plan=tree, partitions=partitions_of(rows), executor="stairs")
    streams = {stream.name: stream for stream in given.streams()}
    for name, parts in rows.items():
        for p, part in enumerate(parts):
            engine.push(name, p, to_batch(streams[name], part))
            engine.close(name, p)
    executor = engine._executor
    assert isinstance(executor, Stairs)
    return engine, executor


def covered(executor: Stairs) -> dict[str, int]:
    """Entries per STAIR."""
    return {"".join(sorted(key)): len(stair.state) for key, stair in executor.stairs().items()}


# --- Routing -----------------------------------------------------------------------------------------


def test_every_tuple_is_inserted_and_probes_the_dual() -> None:
    """A and B make AB, which C finds: four tuples to STAIRs, one to the way out."""
    engine, executor = started(chain(3), inputs(a0="1 k=1", a1="2 k=1", a2="3 k=1"), "((A0 A1) A2)")
    assert len(engine.advance(100)) == 1
    assert executor.routings == 4
    assert executor.intermediate_results() == 1
    stair = executor.stairs()[frozenset({"A0", "A1"})]
    assert stair.dual.aliases == ("A2",)
    assert stair.dual.dual == stair


# --- Another plan ------------------------------------------------------------------------------------


@PROPERTY
@given(cases(most_aliases=5), st.data())
def test_routes_may_change_at_any_time(case: Case, data: st.DataObject) -> None:
    """The results and their order are those of one plan."""
    expected, _ = started(case.query, case.rows, case.plan)
    engine, executor = started(case.query, case.rows, case.plan)
    got = []
    for cut in sorted(data.draw(st.lists(st.integers(0, 70), max_size=4, unique=True))):
        got += to_rows(engine.advance(cut))
        done = executor.comparisons(), executor.intermediate_results()
        executor.route(data.draw(plan(case.plan.aliases)))
        assert (executor.comparisons(), executor.intermediate_results()) >= done
    assert got + to_rows(engine.advance()) == to_rows(expected.advance())


def test_demote_what_the_new_plan_has_not_promote_what_it_needs() -> None:
    """((A B) C) D to ((B C) A) D: AB goes, BC is made, ABC and the sources stay."""
    rows = inputs(a="1 k=1 | 2 k=2", b="3 k=1 | 4 k=1", c="5 k=1 | 6 k=3", d="20 k=1")
    engine, executor = started(ABCD, rows, "(((A B) C) D)")
    engine.advance(7)
    assert covered(executor) == {"A": 2, "B": 2, "AB": 2, "C": 2, "ABC": 2, "D": 0}
    abc, compared = executor.stairs()[frozenset("ABC")].state, executor.comparisons()
    executor.route(parse_plan("(((B C) A) D)", ABCD))
    assert covered(executor) == {"A": 2, "B": 2, "C": 2, "BC": 2, "ABC": 2, "D": 0}
    assert (executor.demoted, executor.promoted) == (2, 2)
    # Each pair is compared from both sides, and found from that of the later.
    assert executor.comparisons() == compared + 4
    assert abc is not executor.stairs()[frozenset("ABC")].state, "its rows are in another order now"
    assert str(executor.plan) == "(((B C) A) D)"


def test_states_that_serve_as_they_are_are_not_copied() -> None:
    """The plan's other half is left alone, joins and all."""
    engine, executor = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "((A B) (C D))")
    engine.advance(5)
    before, pair = executor.stairs(), executor.joins[1][1]
    executor.route(parse_plan("(((C D) B) A)", ABCD))
    after = executor.stairs()
    assert executor.joins[0][1] is pair
    assert after[frozenset("CD")].state is before[frozenset("CD")].state
    assert after[frozenset("A")].state is before[frozenset("A")].state
    assert covered(executor) == {"A": 1, "B": 1, "C": 1, "D": 1, "CD": 1, "BCD": 1}


def test_the_same_plan_moves_nothing() -> None:
    """Nor does it compare anything."""
    engine, executor = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "((A B) (C D))")
    engine.advance(5)
    pairs, compared = [join for _, join in executor.joins], executor.comparisons()
    executor.route(parse_plan("((A B) (C D))", ABCD))
    assert [join for _, join in executor.joins] == pairs
    assert (executor.promoted, executor.demoted, executor.comparisons()) == (0, 0, compared)


@pytest.mark.parametrize(("cut", "promoted"), [(11, 1), (12, 0)])
def test_only_what_lives_is_promoted(cut: int, promoted: int) -> None:
    """AB dies with its A after 11, though it is young and still in its state."""
    rows = inputs(a="1 k=1", b="9 k=1", c="10 k=1", d="30")
    engine, executor = started(ABCD, rows, "((A B) (C D))")
    engine.advance(cut)
    assert covered(executor)["AB"] == 1
    executor.route(parse_plan("(((A B) C) D)", ABCD))
    assert executor.promoted == promoted


def test_a_tie_is_promoted_once() -> None:
    """Of B and C at one ts, only one finds the other."""
    engine, executor = started(ABCD, inputs(a="1", b="1 k=1", c="1 k=1", d="30"), "(((A B) C) D)")
    engine.advance(5)
    executor.route(parse_plan("(((B C) A) D)", ABCD))
    assert executor.promoted == 1


def test_what_a_rows_window_has_lost_is_not_promoted() -> None:
    """A at 1 met B and C, but A at 4 has taken its place since."""
    latest = query(
        "SELECT A.v, B.v, C.v, D.v FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1], d D [ROWS 1] "
        "WHERE A.k = B.k AND B.k = C.k AND C.k = D.k"
    )
    engine, executor = started(latest, inputs(a="1 k=1 | 4", b="2 k=1", c="3 k=1", d="9 k=1"), "((A B) (C D))")
    engine.advance(4)
    engine.advance(5)
    assert covered(executor)["AB"] == 1
    executor.route(parse_plan("(((A B) C) D)", latest))
    assert executor.promoted == 0


def test_an_incomplete_state_is_promoted() -> None:
    """Were AB taken over as it is, or its join kept, what it lacks would be lost."""

    class Owed:
        def demand(self, hashes: U64 | None, now: int) -> None:
            """Never asked."""

    for tree in ("((A B) (C D))", "(((A B) C) D)"):
        engine, executor = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "(((A B) C) D)")
        engine.advance(4)
        state = executor.stairs()[frozenset("AB")].state
        state.keep(np.zeros(1, np.bool_))
        state.owed = Owed()
        executor.route(parse_plan(tree, ABCD))
        assert executor.stairs()[frozenset("AB")].state.complete
        assert len(engine.advance()) == 1


def test_counters_go_on() -> None:
    """The work of joins that are gone stays counted, results of the topmost still do not count as intermediate."""
    engine, executor = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "(((A B) C) D)")
    engine.advance(5)
    compared, made = executor.comparisons(), executor.intermediate_results()
    assert made == 2
    executor.route(parse_plan("(((D C) B) A)", ABCD))
    executor.route(parse_plan("(((A B) C) D)", ABCD))
    # DC and DCB are promoted, then AB and ABC again.
    assert executor.intermediate_results() == made + 4
    assert executor.comparisons() > compared


def test_a_plan_over_other_aliases_is_refused() -> None:
    """Before anything has moved."""
    _, executor = started(ABCD, {}, "(((A B) C) D)")
    with pytest.raises(UsageError, match="A B C D cannot become"):
        executor.route(parse_plan("(A0 A1)", chain(2)))
    assert str(executor.plan) == "(((A B) C) D)"
