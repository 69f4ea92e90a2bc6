"""The JIT paper's own examples (Table I, Fig. 5), and one that its algorithm would get wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from operators.data.statistics import EdgeStatistics
from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type
from tests.operators.feedback.test_feedback_properties import watching


def query(select: str, **columns: str) -> Query:
    """A query over streams of whole numbers, each named with its columns."""
    declared = "".join(
        f"CREATE STREAM {name} (ts TIMESTAMP, {', '.join(f'{column} BIGINT' for column in names.split())}) "
        "WITH (timestamp = 'ts');\n"
        for name, names in columns.items()
    )
    return parse_program(declared + select).queries[0]


@pytest.fixture(autouse=True)
def _never_resting() -> Iterator[None]:
    with watching(0.0, 2, 1e15):
        yield


class PaperExample:
    """An engine with feedback that gets one tuple after the other."""

    def __init__(self, bound: Query, plan: str, tables: dict[str, Batch] | None = None) -> None:
        self.engine = Engine(bound, plan=parse_plan(plan, bound), tables=tables, feedback=True)
        self.now = 0

    def give(self, **tuples: dict[str, int]) -> list[tuple[int, ...]]:
        """One tuple for each of some streams at the next instant; the results."""
        self.now += 1
        for name, row in tuples.items():
            ts = np.array([self.now])
            columns = {field: Column(Type.BIGINT, np.array([value])) for field, value in row.items()}
            self.engine.push(name, 0, Batch(ts, {"ts": Column(Type.TIMESTAMP, ts), **columns}))
        found = self.engine.advance(self.now + 1)
        return sorted(zip(*(column.to_values() for column in found.columns.values()), strict=True))

    def edge(self, producer: str) -> EdgeStatistics:
        """What has been said to a producer."""
        (found,) = (edge for edge in self.engine.statistics().feedback if edge.producer == producer)
        return found


def test_table_one() -> None:
    """Fig. 1: a1 and a2 have no partner in C, so neither meets any B until c1 comes."""
    bound = query(
        "SELECT A.n AS a, B.n AS b FROM a A, b B, c C WINDOW RANGE 1 MINUTE WHERE A.x = B.x AND A.y = C.y",
        a="n x y",
        b="n x",
        c="y",
    )
    example = PaperExample(bound, "((A B) C)")
    example.give(c={"y": 7})
    for n in (1, 2, 3):
        example.give(b={"n": n, "x": 1})
    assert example.give(a={"n": 1, "x": 1, "y": 100}) == []
    assert (example.edge("(A B)").suspend - example.edge("(A B)").resume, example.edge("(A B)").kept_back) == (1, 1)
    example.give(b={"n": 4, "x": 1})
    example.give(a={"n": 2, "x": 1, "y": 100})  # similar to a1: caught when it arrives, no message
    assert (example.edge("(A B)").suspend - example.edge("(A B)").resume, example.edge("(A B)").kept_back) == (1, 2)
    assert example.edge("(A B)").demanded == 0, "no a1b1 .. a2b4"
    assert example.give(c={"y": 100}) == [(a, b) for a in (1, 2) for b in (1, 2, 3, 4)]
    edge = example.edge("(A B)")
    assert (edge.suspend - edge.resume, edge.kept_back, edge.demanded, edge.late) == (0, 0, 8, 8)
    assert example.give(b={"n": 5, "x": 1}) == [(1, 5), (2, 5)]


def test_an_empty_input_suspends_everything() -> None:
    """The empty sub-tuple: demand-driven operator execution."""
    bound = query(
        "SELECT A.n AS a, B.n AS b FROM a A, b B, c C WINDOW RANGE 1 MINUTE WHERE A.x = B.x AND A.y = C.y",
        a="n x y",
        b="n x",
        c="y",
    )
    example = PaperExample(bound, "((A B) C)")
    example.give(a={"n": 1, "x": 1, "y": 1}, b={"n": 1, "x": 1})
    example.give(a={"n": 2, "x": 1, "y": 2}, b={"n": 2, "x": 1})
    assert (example.edge("(A B)").kept_back, example.edge("(A B)").demanded) == (4, 0)
    assert example.give(c={"y": 1}) == [(1, 1), (1, 2)]
    assert example.edge("(A B)").kept_back == 1, "a2 has no partner still"


FIVE = query(
    "SELECT A.n AS a, B.n AS b, C.n AS c, D.n AS d, E.n AS e FROM a A, b B, c C, d D, e E WINDOW RANGE 1 MINUTE "
    "WHERE A.k = B.k AND C.k = D.k AND A.k = C.k AND A.x = E.x AND B.y = E.y AND C.z = E.z AND D.w = E.w",
    a="n k x",
    b="n k y",
    c="n k z",
    d="n k w",
    e="n x y z w",
)


def test_figure_five() -> None:
    """Op4 finds no E for a1 and c1: the feedback goes through Op3 to Op1 and Op2, and so does what takes it back."""
    example = PaperExample(FIVE, "(((A B) (C D)) E)")
    example.give(e={"n": 0, "x": 9, "y": 1, "z": 9, "w": 1})
    example.give(b={"n": 1, "k": 1, "y": 1})
    example.give(c={"n": 1, "k": 1, "z": 1}, d={"n": 1, "k": 1, "w": 1})
    assert example.give(a={"n": 1, "k": 1, "x": 1}) == []
    made = [operator.results for operator in example.engine.statistics().operators]
    assert made == [0, 0, 0, 0], "neither a1b1 nor c1d1 nor a1b1c1d1"
    assert example.give(e={"n": 1, "x": 1, "y": 1, "z": 1, "w": 1}) == [(1, 1, 1, 1, 1)]
    made = [operator.results for operator in example.engine.statistics().operators]
    assert made == [1, 1, 1, 1]


def test_two_joins_do_not_wait_for_each_other() -> None:
    """In the paper a1 is suspended since no C D fits it, d1 since no A B does; b1 and c1 then make neither."""
    bound = query(
        "SELECT A.n AS a, B.n AS b, C.n AS c, D.n AS d FROM a A, b B, c C, d D WINDOW RANGE 1 MINUTE "
        "WHERE A.k = B.k AND C.k = D.k AND A.x = C.x AND B.y = D.y",
        a="n k x",
        b="n k y",
        c="n k x",
        d="n k y",
    )
    example = PaperExample(bound, "((A B) (C D))")
    example.give(a={"n": 0, "k": 0, "x": 0}, b={"n": 0, "k": 0, "y": 0})
    example.give(c={"n": 0, "k": 0, "x": 5}, d={"n": 0, "k": 0, "y": 5})
    example.give(a={"n": 1, "k": 1, "x": 1})
    example.give(d={"n": 1, "k": 1, "y": 1})
    example.give(c={"n": 1, "k": 1, "x": 1})
    assert example.give(b={"n": 1, "k": 1, "y": 1}) == [(1, 1, 1, 1)]


def test_a_pair_that_is_kept_back_is_forgotten_with_its_parts() -> None:
    """a1 b1 is kept back, then a1 loses its partner and is too: what brings both back brings the pair once."""
    bound = query(
        "SELECT A.n AS a, B.n AS b, C.n AS c FROM a A [RANGE 1 MINUTE], b B [RANGE 1 MINUTE], "
        "c C [RANGE 3 MILLISECONDS] WHERE A.k = B.k AND A.x = C.x AND B.y = C.y",
        a="n k x",
        b="n k y",
        c="n x y",
    )
    with watching(1e9, 2, 1e15):
        example = PaperExample(bound, "((A B) C)")
        example.give(c={"n": 1, "x": 1, "y": 9})
        example.give(c={"n": 2, "x": 9, "y": 1})
        example.give(a={"n": 1, "k": 1, "x": 1}, b={"n": 1, "k": 1, "y": 1})
        assert (example.edge("(A B)").mark, example.edge("(A B)").kept_back) == (1, 1)
        for n in (3, 4, 5):
            example.give(c={"n": n, "x": 9, "y": 1})
        assert example.edge("(A B)").kept_back == 1, "a1, no longer the pair"
        assert example.give(c={"n": 6, "x": 1, "y": 1}) == [(1, 1, 6)]


def test_what_comes_back_for_two_consumers_goes_as_far_as_the_upper_one() -> None:
    """In one slice a1 comes back for D, and a2 b2, which C has lacked, for C: a1 b1 must meet the C that is there."""
    bound = query(
        "SELECT A.n AS a, B.n AS b, C.n AS c, D.n AS d FROM a A, b B, c C, d D WINDOW RANGE 1 MINUTE "
        "WHERE A.k = B.k AND A.x = C.x AND B.y = C.y AND A.w = D.w",
        a="n k x w",
        b="n k y",
        c="n x y",
        d="n w",
    )
    example = PaperExample(bound, "(((A B) C) D)")
    example.give(c={"n": 1, "x": 1, "y": 1}, d={"n": 0, "w": 99})
    example.give(c={"n": 5, "x": 2, "y": 7})
    example.give(c={"n": 6, "x": 8, "y": 2})
    example.give(b={"n": 1, "k": 1, "y": 1})
    example.give(b={"n": 2, "k": 2, "y": 2}, a={"n": 2, "k": 2, "x": 2, "w": 99})
    example.give(a={"n": 1, "k": 1, "x": 1, "w": 5})
    assert (example.edge("(A B)").kept_back, example.edge("((A B) C)").kept_back) == (1, 1)
    assert example.give(c={"n": 2, "x": 2, "y": 2}, d={"n": 1, "w": 5}) == [(1, 1, 1, 1), (2, 2, 2, 0)]


def test_a_plan_that_is_to_change_keeps_nothing_back() -> None:
    """Settling does not sweep."""
    bound = query(
        "SELECT A.n AS a, B.n AS b FROM a A, b B, c C WINDOW RANGE 1 MINUTE WHERE A.x = B.x AND A.y = C.y",
        a="n x y",
        b="n x",
        c="y",
    )
    with watching(1e9, 2, 1e15):
        example = PaperExample(bound, "((A B) C)")
        example.give(c={"y": 7}, b={"n": 1, "x": 1})
        example.give(a={"n": 1, "x": 1, "y": 100})
        assert example.edge("(A B)").kept_back == 1
        example.engine.migrate(parse_plan("(C (A B))", bound), "moving-state", example.now + 1)
        example.give(b={"n": 2, "x": 1})
        assert example.give(c={"y": 100}) == [(1, 1), (1, 2)]


def test_a_table_from_which_a_row_is_taken_out_is_not_static() -> None:
    """No D wants t1, so the table's state lacks it; b1 c1, which only t1 matches, must not be forgotten for that."""
    bound = parse_program(
        "CREATE TABLE t (n BIGINT, k BIGINT, w BIGINT) WITH (path = 't.csv');\n"
        "CREATE STREAM b (ts TIMESTAMP, n BIGINT, k BIGINT) WITH (timestamp = 'ts');\n"
        "CREATE STREAM c (ts TIMESTAMP, k BIGINT) WITH (timestamp = 'ts');\n"
        "CREATE STREAM d (ts TIMESTAMP, w BIGINT) WITH (timestamp = 'ts');\n"
        "SELECT T.n AS t, B.n AS b FROM t T, b B [RANGE 1 MINUTE], c C [RANGE 1 MINUTE], d D [RANGE 1 MINUTE] "
        "WHERE T.k = B.k AND B.k = C.k AND T.w = D.w"
    ).queries[0]
    given = {"n": [1, 2], "k": [1, 2], "w": [5, 9]}
    rows = {name: Column(Type.BIGINT, np.array(values)) for name, values in given.items()}
    with watching(1e9, 2, 1e15):
        example = PaperExample(bound, "((T (B C)) D)", {"t": Batch(np.array([0, 0]), rows)})
        example.give(d={"w": 9})
        assert example.edge("(T (B C))").kept_back == 1, "t1"
        example.give(d={"w": 9})
        example.give(b={"n": 1, "k": 1}, c={"k": 1})
        assert example.give(d={"w": 5}) == [(1, 1)]
