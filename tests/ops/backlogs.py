"""Makes backlogs for tests of the commands and jobs that clean them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operators.spill.block_store import BlockStore
from operators.spill.spilling import MemoryBudget
from services.process.fingerprint import fingerprint
from services.spill.backlog import BacklogManifest, OpenBacklog
from tests.cases import Case
from tests.feeding import engine_of, feed, to_rows


def run_with_backlog(
    case: Case, budget: MemoryBudget, blocks: BlockStore, folder: Path = Path()
) -> tuple[list[dict[str, Any]], OpenBacklog | None]:
    """The results of a run of a case, and the backlog that it leaves, as `open_backlog` would return it."""
    task = engine_of(case, budget=budget, blocks=blocks)
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    backlog = task.write_backlog()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    if backlog is None:
        return found, None
    manifest = BacklogManifest("d", "", case.query.name, fingerprint(case.query), 0, backlog)
    return found, OpenBacklog(folder, manifest, case.query, blocks)
