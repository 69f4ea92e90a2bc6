"""The barrier of plan changes: what the log of `<group>.control` says, folded message by message.

A change of plans needs every task of a query to switch at the same event time, the cut, although tasks progress
independently, die, move between workers and come back. The log of the control topic is the only truth: everyone
reads all of it from the beginning and folds it with the same function, so everyone holds the same opinion of each
message, whatever its sender believed. Nobody's clock decides anything.

1. `weir migrate` appends a `Request`.
2. A coordinator takes it up with a `Propose`. One proposal is open at a time; another counts for nothing.
3. Every task appends an `Answer`: how far it has come, and a bound that it *promises* not to pass until it has read
   the decision. The bound lies a little ahead, so that a task whose answer is soon met by a decision never waits.
4. The decision is the first of these in the log:
   - a valid `Cut`: each of the proposal's tasks has answered in its newest life, without an error; the cut is not
     below any bound, and it is above the cut before. It makes the next *version* of the plan.
   - a `Withdraw` by anybody: the coordinator when answers are missing, or a task whose patience has ended, because
     a coordinator that died must not hold it up. The task goes on only when it has read its own withdrawal, or
     whatever came before it.
   What comes after the decision counts for nothing; so does a cut that is not valid.
5. Every task changes plans at the cut (`Started`) and says when the new plan stands alone (`Done`). These are for
   people: nothing waits for them.

A task begins each life with an `Opened` and reads the log up to it before it takes any input. From there on the
answers of its earlier lives count no more, so what a zombie still appends does no harm.

**Invariant.** No task has passed a valid cut when it reads it. Let T be the cut. Before it in the log the task's
newest life L promised a bound <= T; L has not passed the bound before it read the decision, which is this cut. A
later life L' of the task wrote its `Opened` after the cut (else L's answer would not have counted), so L' knows
the cut before it begins; and it begins where an earlier life has committed.

**Why it holds at every crash.** A lost coordinator: the tasks withdraw after their patience; its successor folds the
same log and goes on from there. Two coordinators: whose cut comes first in the log, counts; the other comes
after the decision. A lost task: its next life's `Opened` voids its answer, the coordinator's cut is void or waits
for the new answer, the others are free at the latest after their patience. A lost message: senders look for their
own message in the log and send it again. Duplicates: see 4.

**What it rests on.** A task's former life takes no more input when its `Opened` is written: with exactly-once its
producer is fenced by then, and what it did is not committed. With at-least-once a zombie goes on; and where two
lives of a task begin at once, the loser's `Opened` may come last, until the other one says again that it lives
(`services.control.participant`). Should a task find a cut behind it, it changes plans at once and reports that it was
not exact. Results are the same under every plan, so nothing is lost by it.

Cost: a message folds in O(1), except decisions. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from schemas.messages.control import Answer, BarrierMessage, Cut, Done, Opened, Propose, Request, Started, Withdraw

KEPT_REPORTS = 32
"""Of how many of the newest plan changes the tasks' reports are kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """A decided change of plans of a query of `tasks` tasks: tuples with ts >= `cut` are new to the plan of `version`.

    Attributes:
        prefer: what the strategy `auto` makes least.
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
    """What the log says up to some message.

    Attributes:
        changes: all plan changes; version v is changes[v - 1].
        open: the proposal that tasks must answer; None when there is none.
        answers: to it, by task, of each task's newest life.
        waiting: requests that no proposal has taken up yet, oldest first.
        withdrawn: why, by id.
        lives: the newest life of each task.
        started, done: what tasks have reported of the newest changes, by (id, task).
        tasks: how many the newest of them says there are; 0 where that is known without them.
    """

    changes: tuple[Change, ...] = ()
    open: Propose | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    waiting: tuple[Request, ...] = ()
    withdrawn: Mapping[str, Withdraw] = field(default_factory=dict)
    lives: Mapping[int, str] = field(default_factory=dict)
    started: Mapping[tuple[str, int], Started] = field(default_factory=dict)
    done: Mapping[tuple[str, int], Done] = field(default_factory=dict)
    tasks: int = 0

    def change(self, id_: str) -> Change | None:
        """The change of plans that came of a request, if one did."""
        return next((change for change in reversed(self.changes) if change.id == id_), None)

    def reports_of(self, id_: str) -> bool:
        """Whether the log's readers still keep reports of a change."""
        return any(change.id == id_ for change in self.changes[-KEPT_REPORTS:])

    def version_at(self, event_time: int) -> int:
        """The version in force for tuples of that time: how many cuts are at or before it."""
        return sum(change.cut <= event_time for change in self.changes)

    @property
    def missing(self) -> tuple[int, ...]:
        """Tasks that have not answered the open proposal."""
        return () if self.open is None else tuple(t for t in range(self.open.tasks) if t not in self.answers)

    @property
    def refusals(self) -> tuple[Answer, ...]:
        """Answers to the open proposal that say no."""
        return tuple(answer for answer in self.answers.values() if answer.error)

    @property
    def least_cut(self) -> int:
        """What a valid cut of the open proposal is not below."""
        bounds = [answer.bound for answer in self.answers.values()]
        return max([*bounds, *(change.cut + 1 for change in self.changes[-1:]), 0])


