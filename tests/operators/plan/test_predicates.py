"""Where predicates act and in which form; a rearranged form accepts all that the original accepts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from operators.plan.predicates import JoinCondition, Term, constants, join_condition, selections
from schemas.columns import Column
from schemas.expression_text import text_of
from schemas.query import ColumnRef, Type
from tests import oracle
from tests.operators.tiny import inputs, query, run, where

LEAST, MOST = -(2**63), 2**63 - 1
EDGES = [LEAST, LEAST + 1, LEAST + 5, -6, -5, -1, 0, 1, 4, 5, 6, MOST - 5, MOST - 1, MOST]


def side(term: Term, number: int) -> str:
    operand = term.operand(number)
    addend = f"{operand.addend:+}" if operand.addend else ""
    return f"{'-' if operand.sign < 0 else ''}{text_of(operand.expr)}{addend}"


def shown(condition: JoinCondition) -> list[str]:
    out = [f"key {side(t, 0)} = {side(t, 1)}" for t in condition.keys]
    out += [f"int {side(t, 0)} {t.op} {side(t, 1)}" for t in condition.int_terms]
    out += [f"real {side(t, 0)} {t.op} {side(t, 1)}" for t in condition.float_terms]
    return out + [f"check {text_of(p)}" for p in condition.residual]


def placed(condition: str, left: str = "A", right: str = "B") -> list[str]:
    """The forms of a condition over a A, b B, c C at the join of `left` and `right`."""
    bound = query(f"SELECT A.k FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1] WHERE {condition}")
    return shown(join_condition(bound.predicates, tuple(left), tuple(right)))


@pytest.mark.parametrize(
    ("condition", "forms"),
    [
        ("A.k = B.k", ["key A.k = B.k"]),
        ("B.k = A.k", ["key A.k = B.k"]),
        ("A.f = B.f", ["key A.f = B.f"]),
        ("A.ts = B.k", ["key A.ts = B.k"]),
        ("A.s = B.s", ["key A.s = B.s", "check A.s = B.s"]),
        ("A.k = B.d", ["key A.k = B.d", "check A.k = B.d"]),
        ("A.d = B.d", ["key A.d = B.d", "check A.d = B.d"]),
        ("A.k + 1 = B.k * 2", ["key A.k + 1 = B.k * 2"]),
        ("A.k = B.k AND A.v = B.v", ["key A.k = B.k", "key A.v = B.v", "check A.k = B.k", "check A.v = B.v"]),
        ("A.k = B.k AND A.v < B.v", ["key A.k = B.k", "check A.v < B.v"]),
        ("A.k = B.k AND A.v <> B.v", ["key A.k = B.k", "check A.v <> B.v"]),
        ("A.v < B.v", ["int A.v < B.v"]),
        ("B.v < A.v", ["int A.v > B.v"]),
        ("B.v <= A.v", ["int A.v >= B.v"]),
        ("A.ts >= B.ts", ["int A.ts >= B.ts"]),
        ("A.d > B.d", ["real A.d > B.d"]),
        ("A.d > B.d AND A.v < B.v", ["int A.v < B.v", "real A.d > B.d"]),
        ("A.v < B.d", ["check A.v < B.d"]),
        ("A.s < B.s", ["check A.s < B.s"]),
        ("A.v <> B.v", ["check A.v <> B.v"]),
        ("A.v < B.v OR A.k = B.k", ["check A.v < B.v OR A.k = B.k"]),
        ("A.v - B.v < 5", ["int A.v <= B.v+4", "check A.v - B.v < 5"]),
        ("A.v - B.v > 5", ["int A.v >= B.v+6", "check A.v - B.v > 5"]),
        ("B.v - A.v < 5", ["int A.v >= B.v-4", "check B.v - A.v < 5"]),
        ("5 > A.v - B.v", ["int A.v <= B.v+4", "check 5 > A.v - B.v"]),
        ("A.v + B.v <= 3", ["int A.v <= -B.v+3", "check A.v + B.v <= 3"]),
        ("-A.v - B.v <= 3", ["int A.v >= -B.v-3", "check -A.v - B.v <= 3"]),
        ("A.v - B.v = 7", ["key A.v = B.v+7", "check A.v - B.v = 7"]),
        ("A.ts - B.ts < 5", ["int A.ts <= B.ts+4", "check A.ts - B.ts < 5"]),
        ("2 * A.v - A.v - B.v < 5", ["int A.v <= B.v+4", "check 2 * A.v - A.v - B.v < 5"]),
        ("2 * A.v < B.v + 5", ["int 2 * A.v < B.v + 5"]),
        ("2 * A.v - B.v < 5", ["check 2 * A.v - B.v < 5"]),
        ("A.v * B.v < 5", ["check A.v * B.v < 5"]),
        ("A.v + A.k - B.v < 5", ["check A.v + A.k - B.v < 5"]),
        ("A.d - B.d < 5", ["check A.d - B.d < 5"]),
        ("A.v - B.v < 5000000000000000000", ["check A.v - B.v < 5000000000000000000"]),
        ("A.v > 1", []),
        ("1 = 2", []),
        ("B.k = C.k", []),
    ],
)
def test_forms(condition: str, forms: list[str]) -> None:
    """Each predicate takes the cheapest form that keeps its meaning."""
    assert placed(condition) == forms


@pytest.mark.parametrize(
    ("condition", "forms"),
    [
        ("A.k = B.k", ["int A.k = B.k"]),
        ("B.k = A.ts", ["int A.ts = B.k"]),
        ("A.k = B.k AND A.v < B.v", ["int A.k = B.k", "int A.v < B.v"]),
        ("A.v - B.v = 7", ["int A.v = B.v+7", "check A.v - B.v = 7"]),
        ("A.f = B.f AND A.k = B.k", ["int A.k = B.k", "check A.f = B.f"]),
        ("A.s = B.s", ["check A.s = B.s"]),
        ("A.d = B.d", ["check A.d = B.d"]),
        ("A.k = B.d", ["check A.k = B.d"]),
    ],
)
def test_forms_without_hash_joins(condition: str, forms: list[str]) -> None:
    """There are no keys; predicates that the nested-loop kernel cannot compare are evaluated on the pairs."""
    bound = query(f"SELECT A.k FROM a A [ROWS 1], b B [ROWS 1] WHERE {condition}")
    assert shown(join_condition(bound.predicates, ("A",), ("B",), hashed=False)) == forms


def test_a_predicate_acts_at_the_lowest_join_that_covers_it() -> None:
    """It acts nowhere else, whichever side its columns are on."""
    both = "A.k = B.k AND A.v + B.v = C.v AND B.k = C.k"
    assert placed(both, "A", "B") == ["key A.k = B.k"]
    assert placed(both, "AB", "C") == [
        "key A.v + B.v = C.v",
        "key B.k = C.k",
        "check A.v + B.v = C.v",
        "check B.k = C.k",
    ]
    assert placed(both, "C", "BA")[0] == "key C.v = A.v + B.v"
    assert placed(both, "A", "BC") == ["key A.k = B.k", "check A.v + B.v = C.v"]


def test_selections_and_constants_are_not_joined() -> None:
    """A predicate over one alias is a selection of that alias; one over no alias is a constant."""
    condition = "A.k = 1 AND B.k = 2 AND 1 = 1 AND A.k = B.k"
    bound = query(f"SELECT A.k FROM a A [ROWS 1], b B [ROWS 1] WHERE {condition}")
    assert [text_of(p) for p in selections(bound, "A")] == ["A.k = 1"]
    assert [text_of(p) for p in selections(bound, "B")] == ["B.k = 2"]
    assert [text_of(p) for p in constants(bound)] == ["1 = 1"]


OPS = {
    "=": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", ["A.v + B.v", "A.v - B.v", "B.v - A.v", "-A.v - B.v"])
@pytest.mark.parametrize("constant", [-5, -1, 0, 1, 5])
def test_rearranged_forms_accept_whatever_the_original_accepts(op: str, shape: str, constant: int) -> None:
    """Over all pairs of int64's edges no pair is lost, and a needless one passes only at saturation.

    Regression: -v saturated before the constant was added. So v = -2**63 met the wrong partners, and `A.v + B.v < 0`
    lost the pair (2**63 - 1, -2**63).
    """
    predicate = where(f"{shape} {op} {constant}")
    condition = join_condition([predicate], ("A",), ("B",))
    (term,) = condition.keys + condition.int_terms
    assert condition.residual == (predicate,), "the original decides in the end"
    pairs = list(product(EDGES, EDGES))
    columns = {
        alias: Column(Type.BIGINT, np.array([pair[i] for pair in pairs], np.int64)) for i, alias in enumerate("AB")
    }

    def resolve(column: ColumnRef) -> Column:
        return columns[column.alias]

    left, right = (term.operand(i).values(resolve, len(pairs)).values for i in (0, 1))
    moved = OPS[term.op](left, right)
    for (a, b), let_through in zip(pairs, moved.tolist(), strict=True):
        bound = {alias: oracle.Tuple(0, {"v": v}, 0, 0, ()) for alias, v in (("A", a), ("B", b))}
        accepted = oracle.evaluate(predicate, bound) is True
        if accepted:
            assert let_through, f"lost A.v={a} B.v={b}"
        elif abs(a) < 2**61 and abs(b) < 2**61:
            assert not let_through, f"needless candidate A.v={a} B.v={b}"


def test_the_edge_pair_is_found_by_the_engine() -> None:
    """The engine finds the edge pair too."""
    pair = query("SELECT A.v, B.v FROM a A [RANGE 5 ms], b B [RANGE 5 ms] WHERE A.v + B.v < 0")
    got, _ = run(pair, inputs(a=f"1 v={MOST}", b=f"1 v={LEAST}"))
    assert len(got) == 1
