"""What a task spills: the folder it goes to, the log of it, and the results that come late.

Blocks are worth nothing to the next life of a task: `services.spill.spill_log` says why. So each life has its own
    folder, and one that hangs may still be at work there when the next begins. Nor do blocks have to last: what cannot
    be written or read ends the task, and the roster begins it anew from the last commit, as after anything else that
    goes wrong; with a full disk it comes back to where it was when there is room.

Events name groups of the plan that ran. A life whose own plan is another one, since its worker was started with another
`--plan`, begins with that of the log, and changes to its own at the last commit.

**When debts are paid.** Before windows forget a part the engine cleans up by itself; without windows it never would. So
a task cleans up by itself, BITE_GROUPS at once, those that have waited longest. While no input comes it does nothing
else: bite by bite, until some comes or nothing has waited, and what was found is committed epoch by epoch. While input
comes, which owes more with every epoch, a task that is busy for less than SPARE_LOAD takes a bite between epochs, and
in all at most the share CLEANUP_SHARE of its time; it never rests for longer than MOST_REST_S: what took long may have
been the machine, or kernels that were compiled. When nothing has waited, it looks again after REST_S.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from operators.data.watermark import END
from operators.plan.plan import Plan, parse_plan
from operators.spill.plan_spilling import check_spillable
from operators.spill.spilling import Budget
from operators.spill.strategies import DEFAULT_STRATEGY
from schemas.codecs.encode import Encoded
from schemas.errors import UsageError
from schemas.messages.spills import SpillEvent
from schemas.query import Query
from schemas.sizes import MAX_BYTES
from services.delivery.epoch_output import BlockRecord
from services.kafka.topics import Lane
from services.process.logs import get_log
from services.process.settings import EXECUTOR, Guarantee, Placement, WorkerSettings
from services.spill.block_store import SpillError, SpillStore
from services.spill.budget import waiting_tuples
from services.spill.spill_log import SpillLog
from services.task.engine import SpillingEngine

SPARE_LOAD = 0.5
CLEANUP_SHARE = 0.2
BITE_GROUPS = 4
REST_S = 1.0
MOST_REST_S = 5.0
QUIET_S = 0.2
"""No input comes when there was none for so long."""
BEGIN_S = 0.5
"""What is owed where nothing is to leave any more is paid for so long between epochs."""

Late = tuple[str, Encoded]
"""Results that come late, and their topic."""

UNLIMITED = Budget(MAX_BYTES, DEFAULT_STRATEGY)
"""Where nothing is to leave any more."""

LEAST_WAITING = 1_000
"""Source tuples that may wait for the watermark whatever the budget."""


def check_budget(query: Query, settings: WorkerSettings) -> None:
    """Refuse what cannot be kept within a memory budget.

    Raises:
        UsageError: the message says why.
    """
    check_spillable(query, EXECUTOR)
    if settings.guarantee is not Guarantee.EXACTLY_ONCE:
        raise UsageError(
            f"--memory with --guarantee {settings.guarantee}: which results are still owed is known by a log that is "
            f"written in one transaction with them; use --guarantee {Guarantee.EXACTLY_ONCE}"
        )
    if settings.placement is not Placement.FUSED:
        raise UsageError(
            f"--memory with --placement {settings.placement}: joins that run apart do not know what the others have "
            f"spilled; use --placement {Placement.FUSED}"
        )


class TaskSpill:
    """One life of one task; used by its thread alone.

    Args:
        budget: UNLIMITED where what an earlier life has spilled is still owed.
        folder: where this life's own folder is made.

    Attributes:
        budget, blocks: for the engine.
        own: the plan to change to at the last commit; None to stay with `plan`.
    """

    def __init__(self, budget: Budget, folder: Path, log: SpillLog) -> None:
        """Make the folder.

        Raises:
            SpillError: it cannot be used.
        """
        self.budget = budget
        own = folder / uuid.uuid4().hex[:12]
        try:
            self.blocks = SpillStore(own)
        except SpillError:
            shutil.rmtree(own, ignore_errors=True)
            raise
        self._log = log
        self._late: list[Late] = []
        self._events: list[SpillEvent] = []
        self._settled = budget is not UNLIMITED
        self._rested = self._nothing_until = 0.0
        self._told = False
        self._engine: SpillingEngine | None = None
        self._found: Callable[[], list[Late]] = list
        self._plan: Callable[[], str] = str
        self.own: Plan | None = None

    @property
    def waiting_tuples(self) -> int:
        """How many source tuples may wait for the watermark, about."""
        return max(LEAST_WAITING, waiting_tuples(self.budget))

    @property
    def span(self) -> tuple[int, int]:
        """What a commit says of the log."""
        return self._log.span

    @property
    def settled(self) -> int:
        """All results before this event time were given by earlier lives; END where they left nothing owed."""
        events = self._log.events
        return events[-1].settled if events else END

    @property
    def _of(self) -> SpillingEngine:
        assert self._engine is not None, "attached before anything is processed"
        return self._engine

    def plan(self, query: Query, own: Plan | None) -> Plan | None:
        """The plan to make the engine with.

        Args:
            own: which it is to run when it has come to the last commit; None for any.
        """
        if not self._log.plan:
            return own
        spilled = parse_plan(self._log.plan, query)
        self.own = None if own == spilled else own
        return spilled

    def attach(
        self, engine: SpillingEngine, until: int, found: Callable[[], list[Late]], plan: Callable[[], str] = str
    ) -> None:
        """What happened in earlier lives happens again, until the engine has come to the last commit.

        Args:
            found: what the engine has found late since this was last asked.
            plan: that the engine runs; empty where there is none.
        """
        self._engine, self._found, self._plan = engine, found, plan
        engine.play_spills(self._log.events, until)

    def advanced(self) -> bool:
        """An epoch has been processed, or something paid; True when there is something to commit."""
        self._late += self._found()
        self._events += self._of.spill_events()
        return bool(self._late or self._events)

    def commit(self) -> tuple[list[Late], list[BlockRecord]]:
        """Late results, and what has happened since the last commit, to be part of the next one."""
        late, self._late = self._late, []
        events, self._events = [*self._events, *self._of.spill_events()], []
        records = self._log.add(events, self._plan())
        least = 0 if self._told else self._of.least_budget()
        if least:
            self._told = True
            get_log("spill").warning(
                "the memory budget is too small for what comes: more is owed than is paid until less comes",
                memory_bytes=self.budget.limit_bytes,
                least_bytes=least,
            )
        self._log.forget(self._of.spills_needed_from())
        return late, records

    def clean(self, now: float) -> None:
        """Between epochs: find some of what is owed, if there is time; for longer where that is what the task begins
        with."""
        if not self._settled:
            while not self._settled and time.monotonic() < now + BEGIN_S:
                self._settled = not self._of.clean(BITE_GROUPS)
        elif self._of.load < SPARE_LOAD and now >= self._rested:
            self.pay(now)

    def pay(self, now: float) -> bool:
        """While there is nothing else to do: find a little of what is owed; False where nothing is, or was a moment
        ago."""
        if now < self._nothing_until:
            return False
        found = self._of.clean(BITE_GROUPS)
        ended = time.monotonic()
        self._rested = ended + min((ended - now) / CLEANUP_SHARE, MOST_REST_S)
        if not found:
            self._rested = self._nothing_until = ended + REST_S
        return found

    def trimming(self) -> dict[Lane, int]:
        """See `SpillLog.trimming`."""
        return self._log.trimming()

    def close(self) -> None:
        """Nobody needs the blocks any more."""
        self.blocks.close()
        shutil.rmtree(self.blocks.path, ignore_errors=True)
