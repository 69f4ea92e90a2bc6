"""P_output and P_inter per partition group, against every result traced by hand (state-spill 3.2)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.kernels.partition import groups_of
from operators.plan.plan import Join, Leaf, Plan, parse_plan
from operators.spill.productivity import HALF_LIFE, SAMPLED_RESULTS, Productivity
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.language.program import parse_program
from schemas.query import Query, Type

GROUPS = 16
ENTRY = 32
"""Bytes of an entry in addition to 8 for each row id."""


def query(select: str, **columns: str) -> Query:
    """A query over streams of whole numbers, each named with its columns."""
    declared = "".join(
        f"CREATE STREAM {name} (ts TIMESTAMP, {', '.join(f'{column} BIGINT' for column in names.split())}) "
        "WITH (timestamp = 'ts');\n"
        for name, names in columns.items()
    )
    return parse_program(declared + select).queries[0]


CHAIN = query(
    "SELECT A.x FROM A [UNBOUNDED], B [UNBOUNDED], C [UNBOUNDED], D [UNBOUNDED] "
    "WHERE A.x = B.x AND B.y = C.y AND C.z = D.z;",
    A="x",
    B="x y",
    C="y z",
    D="z",
)


class Traced:
    """A tree whose joins' results are counted by `Productivity`, and kept for counting them again by hand."""

    def __init__(self, query: Query, plan: str, groups: int = GROUPS, **options: Any) -> None:
        self.sources = Sources(query)
        self.tree = XJoinTree(self.sources, parse_plan(plan, query))
        self.joins: list[BinaryJoin] = [join for _, join in self.tree.joins]
        self.counts = Productivity.of_plan(self.sources, self.joins, groups, **options)
        self.made: list[list[Tuples]] = [[] for _ in self.joins]
        self._ts = 0

    def slice(self, **given: dict[str, list[int]]) -> None:
        """Rows per stream, column by column, all of one slice."""
        epoch: dict[str, Tuples] = {}
        for name, values in given.items():
            n = len(next(iter(values.values())))
            ts = np.arange(self._ts, self._ts + n)
            columns = {"ts": Column(Type.TIMESTAMP, ts)}
            columns |= {column: Column(Type.BIGINT, np.array(row, np.int64)) for column, row in values.items()}
            rows = self.sources.stores[name].append(Batch(ts, columns))
            epoch[name] = Tuples((name,), rows[np.newaxis], ts, self.sources.expiry(name, rows, ts))
        outputs: dict[int, Tuples] = {}

        def new(node: Plan) -> Tuples:
            if isinstance(node, Leaf):
                return epoch.get(node.alias) or Tuples.empty((node.alias,))
            return outputs[id(node)]

        for number, (node, join) in enumerate(self.tree.joins):
            assert isinstance(node, Join)
            found = outputs[id(node)] = join.process(new(node.left), new(node.right), self._ts)
            self.made[number].append(found)
            self.counts.note(number, found, final=number == len(self.joins) - 1)
        self._ts += 1_000

    def value(self, column: str, made: Tuples, at: int) -> int:
        """A column's value in one of the results, such as `B.y`."""
        alias, name = column.split(".")
        row = made.rows[made.aliases.index(alias), at : at + 1]
        return int(self.sources.store(alias).gather(name, row).values[0])

    def counted(self, join: int, column: str, groups: int = GROUPS) -> I64:
        """(groups,) how many of a join's results have a value of each group in a column."""
        found = Counter(
            group_of(self.value(column, made, at), groups) for made in self.made[join] for at in range(len(made))
        )
        return np.array([found[group] for group in range(groups)])


def group_of(value: int, groups: int = GROUPS) -> int:
    hashes, _ = key_hashes([Column(Type.BIGINT, np.array([value]))])
    return int(groups_of(hashes, groups)[0])


def random_rows(seed: int, n: int, *columns: str, values: int = 30) -> dict[str, list[int]]:
    rng = np.random.default_rng((seed, len(columns), n, ord(columns[0])))
    return {column: rng.integers(values, size=n).tolist() for column in columns}


