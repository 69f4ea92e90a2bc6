"""The parts of a plan add up to what the fused engine says of the same input."""

from __future__ import annotations

import pytest

from operators.distributed.query_statistics import as_query_statistics
from operators.engine.engine import Engine
from operators.explain.analyze import Analysis, Observation, analyses
from operators.plan.choose import declared_statistics
from operators.plan.plan import parse_plan
from tests.chains import Chain
from tests.feeding import to_batch
from tests.operators.tiny import query

BOUND = query(
    "SELECT A.k FROM a A [RANGE 100 ms], b B [RANGE 100 ms], c C [RANGE 100 ms] "
    "WHERE A.k = B.k AND B.v = C.v AND A.v > 0"
)
PLAN = parse_plan("((A B) C)", BOUND)
ROWS = [{"ts": t, "k": t % 5, "v": t % 2, "d": 0.0, "s": "", "f": None} for t in range(400)]


def fused() -> Analysis:
    engine = Engine(BOUND, plan=PLAN)
    for stream in BOUND.streams():
        engine.push(stream.name, 0, to_batch(stream, ROWS))
    engine.advance(400)
    (found,) = analyses(BOUND, [Observation(0, engine.statistics())], declared_statistics(BOUND))
    return found


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT A.k, COUNT(*) AS n FROM a A [RANGE 100 ms], b B [RANGE 100 ms] WHERE A.k = B.k GROUP BY A.k "
        "EMIT EVERY 20 ms",
        "SELECT A.k FROM a A [RANGE 100 ms] EXCEPT b B [RANGE 10 ms] ON A.k = B.k AND A.v = B.v AND B.k > 2",
    ],
    ids=["aggregates", "difference"],
)
def test_parts_of_changing_answers_add_up(text: str, split: int) -> None:
    """Results, inputs, and what each operator did."""
    bound, plan = query(text), parse_plan("(A B)", query(text))
    rows = {"a": ROWS, "b": [row for row in ROWS if row["ts"] % 3]}
    engine = Engine(bound, plan=plan)
    for stream in bound.streams():
        engine.push(stream.name, 0, to_batch(stream, rows[stream.name]))
    engine.advance(400)
    (wanted,) = analyses(bound, [Observation(0, engine.statistics())], declared_statistics(bound))
    chain = Chain(bound, plan, {name: [part] for name, part in rows.items()}, split, end=400)
    chain.finish()
    parts = [
        Observation(number, as_query_statistics(task.engine.statistics(), task.operator, bound, plan))
        for number, task in enumerate(chain.tasks)
    ]
    (found,) = analyses(bound, parts, declared_statistics(bound))
    assert sum(part.latest.results for part in parts) == engine.statistics().results > 0
    (mine,), (other,) = found.operators, wanted.operators
    assert (mine.total.name, mine.total.kind, mine.total.results) == ("(A B)", other.total.kind, other.total.results)
    for source, known in zip(found.sources, wanted.sources, strict=True):
        assert (source.alias, source.input_tuples) == (known.alias, known.input_tuples)


@pytest.mark.parametrize("split", [1, 2])
def test_parts_add_up(split: int) -> None:
    """Results, inputs, states and what lives, per join and source; selectivity too, where keys do not divide it."""
    chain = Chain(BOUND, PLAN, {name: [list(ROWS)] for name in "abc"}, split, end=400)
    chain.finish()
    parts = [
        Observation(number, as_query_statistics(task.engine.statistics(), task.operator, BOUND, PLAN))
        for number, task in enumerate(chain.tasks)
    ]
    (found,) = analyses(BOUND, parts, declared_statistics(BOUND))
    wanted = fused()
    assert [f.total.name for f in found.operators] == ["(A B)", "((A B) C)"]
    for mine, other in zip(found.operators, wanted.operators, strict=True):
        assert (mine.total.results, mine.total.inputs) == (other.total.results, other.total.inputs)
        assert (mine.total.aliases, mine.total.kind) == (other.total.aliases, other.total.kind)
        assert mine.total.state_tuples[1] == other.total.state_tuples[1]
        if split == 1:
            # What lives of intermediate results is bounded by their window where they come from elsewhere.
            assert mine.selectivity == pytest.approx(other.selectivity, rel=1e-9 if mine.total.name == "(A B)" else 0.5)
    for source, known in zip(found.sources, wanted.sources, strict=True):
        assert (source.alias, source.input_tuples, source.living_tuples) == (
            known.alias, known.input_tuples, known.living_tuples,
        )  # fmt: skip
    assert sum(part.latest.results for part in parts) == sum(o.latest.results for o in wanted.observations)
    assert found.lines()[:3] == wanted.lines()[:3]
