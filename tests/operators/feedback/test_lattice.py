"""`Identify_MNS` in one pass over a ring, against Fig. 8 as the paper writes it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER, Tuples
from operators.kernels.lattice import MOST_NODES, minimal_alive, note_matches
from operators.kernels.scan import OPS
from operators.state import side_state as state
from operators.state.side_state import SideState
from schemas.columns import I64
from tests.profiles import PROPERTY

Node = frozenset[int]


@dataclass(frozen=True)
class Term:
    """`probing value op entry's value`, of a level-1 node or none (-1); real numbers or whole ones."""

    op: str
    node: int
    real: bool = False

    def holds(self, a: float, b: float) -> bool:
        return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "=": a == b}[self.op]


@dataclass(frozen=True)
class Entry:
    """A tuple of the opposite state, or a probing one: its ts, its expiry and a value per term."""

    ts: int
    expiry: int
    values: tuple[int, ...]


def identify_mns(probe: Entry, terms: list[Term], nodes: int, opposite: list[Entry]) -> set[Node]:
    """Fig. 8, line by line, over the entries that count."""
    if not opposite:
        return {frozenset()}  # 2
    levels = [[frozenset(c) for c in combinations(range(nodes), size)] for size in range(nodes + 1)]
    alive = {node for level in levels[1:] for node in level}  # 4
    for entry in opposite:  # 5
        matched = {
            node
            for node in levels[1]
            if all(t.holds(a, b) for t, a, b in zip(terms, probe.values, entry.values, strict=True) if t.node in node)
        }  # 6
        for level in levels[2:]:  # 7-9
            matched |= {node for node in level if all(node - {k} in matched for k in node)}
        alive -= matched  # 10
    found: set[Node] = set()
    not_minimal: set[Node] = set()
    for level in levels[1:]:  # 11-14
        for node in level:
            children = {node - {k} for k in node} if len(node) > 1 else set()
            if children & (found | not_minimal):
                not_minimal.add(node)
            elif node in alive:
                found.add(node)
    return found


def counted(probe: Entry, opposite: list[Entry], life: int, *, every: bool, strict: bool) -> list[Entry]:
    """The entries that live at the probing tuple's ts and are earlier, where that is asked for."""
    return [
        e
        for e in opposite
        if e.expiry >= probe.ts
        and e.ts >= probe.ts - life
        and (every or e.ts < probe.ts or (e.ts == probe.ts and not strict))
    ]


def state_of(opposite: list[Entry], terms: list[Term], life: int) -> SideState:
    """A state of these entries, ascending by ts, whose ring has wrapped."""
    ints, reals = [t for t in terms if not t.real], [t for t in terms if t.real]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_CAPACITY", 8)
        side = SideState(("E",), life, hashed=False, int_terms=len(ints), float_terms=len(reals))
        gone = np.zeros(5, np.int64)
        side.insert(Tuples(("E",), gone[np.newaxis], gone - 100, gone - 100), None, *zeros(ints, reals, 5))
        side.purge_rows("E", 1)
        for e in opposite:
            one = np.array([e.ts])
            tuples = Tuples(("E",), np.array([[7]]), one, np.array([e.expiry]))
            values = values_of([e], terms)
            side.insert(tuples, None, *values)
    return side


def zeros(ints: list[Term], reals: list[Term], n: int) -> tuple[I64, np.ndarray]:
    return np.zeros((len(ints), n), np.int64), np.zeros((len(reals), n))


def values_of(entries: list[Entry], terms: list[Term]) -> tuple[I64, np.ndarray]:
    """(t, n) values of the whole-number and of the real-number terms."""
    table = np.array([e.values for e in entries], np.float64).reshape(len(entries), len(terms)).T
    real = np.array([t.real for t in terms], np.bool_)
    return np.ascontiguousarray(table[~real]).astype(np.int64), np.ascontiguousarray(table[real])


def found_by_kernel(
    probes: list[Entry], terms: list[Term], nodes: int, sides: list[SideState], *, every: bool, strict: bool
) -> tuple[list[set[Node]], int]:
    """Each probing tuple's MNSs and the comparisons, with the opposite entries in one or more states."""
    ints, reals = [t for t in terms if not t.real], [t for t in terms if t.real]
    int_probe, real_probe = values_of(probes, terms)
    seen = np.zeros((len(probes), 1 << nodes), np.bool_)
    compared = 0
    for side in sides:
        compared += note_matches(
            np.array([OPS[t.op] for t in ints], np.int64), int_probe, side.int_terms,
            np.array([t.node for t in ints], np.int64),
            np.array([OPS[t.op] for t in reals], np.int64), real_probe, side.float_terms,
            np.array([t.node for t in reals], np.int64),
            np.array([p.ts for p in probes], np.int64), every, strict, side.life,
            side.ts, side.expiry, side.lo, side.hi, seen,
        )  # fmt: skip
    mns = minimal_alive(seen)
    found = [{frozenset(k for k in range(nodes) if node >> k & 1) for node in np.flatnonzero(row)} for row in mns]
    return found, compared


