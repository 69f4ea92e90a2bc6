"""The barrier of plan changes: all tasks of a query agree on the event time at which they switch to a new plan.

`Barrier` folds the log of the control topic `<group>.control`, message by message; `View` is the result. Every task of
a query must switch at the same event time, the cut, although tasks progress independently, crash, move between workers
and restart. The log is the only truth. Every process reads all of it from the beginning and folds it with the same
function, so all of them judge each message alike, whatever its sender believed. No clock decides anything.

1. `weir migrate` appends a `Request`.
2. A coordinator takes it up with a `Propose`. One proposal is open at a time; any other has no effect.
3. Every task appends an `Answer`: how far it has come, and a bound that it *promises* not to pass until it has read
   the decision. The bound lies a little ahead, so that a task does not wait if the decision soon follows its answer.
4. The decision is the first of these in the log:
   - a valid `Cut`: the newest incarnation of each of the proposal's tasks has answered without an error; the cut is not
     below any bound, and it is above the previous cut. It makes the next *version* of the plan.
   - a `Withdraw` by any process: by the coordinator when answers are missing, or by a task that has waited too long,
     because a crashed coordinator must not block it. The task continues only when it has read its own withdrawal, or an
     earlier decision.
   Messages after the decision have no effect; nor has a cut that is not valid.
5. Every task changes plans at the cut (`Started`) and reports when only the new plan runs (`Done`). Both reports are
   for people: nothing waits for them.

Each incarnation of a task starts with an `Opened` and reads the log up to it before it takes any input. From there on
the answers of earlier incarnations do not count, so messages of a zombie do no harm.

**Invariant.** No task passes a valid cut before it has read it. Let T be the cut, and L the task's newest incarnation
that opened before the cut in the log.

- L itself: its answer stands before the cut and promises a bound <= T. L does not pass the bound until it has read the
  decision, and the decision is this cut.
- A later incarnation L': its `Opened` stands after the cut, or L's answer would not have counted. So L' reads the cut
  before it takes any input. It starts where an earlier incarnation has committed: at T at the latest, unless that one
  had read the cut, too.

**Why it holds at every crash.** A lost coordinator: the tasks withdraw when they have waited too long; its successor
folds the same log and continues from there. Two coordinators: the cut that comes first in the log counts; the other
comes after the decision. A lost task: the `Opened` of its next incarnation voids its answer, so the coordinator's cut
is void or waits for the new answer; the other tasks are free at the latest when they have waited too long. A lost
message: senders look for their own message in the log and send it again. Duplicates: see 4.

**Assumption.** A task's former incarnation takes no more input when the next `Opened` is written. With exactly-once its
producer is fenced by then, and its later work is not committed. With at-least-once a zombie continues; and if two
incarnations of a task start at once, the loser's `Opened` may come last, until the other one claims again that it is
the newest (`services.control.participant`). If a task finds that it has already passed the cut, it changes plans at
once and reports that the change was not exact. Results are the same under every plan, so no result is lost.

Cost: a message folds in O(1), except decisions. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from schemas.messages.control import Answer, BarrierMessage, Cut, Done, Opened, Propose, Request, Started, Withdraw

KEPT_REPORTS = 32
"""The tasks' reports are kept for so many of the newest plan changes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A decided change of plans of a query with `tasks` tasks.

    Attributes:
        version: of the new plan; from 1.
        id: of the request.
        cut: event time in ms; tuples with ts >= cut are new under the new plan.
        prefer: what the strategy `auto` minimizes.
    """

    version: int
    id: str
    plan: str
    strategy: str
    cut: int
    tasks: int
    prefer: str


@dataclass(frozen=True, slots=True)
class View:
    """The state of the barrier after some message of the log. Immutable.

    Attributes:
        changes: all plan changes; version v is changes[v - 1].
        open: the proposal that tasks must answer; None when there is none.
        answers: to the open proposal, by task; only of each task's newest incarnation.
        waiting: requests that no proposal has taken up yet, oldest first.
        withdrawn: the withdrawals, by the id of their request.
        incarnations: the id of each task's newest incarnation.
        started: reports of the newest changes, by (id, task).
        done: reports of the newest changes, by (id, task).
        tasks: how many tasks there are according to the newest `Opened`; 0 where readers know that without it.
    """

    changes: tuple[Change, ...] = ()
    open: Propose | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    waiting: tuple[Request, ...] = ()
    withdrawn: Mapping[str, Withdraw] = field(default_factory=dict)
    incarnations: Mapping[int, str] = field(default_factory=dict)
    started: Mapping[tuple[str, int], Started] = field(default_factory=dict)
    done: Mapping[tuple[str, int], Done] = field(default_factory=dict)
    tasks: int = 0

    def change(self, id_: str) -> Change | None:
        """The change of plans that was decided for a request; None if there is none."""
        return next((change for change in reversed(self.changes) if change.id == id_), None)

    def keeps_reports_of(self, id_: str) -> bool:
        """Whether the tasks' reports of a change are still kept."""
        return any(change.id == id_ for change in self.changes[-KEPT_REPORTS:])

    def version_at(self, event_time: int) -> int:
        """The plan version for tuples of that event time: the number of cuts at or before it."""
        return sum(change.cut <= event_time for change in self.changes)

    @property
    def missing(self) -> tuple[int, ...]:
        """Tasks that have not answered the open proposal."""
        return () if self.open is None else tuple(t for t in range(self.open.tasks) if t not in self.answers)

    @property
    def refusals(self) -> tuple[Answer, ...]:
        """Answers that refuse the open proposal."""
        return tuple(answer for answer in self.answers.values() if answer.error)

    @property
    def least_cut(self) -> int:
        """The smallest valid cut of the open proposal."""
        bounds = [answer.bound for answer in self.answers.values()]
        return max([*bounds, *(change.cut + 1 for change in self.changes[-1:]), 0])