def chain_slice(seed: int, n: int = 18) -> dict[str, dict[str, list[int]]]:
    return {
        "A": random_rows(seed, n, "x"),
        "B": random_rows(seed + 1, n, "x", "y"),
        "C": random_rows(seed + 2, n, "y", "z"),
        "D": random_rows(seed + 3, n, "z"),
    }


def test_final_results_are_traced_to_the_groups_of_every_join() -> None:
    """Fig. 9, Algorithm 1: the split functions of all joins, applied to the results of the last."""
    traced = Traced(CHAIN, "(((A B) C) D)")
    for seed in range(3):
        traced.slice(**chain_slice(seed))
    assert traced.counts.output.sum() == 3 * sum(map(len, traced.made[2])) > 0
    for join, column in enumerate(("A.x", "C.y", "D.z")):
        assert traced.counts.output[join].tolist() == traced.counted(2, column).tolist()


def test_local_output_is_of_the_join_itself() -> None:
    """Fig. 8."""
    traced = Traced(CHAIN, "(((A B) C) D)")
    for seed in range(3):
        traced.slice(**chain_slice(seed))
    for join, column in enumerate(("B.x", "B.y", "C.z")):
        assert traced.counts.local[join].tolist() == traced.counted(join, column).tolist()


def test_intermediate_results_are_traced_to_their_own_join_and_those_below() -> None:
    """Fig. 11: a join's results are stored above, whichever groups they came from; final results are stored nowhere."""
    traced = Traced(CHAIN, "(((A B) C) D)")
    for seed in range(3):
        traced.slice(**chain_slice(seed))
    two, three = 2 * 8 + ENTRY, 3 * 8 + ENTRY
    expected = [two * traced.counted(0, "B.x") + three * traced.counted(1, "B.x"), three * traced.counted(1, "B.y")]
    assert traced.counts.inter[:2].tolist() == [counts.tolist() for counts in expected]
    assert traced.counts.inter[2].sum() == 0


def test_all_results_of_one_tuple() -> None:
    """Fig. 11 in numbers: one tuple of A makes 2 results, they make 4, and 2 in the end; another makes nothing."""
    traced = Traced(CHAIN, "(((A B) C) D)", groups=1 << 16)
    traced.slice(B={"x": [1, 1], "y": [10, 11]}, C={"y": [10, 10, 11, 11], "z": [20, 21, 20, 22]}, D={"z": [20]})
    traced.slice(A={"x": [1, 2]})
    one, other = group_of(1, 1 << 16), group_of(2, 1 << 16)
    counts = traced.counts
    assert [len(made[1]) for made in traced.made] == [2, 4, 2]
    assert counts.local[0, one] == 2
    assert counts.output[0, one] == 2
    assert counts.inter[0, one] == 2 * (2 * 8 + ENTRY) + 4 * (3 * 8 + ENTRY)
    assert counts.output[2, group_of(20, 1 << 16)] == 2
    assert counts.output[2, group_of(21, 1 << 16)] == 0
    assert counts.local[0, other] == counts.output[0, other] == counts.inter[0, other] == 0


def test_a_bushy_plan_has_branches_that_know_nothing_of_each_other() -> None:
    traced = Traced(CHAIN, "((A B) (C D))")
    for seed in range(3):
        traced.slice(**chain_slice(seed))
    two = 2 * 8 + ENTRY
    assert traced.counts.inter.tolist() == [
        (two * traced.counted(0, "A.x")).tolist(),
        (two * traced.counted(1, "C.z")).tolist(),
        [0] * GROUPS,
    ]
    for join, column in enumerate(("A.x", "D.z", "B.y")):
        assert traced.counts.output[join].tolist() == traced.counted(2, column).tolist()


def test_a_key_of_several_columns_and_a_join_without_one() -> None:
    two = query(
        "SELECT A.x FROM A [UNBOUNDED], B [UNBOUNDED], C [UNBOUNDED] WHERE A.x = B.x AND A.y = B.y AND B.x < C.x;",
        A="x y",
        B="x y",
        C="x",
    )
    traced = Traced(two, "((A B) C)")
    traced.slice(A={"x": [1, 1, 2], "y": [1, 2, 2]}, B={"x": [1, 1, 2], "y": [1, 2, 2]}, C={"x": [2, 3]})
    assert traced.counts.output[1].tolist() == [5] + [0] * (GROUPS - 1)
    keys = [Column(Type.BIGINT, np.array([1, 1, 2])), Column(Type.BIGINT, np.array([1, 2, 2]))]
    expected = np.bincount(groups_of(key_hashes(keys)[0], GROUPS), [2, 2, 1], minlength=GROUPS)
    assert traced.counts.output[0].tolist() == expected.tolist()


