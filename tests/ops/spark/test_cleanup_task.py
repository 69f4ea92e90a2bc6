"""What executors do of a cleanup, without a Spark: groups in any partition."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.spill.cleanup.offline import Payer, pay_all
from operators.spill.spilling import Budget
from ops.spark.cleanup import rows_of
from ops.spark.cleanup_task import Paying, Row
from schemas.codecs.blocks import decode_block
from services.spill.backlog import OpenDebt
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.profiles import PROPERTY
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.ops.debts import owing

Found = dict[int, list[dict[str, Any]]]
"""Results by group of the root."""


def shuffled(rows: list[Row], joins: list[int], chance: random.Random) -> list[list[Row]]:
    """The rows of some joins as Spark gives them to tasks: a group's together, in order."""
    places = {group: chance.randrange(3) for group in sorted({row[:2] for row in rows})}
    return [sorted(row for row in rows if row[0] in joins and places[row[:2]] == place) for place in range(3)]


def clustered(debt: OpenDebt, chance: random.Random) -> Found:
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
    groups: Found = {}
    for own in found:
        groups.setdefault(own[1], []).extend(to_rows(decode_block(own[-1], own[4]).batch))
    return groups


def locally(debt: OpenDebt) -> Found:
    """The same, found by one process."""
    groups = pay_all(Payer(debt.query, debt.manifest.debt), debt.manifest.debt, debt.blocks)
    found = {group: [row for batch in batches for row in to_rows(batch)] for group, batches in groups}
    return {group: rows for group, rows in found.items() if rows}


def in_order(found: Found) -> dict[int, list[str]]:
    return {group: canonical(rows) for group, rows in found.items()}


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 4, 15))
@given(SPILLABLE, BUDGETS, st.randoms(use_true_random=False))
def test_levels_of_tasks_find_all_that_is_owed(case: Case, budget: Budget, chance: random.Random) -> None:
    found, debt = owing(case, budget, MemoryBlocks())
    if debt is not None:
        owed = clustered(debt, chance)
        # Groups of the root are what is delivered together, by whoever found it.
        assert in_order(owed) == in_order(locally(debt))
        found += [row for rows in owed.values() for row in rows]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))