class Barrier:
    """Folds the log. Apply every message in the order of the log; `view` returns the state."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._open: Propose | None = None
        self._answers: dict[int, Answer] = {}
        self._waiting: dict[str, Request] = {}
        self._decided: set[str] = set()
        self._withdrawn: dict[str, Withdraw] = {}
        self._incarnations: dict[int, str] = {}
        self._started: dict[tuple[str, int], Started] = {}
        self._done: dict[tuple[str, int], Done] = {}
        self._tasks = 0

    def view(self) -> View:
        """The state after the messages so far; a copy that later messages do not change."""
        return View(
            changes=tuple(self._changes),
            open=self._open,
            answers=MappingProxyType(dict(self._answers)),
            waiting=tuple(self._waiting.values()),
            withdrawn=MappingProxyType(dict(self._withdrawn)),
            incarnations=MappingProxyType(dict(self._incarnations)),
            started=MappingProxyType(dict(self._started)),
            done=MappingProxyType(dict(self._done)),
            tasks=self._tasks,
        )

    def apply(self, message: BarrierMessage) -> None:
        """Fold the next message of the log."""
        match message:
            case Opened():
                self._incarnations[message.task] = message.incarnation
                self._tasks = message.tasks or self._tasks
                answer = self._answers.get(message.task)
                if answer is not None and answer.incarnation != message.incarnation:
                    del self._answers[message.task]
            case Request():
                taken_up = self._open is not None and self._open.id == message.id
                if not taken_up and message.id not in self._decided:
                    self._waiting.setdefault(message.id, message)
            case Propose():
                if self._open is None and message.id not in self._decided:
                    self._waiting.pop(message.id, None)
                    self._open, self._answers = message, {}
            case Answer():
                if self._is_open(message.id) and self._incarnations.get(message.task) == message.incarnation:
                    self._answers.setdefault(message.task, message)
            case Cut():
                self._cut(message)
            case Withdraw():
                if self._is_open(message.id) or message.id in self._waiting:
                    self._withdrawn[message.id] = message
                    self._close(message.id)
            case Started():
                if self._keeps_reports_of(message.id):
                    self._started.setdefault((message.id, message.task), message)
            case Done():
                if self._keeps_reports_of(message.id):
                    self._done.setdefault((message.id, message.task), message)

    def _is_open(self, id_: str) -> bool:
        return self._open is not None and self._open.id == id_

    def _keeps_reports_of(self, id_: str) -> bool:
        return any(change.id == id_ for change in self._changes[-KEPT_REPORTS:])

    def _cut(self, message: Cut) -> None:
        if self._open is None or not self._is_open(message.id):
            return
        view = self.view()
        if view.missing or view.refusals or message.cut < view.least_cut:
            return
        version, proposal = len(self._changes) + 1, self._open
        self._changes.append(
            Change(
                version, proposal.id, proposal.plan, proposal.strategy, message.cut, proposal.tasks, proposal.prefer
            )
        )
        self._close(message.id)
        if version > KEPT_REPORTS:
            old = self._changes[version - KEPT_REPORTS - 1].id
            self._started = {key: value for key, value in self._started.items() if key[0] != old}
            self._done = {key: value for key, value in self._done.items() if key[0] != old}

    def _close(self, id_: str) -> None:
        self._decided.add(id_)
        self._waiting.pop(id_, None)
        if self._is_open(id_):
            self._open, self._answers = None, {}