def test_many_results_are_sampled_without_bias() -> None:
    """Two joined streams; each slice makes 16 times more results than are traced, of values in a pattern over time that
    a fixed stride would meet at the same position each time."""
    pair = query("SELECT A.x FROM A [UNBOUNDED], B [UNBOUNDED] WHERE A.x = B.x;", A="x", B="x")
    traced = Traced(pair, "(A B)", groups=1 << 12)
    values = 8
    assert len({group_of(value, 1 << 12) for value in range(values)}) == values
    made = 16 * SAMPLED_RESULTS
    traced.slice(B={"x": list(range(values))})
    slices = 40
    for _ in range(slices):
        traced.slice(A={"x": (np.arange(made) % values).tolist()})
    assert traced.counts.output.sum() == pytest.approx(slices * made)
    for value in range(values):
        share = traced.counts.output[0, group_of(value, 1 << 12)] / (slices * made)
        assert share == pytest.approx(1 / values, rel=0.1)


def test_no_position_in_a_slice_is_left_out_or_preferred() -> None:
    """Each slice makes twice as many results as are traced, and one of a certain group, always at the same position."""
    pair = query("SELECT A.x FROM A [UNBOUNDED], B [UNBOUNDED] WHERE A.x = B.x;", A="x", B="x")
    slices, made = 40, 2 * SAMPLED_RESULTS
    for position in (0, 1_000, made - 1):
        traced = Traced(pair, "(A B)", groups=1 << 12)
        traced.slice(B={"x": [1, 2]})
        values = np.ones(made, np.int64)
        values[position] = 2
        for _ in range(slices):
            traced.slice(A={"x": values.tolist()})
        assert traced.counts.output[0, group_of(2, 1 << 12)] == pytest.approx(slices, rel=0.15)


def test_counts_of_a_spilled_group_restart() -> None:
    """Totals with fade 0: only the counts of the spilled groups restart."""
    traced = Traced(CHAIN, "(((A B) C) D)", fade=0.0)
    traced.slice(**chain_slice(5))
    before = traced.counts.output.copy()
    filled = np.flatnonzero(before[1])[:2]
    traced.counts.spilled(np.array([1, 1]), filled, 0.3)
    assert traced.counts.output[1, filled].tolist() == [0, 0]
    assert traced.counts.local[1, filled].tolist() == traced.counts.inter[1, filled].tolist() == [0, 0]
    kept = np.ones((3, GROUPS), bool)
    kept[1, filled] = False
    assert traced.counts.output[kept].tolist() == before[kept].tolist()


def test_counts_fade_alike_however_the_spills_are_cut() -> None:
    counts = []
    for shares in ((0.36,), (0.2, 0.2), (0.1, 0.1, 1 - 0.64 / 0.81)):
        traced = Traced(CHAIN, "(((A B) C) D)")
        traced.slice(**chain_slice(5))
        none = np.zeros(0, np.int64)
        for share in shares:
            traced.counts.spilled(none, none, share)
        counts.append(traced.counts)
    totals = Traced(CHAIN, "(((A B) C) D)")
    totals.slice(**chain_slice(5))
    for found in counts:
        assert found.output == pytest.approx(totals.counts.output * 0.64**2)
        assert found.inter == pytest.approx(totals.counts.inter * 0.64**2)
    with pytest.raises(InvariantError, match=r"spilled 1\.5"):
        totals.counts.spilled(none, none, 1.5)


def test_counts_halve_while_a_half_life_of_tuples_arrives() -> None:
    lasting, fading = (Traced(CHAIN, "(((A B) C) D)") for _ in range(2))
    for traced in (lasting, fading):
        traced.slice(**chain_slice(7))
    for part in (0.4, 0.6, 1.0):
        fading.counts.age(part * HALF_LIFE)
    for name in ("local", "output", "inter"):
        assert getattr(fading.counts, name) == pytest.approx(getattr(lasting.counts, name) / 4)
