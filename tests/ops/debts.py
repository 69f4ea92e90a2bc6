"""Debts for tests of who pays them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operators.spill.block_store import BlockStore
from operators.spill.spilling import Budget
from services.process.fingerprint import fingerprint
from services.spill.backlog import Manifest, OpenDebt
from tests.cases import Case
from tests.feeding import engine_of, feed, to_rows


def owing(
    case: Case, budget: Budget, blocks: BlockStore, folder: Path = Path()
) -> tuple[list[dict[str, Any]], OpenDebt | None]:
    """What a run of a case finds, and what it leaves owed, as `open_debt` would give it."""
    task = engine_of(case, budget=budget, blocks=blocks)
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    debt = task.debt()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    if debt is None:
        return found, None
    manifest = Manifest("d", "", case.query.name, fingerprint(case.query), 0, debt)
    return found, OpenDebt(folder, manifest, case.query, blocks)