def entries(terms: int) -> st.SearchStrategy[list[Entry]]:
    """Some tuples in order of ts."""
    times = st.integers(0, 6)
    values = st.tuples(*[st.integers(0, 2)] * terms)
    made = st.builds(lambda ts, life, v: Entry(ts, ts + life, v), times, times, values)
    return st.lists(made, max_size=7).map(lambda found: sorted(found, key=lambda e: e.ts))


@PROPERTY
@given(st.data())
def test_one_pass_finds_what_figure_8_finds(data: st.DataObject) -> None:
    """Any terms, nodes, windows; the entries in one state or split over two, as while a migration completes one."""
    nodes = data.draw(st.integers(1, 4))
    free = st.builds(Term, st.sampled_from(sorted(OPS)), st.integers(-1, nodes - 1), st.booleans())
    terms = [Term(data.draw(st.sampled_from(sorted(OPS))), k, data.draw(st.booleans())) for k in range(nodes)]
    terms += data.draw(st.lists(free, max_size=2))
    probes, opposite = data.draw(entries(len(terms))), data.draw(entries(len(terms)))
    every, strict = data.draw(st.booleans()), data.draw(st.booleans())
    life = data.draw(st.sampled_from([2, 4, FOREVER]))
    parts = [opposite[0::2], opposite[1::2]] if data.draw(st.booleans()) else [opposite]
    sides = [state_of(part, terms, life) for part in parts]
    found, _ = found_by_kernel(probes, terms, nodes, sides, every=every, strict=strict)
    for probe, mns in zip(probes, found, strict=True):
        partners = counted(probe, opposite, life, every=every, strict=strict)
        assert mns == identify_mns(probe, terms, nodes, partners)


def test_the_papers_example() -> None:
    """Section IV-A: e1 matches a, e2 matches c. Both are dead then, ac is alive and minimal, and so are b and d."""
    terms = [Term("=", k) for k in range(4)]
    abcd, e1, e2 = Entry(5, 99, (1, 1, 1, 1)), Entry(1, 99, (1, 0, 0, 0)), Entry(2, 99, (0, 0, 1, 0))
    found, compared = found_by_kernel([abcd], terms, 4, [state_of([e1, e2], terms, 50)], every=False, strict=False)
    assert found == [{frozenset({0, 2}), frozenset({1}), frozenset({3})}]
    assert compared == 2


def test_an_empty_state_demands_nothing() -> None:
    """Then the empty sub-tuple is the only MNS; entries that are dead or not yet there make no difference."""
    terms = [Term("=", 0), Term("=", 1)]
    dead, later = Entry(1, 3, (1, 1)), Entry(6, 9, (1, 1))
    probe = Entry(5, 99, (1, 1))
    for opposite in ([], [dead], [dead, later]):
        side = state_of(opposite, terms, 50)
        assert found_by_kernel([probe], terms, 2, [side], every=False, strict=False) == ([{frozenset()}], 0)
    assert found_by_kernel([probe], terms, 2, [side], every=True, strict=False) == ([set()], 1)


@pytest.mark.parametrize("strict", [False, True])
def test_the_edges_of_a_life(strict: bool) -> None:
    """An entry counts up to its expiry and to the state's life, both included, and at its own ts unless `strict`."""
    terms = [Term("=", 0)]
    ends = ((5, 99, not strict), (4, 99, True), (1, 99, True), (0, 99, False), (4, 5, True), (4, 4, False))
    for ts, expiry, counts in ends:
        side = state_of([Entry(ts, expiry, (1,))], terms, 4)
        found, compared = found_by_kernel([Entry(5, 99, (1,))], terms, 1, [side], every=False, strict=strict)
        assert (found, compared) == (([set()], 1) if counts else ([{frozenset()}], 0)), (ts, expiry)


def test_a_tuple_that_is_demanded_is_done_with() -> None:
    """Entries are looked at from the newest: the first that matches in all nodes ends the pass."""
    terms = [Term("=", 0), Term("<", 0), Term("=", -1)]
    side = state_of([Entry(1, 99, (1, 9, 0)), Entry(2, 99, (1, 5, 7)), Entry(3, 99, (1, 0, 0))], terms, 50)
    found, compared = found_by_kernel([Entry(4, 99, (1, 3, 1))] * 2, terms, 1, [side, side], every=False, strict=False)
    assert (found, compared) == ([set(), set()], 4), "the term of no node does not count, nor does the second state"


def test_as_many_nodes_as_are_promised() -> None:
    """All of level 1 matched, one at a time: every pair is an MNS."""
    terms = [Term("=", k) for k in range(MOST_NODES)]
    opposite = [Entry(k, 99, tuple(int(k == j) for j in range(MOST_NODES))) for k in range(MOST_NODES)]
    probe = Entry(20, 99, (1,) * MOST_NODES)
    side = state_of(opposite, terms, 50)
    found, compared = found_by_kernel([probe], terms, MOST_NODES, [side], every=False, strict=True)
    assert found == [{frozenset(pair) for pair in combinations(range(MOST_NODES), 2)}]
    assert compared == MOST_NODES