class Barrier:
    """The fold. Apply every message of the log in its order; ask for the `view` when there is time."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._open: Propose | None = None
        self._answers: dict[int, Answer] = {}
        self._waiting: dict[str, Request] = {}
        self._decided: set[str] = set()
        self._withdrawn: dict[str, Withdraw] = {}
        self._lives: dict[int, str] = {}
        self._started: dict[tuple[str, int], Started] = {}
        self._done: dict[tuple[str, int], Done] = {}
        self._tasks = 0

    def view(self) -> View:
        """What the messages so far say; later ones do not change it."""
        return View(
            changes=tuple(self._changes),
            open=self._open,
            answers=MappingProxyType(dict(self._answers)),
            waiting=tuple(self._waiting.values()),
            withdrawn=MappingProxyType(dict(self._withdrawn)),
            lives=MappingProxyType(dict(self._lives)),
            started=MappingProxyType(dict(self._started)),
            done=MappingProxyType(dict(self._done)),
            tasks=self._tasks,
        )

    def apply(self, message: BarrierMessage) -> None:
        """Fold the next message of the log."""
        match message:
            case Opened():
                self._lives[message.task] = message.life
                self._tasks = message.tasks or self._tasks
                answer = self._answers.get(message.task)
                if answer is not None and answer.life != message.life:
                    del self._answers[message.task]
            case Request():
                taken = self._open is not None and self._open.id == message.id
                if not taken and message.id not in self._decided:
                    self._waiting.setdefault(message.id, message)
            case Propose():
                if self._open is None and message.id not in self._decided:
                    self._waiting.pop(message.id, None)
                    self._open, self._answers = message, {}
            case Answer():
                if self._is_open(message.id) and self._lives.get(message.task) == message.life:
                    self._answers.setdefault(message.task, message)
            case Cut():
                self._cut(message)
            case Withdraw():
                if self._is_open(message.id) or message.id in self._waiting:
                    self._withdrawn[message.id] = message
                    self._close(message.id)
            case Started():
                if self._reports_of(message.id):
                    self._started.setdefault((message.id, message.task), message)
            case Done():
                if self._reports_of(message.id):
                    self._done.setdefault((message.id, message.task), message)

    def _is_open(self, id_: str) -> bool:
        return self._open is not None and self._open.id == id_

    def _reports_of(self, id_: str) -> bool:
        return any(change.id == id_ for change in self._changes[-KEPT_REPORTS:])

    def _cut(self, message: Cut) -> None:
        if self._open is None or not self._is_open(message.id):
            return
        view = self.view()
        if view.missing or view.refusals or message.cut < view.least_cut:
            return
        version, asked = len(self._changes) + 1, self._open
        self._changes.append(
            Change(version, asked.id, asked.plan, asked.strategy, message.cut, asked.tasks, asked.prefer)
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
