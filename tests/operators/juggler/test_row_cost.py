"""What probe paths of a shared operator have cost, computed by hand."""

from __future__ import annotations

from operators.juggler.feedback.row_cost import path_ns, paths_ns
from operators.juggler.predicates.order import PIECE_NS, VisitWork
from operators.juggler.routing.visits import Visit

PAIR_NS = VisitWork(paired=1).ns()


def visit(inputs: str, *following: Visit) -> Visit:
    """A visit of the last of some inputs, and those after it."""
    return Visit(tuple(inputs), frozenset({0}), (), next=list(following))


def test_a_rows_own_way_goes_up_to_the_one_that_guards_it() -> None:
    """On the probe paths of A over D and B, then C, and then D; each visit's work identifies it."""
    root = visit("A", visit("AB", visit("ABC", visit("ABCD"))), visit("AD", visit("ADC")))
    pairs = {visit.inputs: 10**n for n, visit in enumerate(root.all())}

    def work_of(visit: Visit) -> VisitWork:
        return VisitWork(pieces=3, paired=pairs[visit.inputs])

    assert [visit.inputs for visit in root.all()][1:4] == [tuple("AB"), tuple("ABC"), tuple("ABCD")]
    assert path_ns(root, "A", "C", work_of) == PAIR_NS * (10 + 100 + 10_000 + 100_000)
    assert path_ns(root, "A", "B", work_of) == PAIR_NS * (10 + 10_000 + 100_000)
    # Visits that find D on A's probe paths before they reach C.
    assert path_ns(root, "D", "C", work_of) == PAIR_NS * (10_000 + 100_000)
    assert path_ns(root, "D", "A", work_of) == 0.0
    assert path_ns(root, "C", "D", work_of) == PAIR_NS * (100 + 1000)
    other = visit("B", visit("BA"))
    pairs |= {tuple("B"): 1, tuple("BA"): 7}
    roots = {"A": root, "B": other}
    assert paths_ns(roots, "A", "C", work_of) == (PAIR_NS * 110_110, PAIR_NS * 7)


def test_a_look_into_a_structure_costs_the_same_for_fewer_rows() -> None:
    root = visit("A", visit("AB"))
    assert path_ns(root, "A", "B", lambda v: VisitWork(pieces=2)) == 0.0
    assert VisitWork(pieces=2).ns() == 2 * PIECE_NS
