"""Kinds: which predicates they are made of, and that signatures agree on both sides exactly where values match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER, Tuples
from operators.feedback.kinds import Kind, lattice, level_one, term_nodes
from operators.state.match import LEFT, RIGHT, Match
from operators.state.sources import Sources
from schemas.errors import InvariantError
from tests.cases import VALUES
from tests.feeding import to_batch
from tests.operators.tiny import query, rows
from tests.profiles import PROPERTY


def match_of(condition: str, left: str, right: str, *, hashed: bool = True) -> Match:
    """The join of some aliases of A .. D, which are of streams a .. d."""
    sources = ", ".join(f"{alias.lower()} {alias} [UNBOUNDED]" for alias in left + right)
    given = query(f"SELECT A.k FROM {sources} WHERE {condition}")
    return Match(Sources(given, hashed=hashed), tuple(left), tuple(right))


def described(kind: Kind) -> str:
    """`A B: k v = k d`: its aliases, columns, operators and opposite columns."""

    def columns(operands: Any) -> str:
        return " ".join(getattr(operand.expr, "name", "?") for operand in operands)

    ops = " ".join(dict.fromkeys(kind.ops))
    return f"{' '.join(kind.aliases)}: {columns(kind.own)} {ops} {columns(kind.opposite)}"


def stored(match: Match, alias: str, given: list[dict[str, Any]]) -> Tuples:
    """Rows put into an alias's store."""
    (source,) = [s for s in match.sources.query.sources if s.alias == alias]
    batch = to_batch(source.stream, [dict.fromkeys("kvdsf") | row for row in given])
    ids = match.sources.store(alias).append(batch)
    return Tuples((alias,), ids[np.newaxis], batch.ts, np.full(len(batch), FOREVER))


def signatures(kind: Kind, match: Match, tuples: Tuples, *, opposite: bool = False) -> list[int | None]:
    """A tuple's signature, None where a null leaves it without one."""
    hashes, valid = (kind.opposite_hashes if opposite else kind.own_hashes)(match.sources, tuples)
    good = np.ones(len(tuples), np.bool_) if valid is None else valid
    return [int(h) if g else None for h, g in zip(hashes, good, strict=True)]


def test_the_kinds_of_the_papers_example() -> None:
    """Fig. 5 and 7: A B C D meet E, each by a column of its own. There are 15 candidates besides the empty one."""
    declared = "abcde"
    text = ", ".join(f"{alias.lower()} {alias} [UNBOUNDED]" for alias in "ABCDE")
    where = "A.k = E.k AND B.v = E.v AND C.d = E.d AND D.s = E.s"
    match = Match(Sources(query(f"SELECT A.k FROM {text} WHERE {where}", streams=declared)), tuple("ABCD"), ("E",))
    ones = level_one(match, LEFT)
    assert [described(kind) for kind in ones] == ["A: k = k", "B: v = v", "C: d = d", "D: s = s"]
    unions = lattice(ones)
    names = ["".join(kind.aliases) for kind in unions]
    assert names == ["AB", "AC", "AD", "BC", "BD", "CD", "ABC", "ABD", "ACD", "BCD", "ABCD"]
    assert described(unions[8]) == "A C D: k d s = k d s"
    assert [described(kind) for kind in level_one(match, RIGHT)] == ["E: k v d s = k v d s"]


def test_aliases_without_a_predicate_of_their_own_are_no_kinds() -> None:
    """B is not read; C only together with A, which a kind over both is made of too."""
    match = match_of("A.k = D.k AND A.v + C.v = D.v AND B.k = A.k", "ABC", "D")
    (one,) = level_one(match, LEFT)
    assert described(one) == "A: k = k"
    assert Kind.of(match, LEFT, ["B"]) is None
    assert Kind.of(match, LEFT, ["C"]) is None
    both = Kind.of(match, LEFT, ["C", "A"])
    assert both is not None
    assert described(both) == "A C: k ? = k v"
    assert lattice([one]) == ()


def test_several_predicates_of_one_alias() -> None:
    """All equalities make up the signature."""
    (one,) = level_one(match_of("A.k = B.k AND B.v = A.v AND A.d = B.k", "A", "B"), LEFT)
    assert described(one) == "A: k v d = k v k"


def test_order_comparisons_are_seen_from_the_kinds_side() -> None:
    """Of one operand: one value stands for all of them."""
    match = match_of("A.k < B.k AND B.v >= A.k", "A", "B")
    (left,) = level_one(match, LEFT)
    assert (described(left), left.equal, left.ops) == ("A: k k < <= k v", False, ("<", "<="))
    assert level_one(match, RIGHT) == (), "two operands"
    match = match_of("A.k < B.k AND A.k <= B.k", "A", "B")
    (right,) = level_one(match, RIGHT)
    assert right.ops == (">", ">=")
    with pytest.raises(InvariantError, match="B > has no signatures on the opposite side"):
        right.opposite_hashes(match.sources, Tuples.empty(("A",)))


