"""A memory budget, as the command line gives it: how much, what leaves first, to where, and who pays what is owed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from operators.spill.plan_spilling import TUPLE_BYTES
from operators.spill.spilling import Budget
from operators.spill.strategies import DEFAULT_STRATEGY, strategy_of
from schemas.errors import UsageError
from schemas.sizes import parse_size
from services.process import memory as memory_use
from services.spill import backlog as debts
from services.spill.block_store import SpillStore


@dataclass(frozen=True, slots=True)
class Spill:
    """Where a run keeps what does not fit.

    Attributes:
        cleans: what is owed at the end is found by this process.
    """

    budget: Budget
    blocks: SpillStore
    cleans: bool

    @property
    def waiting_tuples(self) -> int:
        """How many source tuples wait for their epoch to be worth its calls: a tenth of the budget."""
        return waiting_tuples(self.budget)


def budget_of(memory: str | None, strategy: str | None, folder: Path | None) -> Budget | None:
    """The budget that the options ask for; None for no limit.

    Raises:
        UsageError: an option is wrong, or pointless without the others.
    """
    if memory is None:
        for option, given in (("--spill", strategy), ("--spill-dir", folder)):
            if given is not None:
                raise UsageError(f"{option} {given} has no effect without --memory, such as --memory 64MiB")
        return None
    limit = parse_size(memory)
    if strategy is not None:
        strategy_of(strategy)
    return Budget(limit, strategy or DEFAULT_STRATEGY)


def waiting_tuples(budget: Budget) -> int:
    """How many source tuples may wait for their epoch: a tenth of the budget."""
    return int(budget.limit_bytes / 10 / TUPLE_BYTES)


def prepare_memory() -> None:
    """See to it that what an engine counts is what the process takes."""
    memory_use.prepare()
    memory_use.choose_small_pages()


@contextmanager
def spill_of(memory: str | None, strategy: str | None, folder: Path | None, *, cleans: bool) -> Iterator[Spill | None]:
    """What the options ask for; None without a budget. A folder that was not named is temporary; one that was is left
    as empty as it was found when all went well and nothing is owed.

    Raises:
        UsageError: an option is wrong, or pointless without the others.
        StateError: the folder cannot be used.
    """
    budget = budget_of(memory, strategy, folder)
    if budget is None:
        yield None
        return
    if folder is None and not cleans:
        raise UsageError("--cleanup none leaves what is owed in a folder: name it with --spill-dir DIR")
    path = Path(tempfile.mkdtemp(prefix="weir-spill-")) if folder is None else folder
    store = SpillStore(path)
    prepare_memory()
    try:
        yield Spill(budget, store, cleans)
        if folder is not None and debts.settled(folder):
            store.remove()
    finally:
        store.close()
        if folder is None:
            shutil.rmtree(path, ignore_errors=True)
