"""Manages a task's spilled state: the folder of its blocks, the log of its events, and the late results of cleanup.

`services.task.epochs` runs a cleanup step between epochs and while no input arrives. `services.task.commits` delivers
the events and the late results.

Blocks are of no use to the task's next incarnation (`services.spill.spill_log` gives the reason). So each incarnation
has its own folder, and one that hangs may still write there when the next begins. Blocks need not last, either: a
failed read or write ends the task, and the worker restarts it from the last commit, as after any other failure. With a
full disk, the task restarts until there is room.

Events name partition groups of the plan that ran. If a worker was restarted with another `--plan`, an incarnation
starts with the plan of the log, and changes to its own plan at the last commit.

**When pending results are produced.** Before windows expire a part, the engine cleans it up by itself; without windows
it never would. So a task also cleans up by itself, in cleanup steps of STEP_GROUPS groups, those that have waited
longest. While no input arrives, it runs step after step until input arrives or no results are pending; each epoch
commits what was produced. While input arrives, every epoch adds pending results. A task that is busy for less than
SPARE_LOAD then runs one step between epochs, and spends at most the share CLEANUP_SHARE of its time on steps. It never
rests for longer than MAX_REST_S, because a step may have been slow for other reasons: a busy machine, or kernels that
were compiled. If no results are pending, it checks again after REST_S.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from operators.data.watermark import END
from operators.plan.plan import Plan, parse_plan
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY
from schemas.codecs.encode import Encoded
from schemas.errors import SpillError
from schemas.messages.spills import SpillEvent
from schemas.query import Query
from schemas.sizes import MAX_BYTES
from services.delivery.epoch_output import BlockRecord
from services.kafka.topics import Lane
from services.process.logs import get_log
from services.spill.block_store import SpillStore
from services.spill.budget import waiting_tuples
from services.spill.productivity_link import ProductivityLink
from services.spill.spill_log import SpillLog
from services.task.program import SpillingEngine

SPARE_LOAD = 0.5
CLEANUP_SHARE = 0.2
STEP_GROUPS = 4
REST_S = 1.0
MAX_REST_S = 5.0
QUIET_S = 0.2
"""A task counts as quiet after this time without input."""
STARTUP_CLEANUP_S = 0.5
"""How long a task without a memory budget cleans up between epochs what an earlier incarnation left pending."""

Late = tuple[str, Encoded]
"""Late results, and their topic."""

UNLIMITED = MemoryBudget(MAX_BYTES, DEFAULT_STRATEGY)
"""The budget of a task that no longer spills but has pending results."""

LEAST_WAITING = 1_000
"""Source tuples that may wait for the watermark under any budget."""


class SpillStart:
    """What spilling starts with: an empty store of blocks, and the spill log of earlier incarnations.

    The engine is made with it, and `TaskSpill` with both.

    Args:
        budget: UNLIMITED for a task that only has to clean up what an earlier incarnation left pending.
        folder: the folder in which this incarnation's own folder is made.
        log: the task's spill log.

    Attributes:
        budget, blocks: for the engine.
        log: as above.
    """

    def __init__(self, budget: MemoryBudget, folder: Path, log: SpillLog) -> None:
        """Make the incarnation's folder.

        Raises:
            SpillError: the folder cannot be used.
        """
        self.budget = budget
        self.log = log
        own = folder / uuid.uuid4().hex[:12]
        try:
            self.blocks = SpillStore(own)
        except SpillError:
            shutil.rmtree(own, ignore_errors=True)
            raise

    @property
    def delivered_before(self) -> int:
        """Event time before which earlier incarnations delivered all results; END if they left none pending."""
        events = self.log.events
        return events[-1].settled if events else END

    def plan(self, query: Query) -> Plan | None:
        """The plan that the events of the log belong to: the engine must start with it. None if there are none."""
        return parse_plan(self.log.plan, query) if self.log.plan else None

    def close(self) -> None:
        """Delete the blocks."""
        self.blocks.close()
        shutil.rmtree(self.blocks.path, ignore_errors=True)


class TaskSpill:
    """The spilled state of one incarnation of one task; used by its thread alone.

    Args:
        engine: made with the budget and the blocks of `start`, and still fresh. It will replay the events of earlier
            incarnations.
        until: cut of the last commit, up to which the events are replayed.
        found: returns the late results of the engine since the last call.
        plan: returns the plan that the engine runs; an empty text if there is none.
        link: exchanges productivity with other tasks; None where all joins are in this one.
    """

    def __init__(
        self,
        start: SpillStart,
        engine: SpillingEngine,
        until: int,
        found: Callable[[], list[Late]],
        plan: Callable[[], str] = str,
        link: ProductivityLink | None = None,
    ) -> None:
        self._start = start
        self._link = link
        self._budget = start.budget
        self._log = start.log
        self._engine = engine
        self._found = found
        self._plan = plan
        self._late: list[Late] = []
        self._events: list[SpillEvent] = []
        self._startup_cleaned = start.budget is not UNLIMITED
        self._rest_until = self._next_check = 0.0
        self._budget_reported = False
        engine.play_spills(self._log.events, until)

    @property
    def waiting_tuples(self) -> int:
        """About how many source tuples may wait for the watermark."""
        return max(LEAST_WAITING, waiting_tuples(self._budget))

    def replay_limit(self, read: Mapping[str, int]) -> int:
        """See `SpillingEngine.replay_limit`."""
        return self._engine.replay_limit(read)

    @property
    def span(self) -> tuple[int, int]:
        """The span of the log's records, for the commit message."""
        return self._log.span

    def advanced(self) -> bool:
        """Collect late results and events after an epoch or a cleanup step; True if there is something to commit."""
        self._late += self._found()
        self._events += self._engine.spill_events()
        return bool(self._late or self._events)

    def commit(self) -> tuple[list[Late], list[BlockRecord]]:
        """Late results, and log records of the events, since the last commit, for the next commit."""
        late, self._late = [*self._late, *self._found()], []
        events, self._events = [*self._events, *self._engine.spill_events()], []
        records = self._log.add(events, self._plan())
        least = 0 if self._budget_reported else self._engine.least_budget()
        if least:
            self._budget_reported = True
            get_log("spill").warning(
                "the memory budget is too small for this input: cleanup falls behind; give more with --memory",
                memory_bytes=self._budget.limit_bytes,
                least_bytes=least,
            )
        self._log.forget(self._engine.spills_needed_from())
        return late, records

    def clean_up_between_epochs(self, now: float) -> None:
        """Run a cleanup step between epochs, if there is time; runs more steps at the start of an UNLIMITED task."""
        if self._link is not None:
            self._link.step(now)
        if not self._startup_cleaned:
            while not self._startup_cleaned and time.monotonic() < now + STARTUP_CLEANUP_S:
                self._startup_cleaned = not self._engine.clean(STEP_GROUPS)
        elif self._engine.load < SPARE_LOAD and now >= self._rest_until:
            self.run_cleanup_step(now)

    def run_cleanup_step(self, now: float) -> bool:
        """Run a cleanup step; False if no results are pending, or none were less than REST_S ago."""
        if now < self._next_check:
            return False
        found = self._engine.clean(STEP_GROUPS)
        ended = time.monotonic()
        self._rest_until = ended + min((ended - now) / CLEANUP_SHARE, MAX_REST_S)
        if not found:
            self._rest_until = self._next_check = ended + REST_S
        return found

    def deletable(self) -> dict[Lane, int]:
        """See `SpillLog.deletable`."""
        return self._log.deletable()

    def close(self) -> None:
        """Delete the blocks."""
        if self._link is not None:
            self._link.close()
        self._start.close()
