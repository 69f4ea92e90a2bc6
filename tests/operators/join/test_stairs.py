"""The eddy with STAIRs: its counters, and how its state moves when it routes by another plan (JISC 4.6)."""

from __future__ import annotations

import pytest

from operators.engine.engine import Engine
from operators.join.stairs import Stairs
from operators.migration.migration import MigrationCounters
from operators.plan.plan import Plan, parse_plan
from operators.state.side_state import SideState
from schemas.query import Query
from tests.feeding import Rows, to_rows
from tests.operators import migrating
from tests.operators.inside import executor_as
from tests.operators.tiny import chain, inputs, query

ABCD = query(
    "SELECT A.v, B.v, C.v, D.v FROM a A [RANGE 10 ms], b B [RANGE 10 ms], c C [RANGE 10 ms], d D [RANGE 10 ms] "
    "WHERE A.k = B.k AND B.k = C.k AND C.k = D.k"
)


def started(given: Query, rows: Rows, tree: Plan | str) -> Engine:
    """An eddy that has taken in all rows and processed none."""
    return migrating.started(given, rows, tree, executor="stairs")


def stairs(engine: Engine) -> Stairs:
    """The executor behind an engine that is not migrating."""
    executor = executor_as(engine, Stairs)
    return executor


def states(engine: Engine) -> dict[str, SideState]:
    """The STAIRs' states by the aliases that they cover."""
    return {
        "".join(sorted(aliases)): state
        for _, join in stairs(engine).joins
        for aliases, state in zip(join.match.sides, join.states, strict=True)
    }


def covered(engine: Engine) -> dict[str, int]:
    """Entries per STAIR."""
    return {aliases: len(state) for aliases, state in states(engine).items()}


def reroute(engine: Engine, tree: str, strategy: str = "moving-state") -> MigrationCounters:
    """Route by another plan from the engine's cut on."""
    engine.migrate(parse_plan(tree, engine.query), strategy, engine.cut)
    engine.advance(engine.cut + 1)
    return engine.migrations[-1].counters


# --- Routing -----------------------------------------------------------------------------------------


def test_every_tuple_is_inserted_and_probes_the_dual() -> None:
    """A and B make AB, which C finds: four tuples are routed to STAIRs, and one leaves the eddy."""
    engine = started(chain(3), inputs(a0="1 k=1", a1="2 k=1", a2="3 k=1"), "((A0 A1) A2)")
    assert len(engine.advance(100)) == 1
    executor = stairs(engine)
    assert executor.routings == 4
    assert executor.intermediate_results() == 1
    assert [join.match.sides for _, join in executor.joins] == [(("A0",), ("A1",)), (("A0", "A1"), ("A2",))]


# --- Another plan ------------------------------------------------------------------------------------


def test_entries_are_demoted_that_the_new_plan_lacks_and_promoted_that_it_needs() -> None:
    """From ((A B) C) D to ((B C) A) D: AB is dropped, BC is made, ABC and the sources stay."""
    rows = inputs(a="1 k=1 | 2 k=2", b="3 k=1 | 4 k=1", c="5 k=1 | 6 k=3", d="20 k=1")
    engine = started(ABCD, rows, "(((A B) C) D)")
    engine.advance(7)
    assert covered(engine) == {"A": 2, "B": 2, "AB": 2, "C": 2, "ABC": 2, "D": 0}
    before = stairs(engine)
    counters = reroute(engine, "(((B C) A) D)")
    assert covered(engine) == {"A": 2, "B": 2, "C": 2, "BC": 2, "ABC": 2, "D": 0}
    assert (counters.dropped_tuples, counters.made_tuples) == (2, 2)
    # Each pair is compared from both sides, and found by the later tuple.
    assert counters.comparisons == 4
    assert stairs(engine) is not before
    assert str(engine.plan) == "(((B C) A) D)"


def test_only_demanded_entries_are_promoted_on_demand() -> None:
    """JISC promotes nothing at first; then the entries that D's tuple demands, by way of A."""
    rows = inputs(a="1 k=1 | 2 k=2", b="3 k=1 | 4 k=2", c="5 k=1 | 6 k=2", d="9 k=2")
    engine = started(ABCD, rows, "((A B) (C D))")
    engine.advance(7)
    counters = reroute(engine, "(((B C) A) D)", "jisc")
    assert (counters.dropped_tuples, counters.made_tuples, counters.completed_keys) == (2, 0, 0)
    assert len(engine.advance(10)) == 1
    assert (counters.made_tuples, counters.completed_keys) == (2, 2), "BC and BCA, for one key each"


def test_shared_states_are_not_copied() -> None:
    """States that both plans have are taken over."""
    engine = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "((A B) (C D))")
    engine.advance(5)
    before = states(engine)
    reroute(engine, "(((C D) B) A)")
    after = states(engine)
    assert after["CD"] is before["CD"]
    assert after["A"] is before["A"]
    assert covered(engine) == {"A": 1, "B": 1, "C": 1, "D": 1, "CD": 1, "BCD": 1}


@pytest.mark.parametrize("strategy", ["moving-state", "hybmig", "hybmig-bsc", "jisc"])
def test_the_same_plan_moves_nothing(strategy: str) -> None:
    """Migrating to the same plan compares nothing either."""
    engine = started(ABCD, inputs(a="1 k=1", b="2 k=1", c="3 k=1", d="4 k=1"), "((A B) (C D))")
    engine.advance(5)
    before = states(engine)
    counters = reroute(engine, "((A B) (C D))", strategy)
    assert states(engine) == before
    assert (counters.made_tuples, counters.dropped_tuples, counters.comparisons) == (0, 0, 0)


@pytest.mark.parametrize(("cut", "promoted"), [(11, 1), (12, 0)])
def test_only_living_entries_are_promoted(cut: int, promoted: int) -> None:
    """AB expires with its A after 11, though its ts is recent and it is still in its state."""
    rows = inputs(a="1 k=1", b="9 k=1", c="10 k=1", d="30")
    engine = started(ABCD, rows, "((A B) (C D))")
    engine.advance(cut)
    assert covered(engine)["AB"] == 1
    assert reroute(engine, "(((A B) C) D)").made_tuples == promoted


def test_a_tie_is_promoted_once() -> None:
    """Of B and C at one ts, only one tuple finds the other."""
    engine = started(ABCD, inputs(a="1", b="1 k=1", c="1 k=1", d="30"), "(((A B) C) D)")
    engine.advance(5)
    assert reroute(engine, "(((B C) A) D)").made_tuples == 1


@pytest.mark.parametrize("strategy", ["moving-state", "jisc"])
def test_a_tuple_that_left_its_rows_window_makes_no_result(strategy: str) -> None:
    """A at 1 met B and C, but A at 4 has replaced it in the window since."""
    latest = query(
        "SELECT A.v, B.v, C.v, D.v FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1], d D [ROWS 1] "
        "WHERE A.k = B.k AND B.k = C.k AND C.k = D.k"
    )
    engine = started(latest, inputs(a="1 k=1 | 4", b="2 k=1", c="3 k=1", d="9 k=1"), "((A B) (C D))")
    engine.advance(5)
    assert covered(engine)["AB"] == 1
    assert reroute(engine, "(((A B) C) D)", strategy).made_tuples == 0
    assert to_rows(engine.advance(100)) == []