def test_order_comparisons_of_several_aliases_make_no_unions() -> None:
    """And an alias that has equalities leaves its order comparisons out: a union is of equalities alone."""
    match = match_of("A.k < C.k AND B.k < C.v", "AB", "C")
    assert lattice(level_one(match, LEFT)) == ()
    match = match_of("A.k = C.k AND A.v < C.v AND B.v > C.v", "AB", "C", hashed=False)
    ones = level_one(match, LEFT)
    assert [described(kind) for kind in ones] == ["A: k = k", "B: v > v"]
    assert lattice(ones) == (), "by A alone it would keep back what B's values decide"


def test_terms_of_nested_loops_belong_to_nodes() -> None:
    """Whole and real numbers apart; what no kind is made of belongs to none."""
    match = match_of("A.k = C.k AND A.v < C.v AND B.d < C.d AND B.k = C.k", "AB", "C", hashed=False)
    ints, floats = term_nodes(match, level_one(match, LEFT))
    assert [str(t.op) for t in match.condition.int_terms] == ["=", "<", "="]
    assert (ints.tolist(), floats.tolist()) == ([0, -1, 1], [-1])


def test_signatures_meet_across_types_and_sides() -> None:
    """1 meets 1.0, -0.0 meets 0, composite keys meet in order, moved columns meet after moving."""
    match = match_of("A.k = B.d AND A.s = B.s", "A", "B")
    (left,), (right,) = level_one(match, LEFT), level_one(match, RIGHT)
    a = stored(match, "A", rows("1 k=1 s=x | 2 k=0 s=x | 3 k=1 | 4 s=x"))
    b = stored(match, "B", rows("1 d=1 s=x | 2 d=-0.0 s=x | 3 d=1 s=y | 4 d=0.5 s=x | 5 s=x"))
    one, zero, *null = signatures(left, match, a)
    assert null == [None, None]
    assert signatures(left, match, b, opposite=True)[:2] == [one, zero]
    assert len({one, zero, *signatures(left, match, b, opposite=True)}) == 5
    assert signatures(right, match, b) == signatures(left, match, b, opposite=True)
    assert signatures(right, match, a, opposite=True) == signatures(left, match, a)
    match = match_of("A.k - B.v = 2", "A", "B")
    (moved,) = level_one(match, LEFT)
    a, b = stored(match, "A", rows("1 k=7")), stored(match, "B", rows("1 v=5 | 2 v=7"))
    assert [s == signatures(moved, match, a)[0] for s in signatures(moved, match, b, opposite=True)] == [True, False]


def test_no_nulls_no_mask() -> None:
    """And no tuples, no signatures."""
    match = match_of("A.k = B.k", "A", "B")
    (kind,) = level_one(match, LEFT)
    assert kind.own_hashes(match.sources, stored(match, "A", rows("1 k=1")))[1] is None
    assert signatures(kind, match, Tuples.empty(("A",))) == []


@PROPERTY
@given(
    st.sampled_from(["A.k = C.k", "A.k = C.d", "A.d = C.v", "A.s = C.s", "A.d = C.d AND A.k = C.k", "A.k + 1 = C.v"]),
    st.lists(st.fixed_dictionaries({name: VALUES[name] for name in "kvds"}), min_size=1, max_size=4),
    st.lists(st.fixed_dictionaries({name: VALUES[name] for name in "kvds"}), min_size=1, max_size=4),
)
def test_signatures_are_equal_where_the_join_finds_a_pair(
    condition: str, left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    """Tuples over A B and C; what the join of the two finds is what the signatures of kind A say."""
    match = match_of(f"{condition} AND B.k = A.k", "AB", "C")
    (kind,) = level_one(match, LEFT)
    a, c = (stored(match, alias, [{"ts": 0, **r} for r in part]) for alias, part in (("A", left), ("C", right)))
    wide = Tuples(("B", "A"), np.array([a.rows[0], a.rows[0]]), a.ts, a.expiry)
    own, opposite = signatures(kind, match, wide), signatures(kind, match, c, opposite=True)
    state = match.new_state(RIGHT)
    match.enter(state, match.prepare(RIGHT, c), 0)
    ab = Tuples(("A", "B"), np.array([a.rows[0], a.rows[0]]), a.ts, a.expiry)
    found = match.find(LEFT, match.prepare(LEFT, ab), state, strict=False)
    pairs = {(int(x), int(y)) for x, y in found.rows[[0, 2]].T}
    assert pairs <= {
        (i, j) for i, x in enumerate(own) for j, y in enumerate(opposite) if x is not None and x == y
    }, "the original predicate may refuse more than the moved one"
    if "+" not in condition:
        assert len(pairs) == sum(x is not None and x == y for x in own for y in opposite)
