"""The results of a run and of the later cleanup of its backlog are together the oracle's, each once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.spill.backlog import Backlog, BacklogScope, backlog_groups
from operators.spill.cleanup.offline import LATE_PREFIX, OfflineCleanup, clean_up_all
from operators.spill.spilled_part import SpilledPart, memory_pieces
from operators.spill.spilling import MemoryBudget
from schemas.columns import Batch
from schemas.errors import InvariantError
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, engine_of, feed, to_rows
from tests.operators.migrating import changes_of
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.profiles import PROPERTY

Rows = list[dict[str, Any]]


def run_without_cleanup(case: Case, budget: MemoryBudget, **options: Any) -> tuple[Rows, Backlog | None, MemoryBlocks]:
    """The results of a run, its backlog, and the blocks."""
    blocks = MemoryBlocks()
    task = engine_of(case, budget=budget, blocks=blocks, **options)
    return (*run_to_backlog(task, case), blocks)


def run_to_backlog(task: Engine, case: Case) -> tuple[Rows, Backlog | None]:
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    backlog = task.write_backlog()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert task.cleaned() == []
    statistics = task.statistics().spill
    assert statistics is not None
    assert (statistics.owed, statistics.on_disk_tuples) == (0, 0)
    # As another process reads it.
    return found, None if backlog is None else msgspec.json.decode(msgspec.json.encode(backlog), type=Backlog)


def cleaned_up(case: Case, backlog: Backlog, blocks: MemoryBlocks, known: Iterable[int] = ()) -> dict[int, Rows]:
    """Results by group of the root."""
    found: dict[int, Rows] = {}
    for group, batches in clean_up_all(OfflineCleanup(case.query, backlog), backlog, blocks, known):
        assert group not in found
        found[group] = [row for batch in batches for row in rows_of(batch)]
    return found


def rows_of(batch: Batch) -> Rows:
    assert batch.ts.tolist() == sorted(batch.ts.tolist())
    return to_rows(batch)


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 2, 15))
@given(SPILLABLE, BUDGETS, st.booleans())
def test_pending_results_are_found_later(case: Case, budget: MemoryBudget, hashed: bool) -> None:
    found, backlog, blocks = run_without_cleanup(case, budget, hashed=hashed)
    later: dict[int, Rows] = {}
    if backlog is not None:
        before = dict(blocks.stored)
        later = cleaned_up(case, backlog, blocks)
        # Until the end a backlog can be cleaned up again, also without groups that are known to be done.
        assert {key: raw for key, raw in blocks.stored.items() if not key.startswith(LATE_PREFIX)} == before
        known = sorted(later)[::2]
        again = cleaned_up(case, backlog, blocks, known)
        assert {group: canonical(rows) for group, rows in again.items()} == {
            group: canonical(rows) for group, rows in later.items() if group not in known
        }
    expected = canonical(oracle.results(case.query, case.given))
    assert canonical(found + [row for rows in later.values() for row in rows]) == expected


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 4, 15))
@given(SPILLABLE, BUDGETS, st.data())
def test_also_after_plan_changes(case: Case, budget: MemoryBudget, data: st.DataObject) -> None:
    blocks = MemoryBlocks()
    task = engine_of(case, budget=budget, blocks=blocks)
    for cut, to, strategy in data.draw(changes_of(case, ["moving-state"], 2)):
        task.migrate(to, strategy, cut)
    found, backlog = run_to_backlog(task, case)
    if backlog is not None:
        found += [row for rows in cleaned_up(case, backlog, blocks).values() for row in rows]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


def test_without_a_budget_nothing_is_pending() -> None:
    assert BacklogScope([frozenset("AB")], frozenset()).groups(0, 7) == []


def test_all_groups_of_a_join_above_pending_results_are_in_the_backlog() -> None:
    covers = [frozenset("AB"), frozenset("CD"), frozenset("ABCD"), frozenset("ABCDE")]
    scope = BacklogScope(covers, frozenset({(0, 3), (1, 1), (1, 0)}))
    assert [scope.groups(join, 4) for join in range(4)] == [[3], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
    scope = BacklogScope(covers, frozenset({(2, 2)}))
    assert [scope.groups(join, 4) for join in range(4)] == [[], [], [2], [0, 1, 2, 3]]


def test_tuples_in_memory_are_no_backlog() -> None:
    batch = Batch(np.array([1, 2]), {})
    part = SpilledPart((memory_pieces(batch, batch.ts), ()), 0)
    with pytest.raises(InvariantError, match="a backlog of 2 tuples that are in memory"):
        backlog_groups([((0, 0), [part])])
