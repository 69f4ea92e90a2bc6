"""After a rehearsal, answers on demand load no kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from operators.distributed.feedback.rehearsal import rehearse
from operators.plan.plan import parse_plan
from services.process.warmup import signatures
from tests.chains import Chain
from tests.operators.distributed.test_distributed_feedback import query_of, tuples

times = list(range(1, 402, 2)) + list(range(402, 500))
rows = {name: tuples(at=times, x=[i % 200 for i in range(len(times))], k=[i % 200 for i in range(len(times))])
        for name in "ab"}
rows["c"] = tuples(at=[5, *range(402, 500)], x=[i % 99 for i in range(99)])
query = query_of([100, 100, 100], "A.k = B.k AND A.x = C.x")
former = Chain(query, parse_plan("((A C) B)", query), rows, 1)
former.finish()
if sys.argv[1:] == ["rehearsed"]:
    rehearse()
before = signatures()
chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, begins=401)
chain.former = 401
for _ in range(9):
    for task in chain.tasks:
        chain.turn(task, 30)
chain.decide()
while any(task.at[lane] < len(chain.topics.log(lane)) for task in chain.tasks for lane in task.at):
    for task in chain.tasks:
        chain.turn(task, 4)
chain.finish()
after = signatures()
print(*(name.rsplit(".", 1)[1] for name in after if set(after[name]) - set(before[name])))
"""


@pytest.mark.slow
def test_answers_on_demand_load_nothing_more() -> None:
    found = [
        subprocess.run([sys.executable, "-c", SCRIPT, *given], capture_output=True, text=True, check=True).stdout
        for given in ((), ("rehearsed",))
    ]
    assert {"enter_greatest", "holds_words", "drop_words", "live_mask"} <= set(found[0].split())
    assert set(found[1].split()) <= {"mix_words"}, "statistics have to do with it, not answers"
