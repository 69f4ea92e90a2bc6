"""Turns the memory options of the command line into a budget and a spill store. Entry: `spill_setup`.

The options set how much memory an engine may use, what leaves memory first, which folder receives it, and which process
cleans up the backlog of pending results.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from operators.data.statistics import SpillStatistics
from operators.spill.plan_spilling import TUPLE_BYTES
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY, strategy_of
from schemas.errors import UsageError
from schemas.sizes import parse_size
from services.process import memory as memory_use
from services.process.logs import get_log
from services.spill import backlog as backlogs
from services.spill.block_store import SpillStore


@dataclass(frozen=True, slots=True)
class SpillSetup:
    """The memory budget of a run and the store for what exceeds it.

    Attributes:
        cleans: True if this process produces the results that are pending at the end.
    """

    budget: MemoryBudget
    blocks: SpillStore
    cleans: bool

    @property
    def waiting_tuples(self) -> int:
        """How many source tuples justify the fixed cost of an epoch: a tenth of the budget."""
        return waiting_tuples(self.budget)


def budget_of(memory: str | None, strategy: str | None, folder: Path | None) -> MemoryBudget | None:
    """The budget that the options request; None for no limit.

    Raises:
        UsageError: an option is wrong, or has no effect without the others.
    """
    if memory is None:
        for option, given in (("--spill", strategy), ("--spill-dir", folder)):
            if given is not None:
                raise UsageError(f"{option} {given} has no effect without --memory, such as --memory 64MiB")
        return None
    limit = parse_size(memory)
    if strategy is not None:
        strategy_of(strategy)
    return MemoryBudget(limit, strategy or DEFAULT_STRATEGY)


FIXED_SHARE = 0.5
"""The log says so when what cannot be spilled takes more of the budget."""


class FixedMemoryLog:
    """Logs, once, that what cannot be spilled takes most of a task's memory budget."""

    def __init__(self) -> None:
        self._logged = False

    def look(self, found: SpillStatistics) -> None:
        """Look at the memory of now."""
        if not self._logged and found.fixed_bytes > FIXED_SHARE * found.budget_bytes:
            self._logged = True
            get_log("spill").warning(
                "tables in topics, and what is remembered of deduplicated streams, take most of the memory budget and "
                "cannot be spilled; give more with --memory",
                memory_bytes=found.budget_bytes,
                fixed_bytes=found.fixed_bytes,
            )


def waiting_tuples(budget: MemoryBudget) -> int:
    """How many source tuples may wait for their epoch: a tenth of the budget."""
    return int(budget.limit_bytes / 10 / TUPLE_BYTES)


def prepare_memory() -> None:
    """Configure the allocator so that the memory that an engine counts is what the process uses."""
    memory_use.prepare()
    memory_use.choose_small_pages()


@contextmanager
def spill_setup(
    memory: str | None, strategy: str | None, folder: Path | None, *, cleans: bool
) -> Iterator[SpillSetup | None]:
    """Open the spill store that the options request; None without a budget.

    Without `folder` the store is temporary. A named folder is left as empty as it was found if the run succeeds and no
    results are pending.

    Args:
        cleans: see `SpillSetup`.

    Raises:
        UsageError: an option is wrong, or has no effect without the others.
        StateError: the folder cannot be used.
    """
    budget = budget_of(memory, strategy, folder)
    if budget is None:
        yield None
        return
    if folder is None and not cleans:
        raise UsageError("--cleanup none leaves pending results in a folder: name it with --spill-dir DIR")
    path = Path(tempfile.mkdtemp(prefix="weir-spill-")) if folder is None else folder
    store = SpillStore(path)
    prepare_memory()
    try:
        yield SpillSetup(budget, store, cleans)
        if folder is not None and backlogs.is_cleaned_up(folder):
            store.remove()
    finally:
        store.close()
        if folder is None:
            shutil.rmtree(path, ignore_errors=True)
