"""What a run leaves owed and what is found of it later are together the oracle's results, each once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.spill.backlog import Debt, Owing, described
from operators.spill.cleanup.offline import LATE, Payer, pay_all
from operators.spill.spilled_part import Part, in_memory
from operators.spill.spilling import Budget
from schemas.columns import Batch
from schemas.errors import InvariantError
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, engine_of, feed, to_rows
from tests.operators.migrating import changes_of
from tests.operators.profiles import PROPERTY
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE

Rows = list[dict[str, Any]]


def left_owing(case: Case, budget: Budget, **options: Any) -> tuple[Rows, Debt | None, MemoryBlocks]:
    """What a run finds, what it leaves, and where."""
    blocks = MemoryBlocks()
    task = engine_of(case, budget=budget, blocks=blocks, **options)
    return (*run_to_debt(task, case), blocks)


def run_to_debt(task: Engine, case: Case) -> tuple[Rows, Debt | None]:
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    debt = task.debt()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert task.cleaned() == []
    statistics = task.statistics().spill
    assert statistics is not None
    assert (statistics.owed, statistics.on_disk_tuples) == (0, 0)
    # As who reads it back in another process has it.
    return found, None if debt is None else msgspec.json.decode(msgspec.json.encode(debt), type=Debt)


def paid(case: Case, debt: Debt, blocks: MemoryBlocks, known: Iterable[int] = ()) -> dict[int, Rows]:
    """Results by group of the root."""
    found: dict[int, Rows] = {}
    for group, batches in pay_all(Payer(case.query, debt), debt, blocks, known):
        assert group not in found
        found[group] = [row for batch in batches for row in rows_of(batch)]
    return found


def rows_of(batch: Batch) -> Rows:
    assert batch.ts.tolist() == sorted(batch.ts.tolist())
    return to_rows(batch)


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 2, 15))
@given(SPILLABLE, BUDGETS, st.booleans())
def test_what_is_left_owed_is_found_later(case: Case, budget: Budget, hashed: bool) -> None:
    found, debt, blocks = left_owing(case, budget, hashed=hashed)
    later: dict[int, Rows] = {}
    if debt is not None:
        held = dict(blocks.held)
        later = paid(case, debt, blocks)
        # Until it is settled a debt can be paid again, by who knows of some groups that they are paid.
        assert {key: raw for key, raw in blocks.held.items() if not key.startswith(LATE)} == held
        known = sorted(later)[::2]
        again = paid(case, debt, blocks, known)
        assert {group: canonical(rows) for group, rows in again.items()} == {
            group: canonical(rows) for group, rows in later.items() if group not in known
        }
    expected = canonical(oracle.results(case.query, case.given))
    assert canonical(found + [row for rows in later.values() for row in rows]) == expected


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 4, 15))
@given(SPILLABLE, BUDGETS, st.data())
def test_also_after_plan_changes(case: Case, budget: Budget, data: st.DataObject) -> None:
    blocks = MemoryBlocks()
    task = engine_of(case, budget=budget, blocks=blocks)
    for cut, to, strategy in data.draw(changes_of(case, ["moving-state"], 2)):
        task.migrate(to, strategy, cut)
    found, debt = run_to_debt(task, case)
    if debt is not None:
        found += [row for rows in paid(case, debt, blocks).values() for row in rows]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


def test_who_has_no_budget_owes_nothing() -> None:
    assert Owing([frozenset("AB")], frozenset()).groups(0, 7) == []


def test_a_join_above_one_that_owes_is_owed_all_its_groups() -> None:
    covers = [frozenset("AB"), frozenset("CD"), frozenset("ABCD"), frozenset("ABCDE")]
    owing = Owing(covers, frozenset({(0, 3), (1, 1), (1, 0)}))
    assert [owing.groups(join, 4) for join in range(4)] == [[3], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert [Owing(covers, frozenset({(2, 2)})).groups(join, 4) for join in range(4)] == [[], [], [2], [0, 1, 2, 3]]


def test_what_is_in_memory_is_no_debt() -> None:
    batch = Batch(np.array([1, 2]), {})
    part = Part((in_memory(batch, batch.ts), ()), 0)
    with pytest.raises(InvariantError, match="a debt of 2 tuples that are in memory"):
        described([((0, 0), [part])])
