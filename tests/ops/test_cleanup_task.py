"""What executors do of a cleanup, without a Spark: groups in any partition."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.spill.payment import Payer
from operators.spill.spilling import Budget
from ops.spark.cleanup import rows_of
from ops.spark.cleanup_task import Paying, Row
from schemas.codecs.blocks import decode_block
from services.debts import OpenDebt
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.profiles import PROPERTY
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.ops.debts import owing


def shuffled(rows: list[Row], joins: list[int], chance: random.Random) -> list[list[Row]]:
    """The rows of some joins as Spark gives them to tasks: a group's together, in order."""
    places = {group: chance.randrange(3) for group in sorted({row[:2] for row in rows})}
    return [sorted(row for row in rows if row[0] in joins and places[row[:2]] == place) for place in range(3)]


def clustered(debt: OpenDebt, chance: random.Random) -> list[dict[str, Any]]:
    """What is owed, found level by level."""
    rows = list(rows_of(debt))
    payer = Payer(debt.query, debt.manifest.debt)
    paying = Paying(debt.query, msgspec.json.encode(msgspec.structs.replace(debt.manifest.debt, owed=())))
    for height in sorted(set(payer.heights)):
        joins = [j for j, own in enumerate(payer.heights) if own == height]
        for task in shuffled(rows, joins, chance):
            once, again = (list(paying(iter(task))) for _ in range(2))
            # A task that is repeated writes the same bytes.
            assert once == again
            rows += once
    found = [row for row in rows if row[0] == payer.joins]
    assert len({(row[1], row[4]) for row in found}) == len(found)
    return [row for own in found for row in to_rows(decode_block(own[-1], own[4]).batch)]


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 4, 15))
@given(SPILLABLE, BUDGETS, st.randoms(use_true_random=False))
def test_levels_of_tasks_find_all_that_is_owed(case: Case, budget: Budget, chance: random.Random) -> None:
    found, debt = owing(case, budget, MemoryBlocks())
    if debt is not None:
        found += clustered(debt, chance)
    assert canonical(found) == canonical(oracle.results(case.query, case.given))
