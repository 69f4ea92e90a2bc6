"""The executors' part of a cleanup, without Spark: groups in any partition."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all
from operators.spill.spilling import MemoryBudget
from ops.spark.cleanup import rows_of
from ops.spark.cleanup_task import CleanupTask, Row
from schemas.codecs.blocks import decode_block
from services.spill.backlog import OpenBacklog
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.ops.backlogs import run_with_backlog
from tests.profiles import PROPERTY

Found = dict[int, list[dict[str, Any]]]
"""Results by group of the root."""


def shuffled(rows: list[Row], joins: list[int], chance: random.Random) -> list[list[Row]]:
    """The rows of some joins as Spark passes them to tasks: those of a group together, in order."""
    places = {group: chance.randrange(3) for group in sorted({row[:2] for row in rows})}
    return [sorted(row for row in rows if row[0] in joins and places[row[:2]] == place) for place in range(3)]


def clustered(backlog: OpenBacklog, chance: random.Random) -> Found:
    """The pending results, computed level by level."""
    rows = list(rows_of(backlog))
    cleanup = OfflineCleanup(backlog.query, backlog.manifest.pending)
    scope = msgspec.structs.replace(backlog.manifest.pending, groups=())
    cleanup_task = CleanupTask(backlog.query, msgspec.json.encode(scope))
    for height in sorted(set(cleanup.heights)):
        joins = [j for j, own in enumerate(cleanup.heights) if own == height]
        for task in shuffled(rows, joins, chance):
            once, again = (list(cleanup_task(iter(task))) for _ in range(2))
            # A task that is repeated writes the same bytes.
            assert once == again
            rows += once
    found = [row for row in rows if row[0] == cleanup.joins]
    assert len({(row[1], row[4]) for row in found}) == len(found)
    groups: Found = {}
    for own in found:
        groups.setdefault(own[1], []).extend(to_rows(decode_block(own[-1], own[4]).batch))
    return groups


def locally(backlog: OpenBacklog) -> Found:
    """The same results, computed by one process."""
    groups = clean_up_all(
        OfflineCleanup(backlog.query, backlog.manifest.pending), backlog.manifest.pending, backlog.blocks
    )
    found = {group: [row for batch in batches for row in to_rows(batch)] for group, batches in groups}
    return {group: rows for group, rows in found.items() if rows}


def in_order(found: Found) -> dict[int, list[str]]:
    return {group: canonical(rows) for group, rows in found.items()}


@settings(PROPERTY, max_examples=max(PROPERTY.max_examples // 4, 15))
@given(SPILLABLE, BUDGETS, st.randoms(use_true_random=False))
def test_levels_of_tasks_find_all_pending_results(case: Case, budget: MemoryBudget, chance: random.Random) -> None:
    found, backlog = run_with_backlog(case, budget, MemoryBlocks())
    if backlog is not None:
        pending = clustered(backlog, chance)
        # A destination takes the results of one root group together, so both must find the same per group.
        assert in_order(pending) == in_order(locally(backlog))
        found += [row for rows in pending.values() for row in rows]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))
