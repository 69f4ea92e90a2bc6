"""A task's side of the barrier: answers proposals, keeps its promises, ends them when its patience does.

Pure: it is shown views of the log and its own progress, and returns what to append. It sends again whatever it
does not find in the log. The protocol and its invariant are in `services.control.barrier`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemas.messages.control import Answer, BarrierMessage, Opened, Propose, Withdraw
from services.control.barrier import Change, View

MARGIN_S = 0.5
"""How long a task could go on at its recent speed before it reaches the bound that it promises: longer than a
decision usually takes, so that nothing stands still for it."""

GRACE_S = 1.0
"""A task waits for a decision this much longer than the coordinator waits for answers, then withdraws."""

RESEND_S = 1.0
"""What is not in the log after this long is sent again."""


@dataclass(slots=True)
class _Promise:
    answer: Answer
    since: float
    sent: float
    withdrawn: float = float("-inf")


class Participant:
    """One life of one task.

    Args:
        check: why the task cannot change to a proposed plan; empty when it can.
        taken: how many of the log's changes the task has been told of when it begins.

    Attributes:
        superseded: since when (monotonic seconds) another life has been the task's newest in the log; None when this
            one is. Usually this one is to end then. But where two lives began at once, the loser's `Opened` may be the
            later one; that it is not the loser a life knows when it could commit after it saw the other's `Opened`.
    """

    superseded: float | None

    def __init__(self, task: int, life: str, check: Callable[[Propose], str], taken: int) -> None:
        self._task = task
        self._life = life
        self._check = check
        self._taken = taken
        self._promise: _Promise | None = None
        self._claimed = float("-inf")
        self.superseded = None
        self._held_since: float | None = None
        self._waited_s: dict[str, float] = {}

    @property
    def bound(self) -> int | None:
        """Event time that must not be passed now; None when there is no promise."""
        if self._promise is None or self._promise.answer.error:
            return None
        return self._promise.answer.bound

    def changes(self, view: View) -> tuple[Change, ...]:
        """Changes that are decided and have not been asked for yet, oldest first. To be asked for before `look`."""
        new = view.changes[self._taken :]
        self._taken = max(self._taken, len(view.changes))
        return new

    def look(self, view: View, *, reached: int, speed: float, committed: float, now: float) -> list[BarrierMessage]:
        """What to append, after a look at the log.

        Args:
            reached: event time that the task has processed.
            speed: event time (ms) per second that it has made lately.
            committed: when the last commit that succeeded was begun, in monotonic seconds.
            now: monotonic seconds.
        """
        messages = self._claim(view, committed, now)
        if self._promise is not None and (view.open is None or view.open.id != self._promise.answer.id):
            self.let_go(now)
            self._promise = None
            self._waited_s = {id_: s for id_, s in self._waited_s.items() if id_ not in view.withdrawn}
        if view.open is None:
            return messages
        if self._promise is None:
            error = self._check(view.open)
            answer = Answer(
                id=view.open.id,
                task=self._task,
                life=self._life,
                watermark=reached,
                bound=reached + max(0, round(speed * MARGIN_S)),
                error=error,
            )
            self._promise = _Promise(answer, now, now)
            return [*messages, answer]
        promise = self._promise
        recorded = view.answers.get(self._task)
        if (recorded is None or recorded.life != self._life) and now - promise.sent >= RESEND_S:
            promise.sent = now
            messages.append(promise.answer)
        patience_s = view.open.timeout_ms / 1000 + GRACE_S
        if now - promise.since >= patience_s and now - promise.withdrawn >= RESEND_S:
            promise.withdrawn = now
            reason = f"task {self._task} saw no decision within {patience_s:g} s"
            messages.append(Withdraw(id=promise.answer.id, reason=reason, by=f"task {self._task}"))
        return messages

    def _claim(self, view: View, committed: float, now: float) -> list[BarrierMessage]:
        """Say again that this life is the newest, where that is so."""
        if view.lives.get(self._task) == self._life:
            self.superseded = None
            return []
        if self.superseded is None:
            self.superseded = now
        if committed <= self.superseded or now - self._claimed < RESEND_S:
            return []
        self._claimed = now
        return [Opened(task=self._task, life=self._life)]

    # --- How long a promise held the task up -------------------------------------------------------

    def hold(self, now: float) -> None:
        """The task has more to do, but its promise forbids it."""
        if self._held_since is None:
            self._held_since = now

    def let_go(self, now: float) -> None:
        """The task goes on."""
        if self._held_since is not None and self._promise is not None:
            id_ = self._promise.answer.id
            self._waited_s[id_] = max(self._waited_s.get(id_, 0.0), now - self._held_since)
        self._held_since = None

    def take_waited(self, id_: str) -> float:
        """Seconds that the promise for a change has held the task up at most; forgotten then."""
        return self._waited_s.pop(id_, 0.0)
