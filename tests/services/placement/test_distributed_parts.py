"""The tasks of a plan taken apart: who reads what, what is refused, where a plan that takes over begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operators.distributed.decompose import decompose
from operators.distributed.operator import DistributedOperator
from operators.distributed.rows_windows import counted_windows
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.errors import StateError
from schemas.language.program import parse_program
from schemas.messages.commits import UNSEEN, Commit, Floor, StreamPoint
from schemas.query import Query
from services.placement.distributed import DistributedLayout, part_fingerprint
from services.process.security import KafkaClients
from services.process.settings import Guarantee, Placement, WorkerSettings
from services.recovery.starting_point import Committed, plan_handover
from services.worker.worker import Worker

TEXT = """
CREATE STREAM a (k BIGINT, x BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
CREATE STREAM b (k BIGINT, x BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
CREATE STREAM c (k BIGINT, x BIGINT, at TIMESTAMP) WITH (topic = 'tc', timestamp = 'at' MORE);
INSERT INTO 'out' SELECT A.k AS k, C.x AS x
FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND], c C [RANGE 1 SECOND] WHERE A.k = B.k AND B.x OP C.x
"""
COUNTS = {"ta": 2, "tb": 3, "tc": 1}
SETTINGS = WorkerSettings(KafkaClients("localhost:9092"), "g")


def query(op: str = "=", more: str = "") -> Query:
    return parse_program(TEXT.replace("OP", op).replace(" MORE", more)).queries[0]


def operators(bound: Query, split: int | None = None, plan: str = "((A B) C)") -> tuple[DistributedOperator, ...]:
    return decompose(bound, parse_plan(plan, bound), COUNTS, split, "g.")


@pytest.mark.parametrize("op", ["=", "<"])
@pytest.mark.parametrize("split", [1, 3])
def test_every_partition_is_read_by_one_task(op: str, split: int) -> None:
    """Of sources and internal topics alike; the first tasks are those that write results."""
    layout = DistributedLayout(operators(query(op), split), COUNTS)
    read = [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
    assert sorted(read) == sorted((topic, p) for topic, count in layout.partitions.items() for p in range(count))
    assert all(layout.task_of(*lane) == task for task in range(layout.tasks) for lane in layout.lanes(task))
    assert [not layout.part(task).operator.outputs for task in range(layout.tasks)] == [
        task < layout.sinks for task in range(layout.tasks)
    ]
    assert layout.sinks == (split if op == "=" else 1)
    assert layout.task_of("ta", 2) is None, "added later"
    assert set(layout.partitions) - set(layout.internal) == set(COUNTS)


def test_another_split_or_plan_is_another_operator() -> None:
    bound = query()
    plan, other = parse_plan("((A B) C)", bound), parse_plan("((B A) C)", bound)
    prints = {
        part_fingerprint(bound, p, operator)
        for p, split in ((plan, 1), (plan, 2), (other, 1))
        for operator in operators(bound, split, str(p))
    }
    assert len(prints) == 2 + 5 + 2
    assert len({DistributedLayout(operators(bound, n), COUNTS).name for n in (1, 2)}) == 2


@pytest.mark.parametrize(
    ("more", "rows", "guarantee"),
    [
        ({}, False, Guarantee.AT_LEAST_ONCE),
        ({"jit": True}, False, Guarantee.EXACTLY_ONCE),
        ({"budget": MemoryBudget(1 << 20, "bottom-up")}, False, Guarantee.EXACTLY_ONCE),
        ({}, True, Guarantee.EXACTLY_ONCE),
    ],
)
def test_what_tasks_tell_each_other_is_recorded_in_transactions(
    more: dict[str, Any], rows: bool, guarantee: Guarantee
) -> None:
    """Also with --guarantee at-least-once, which then gives more than it promises."""
    settings = replace(SETTINGS, placement=Placement.PER_OPERATOR, guarantee=Guarantee.AT_LEAST_ONCE, **more)
    text = TEXT.replace("OP", "=").replace(" MORE", "")
    (bound,) = parse_program(text.replace("c C [RANGE 1 SECOND]", "c C [ROWS 5]") if rows else text).queries
    assert bool(counted_windows(bound)) == rows
    assert Worker(bound, settings)._settings.guarantee is guarantee


def test_a_plan_takes_over_where_windows_begin() -> None:
    """Sources from the old plan's replay points, with their refusals; internal topics from their beginning."""
    point = StreamPoint(40, 900, (Floor(45, 950),))
    former = {("ta", 0): Committed(70, Commit("f", 9, 1000, 0, 1, (point,)))}
    streams = {("ta", 0): 1, ("g.v1.1.B-C", 0): 2}
    log = {("ta", 0): (10, 90), ("g.v1.1.B-C", 0): (0, 5)}
    found = plan_handover(streams=streams, former=former, version=1, log=log)
    assert (found.source, found.cut, found.plan_version, found.records) == ("handover", 0, 1, 30)
    assert found.lanes["ta", 0].points == (point,)
    assert (found.lanes["ta", 0].offset, found.lanes["ta", 0].replay_end) == (40, 70)
    fresh = found.lanes["g.v1.1.B-C", 0]
    assert (fresh.offset, fresh.replay_end, [p.max_ts for p in fresh.points]) == (0, 0, [UNSEEN, UNSEEN])
    short = {**log, ("ta", 0): (41, 90)}
    with pytest.raises(StateError, match=r"records 40 to 40 of ta\[0\], needed to rebuild its window, are gone"):
        plan_handover(streams=streams, former=former, version=1, log=short)
    notes = plan_handover(streams=streams, former=former, version=1, log=short, accept_loss=True).notes
    assert len(notes) == 1
