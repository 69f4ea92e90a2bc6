"""A task's side of the barrier: answers proposals, keeps its promises, and withdraws a proposal that takes too long.

The task calls `Participant.look` with each view of the log and its own progress, and appends the returned messages.
Pure. It sends a message again if the log does not contain it. The protocol and its invariant are in
`services.control.barrier`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemas.messages.control import Answer, BarrierMessage, Opened, Propose, Withdraw
from services.control.barrier import Change, View

MARGIN_S = 0.5
"""How long a task could continue at its recent speed before it reaches its promised bound. This is longer than a
decision usually takes, so that no task has to wait."""

GRACE_S = 1.0
"""A task waits for a decision this much longer than the coordinator waits for answers, then withdraws."""

RESEND_S = 1.0
"""A message that is not in the log after this long is sent again."""

SPEED_S = 1.0
"""The interval over which a task's speed in event time is measured."""

STILL_S = 0.25
"""A task that has not proceeded for so long has no speed: its input may have ended."""

MAX_SPEED = 20_000.0
"""Upper limit of a task's assumed speed, in event time (ms) per second. Without it, a task that replays history would
promise a bound days ahead, and the cut would lie there too."""


class Speedometer:
    """Measures how fast a task proceeds in event time."""

    def __init__(self) -> None:
        self._since, self._at = 0.0, 0
        self._moved, self._reached = 0.0, 0
        self._speed = 0.0

    def speed(self, reached: int, now: float) -> float:
        """Return the speed of the last interval, in event time (ms) per second, at most MAX_SPEED; 0 at a standstill.

        Args:
            reached: event time (ms) up to which the task has processed its input.
            now: monotonic seconds.
        """
        if now - self._since >= SPEED_S:
            # The first interval starts before the first tuple, at event time 0.
            self._speed = min((reached - self._at) / (now - self._since), MAX_SPEED) if self._at else 0.0
            self._since, self._at = now, reached
        if reached != self._reached:
            self._moved, self._reached = now, reached
        return self._speed if now - self._moved < STILL_S else 0.0


@dataclass(slots=True)
class _Promise:
    answer: Answer
    since: float
    sent: float
    withdrawn: float = float("-inf")


class Participant:
    """One incarnation of one task.

    Args:
        check: why the task cannot change to a proposed plan; empty when it can.
        taken: how many of the log's changes the task knows when it starts.

    Attributes:
        superseded: since when (monotonic seconds) another incarnation has been the task's newest in the log; None when
            this one is. Usually this one must end then. But if two incarnations started at once, the loser's `Opened`
            may be the later one. An incarnation knows that it is not the loser when it could commit after it had seen
            the other's `Opened`.
    """

    superseded: float | None

    def __init__(self, task: int, incarnation: str, check: Callable[[Propose], str], taken: int) -> None:
        self._task = task
        self._incarnation = incarnation
        self._check = check
        self._taken = taken
        self._promise: _Promise | None = None
        self._claimed = float("-inf")
        self.superseded = None
        self._held_since: float | None = None
        self._waited_s: dict[str, float] = {}

    @property
    def bound(self) -> int | None:
        """Event time (ms) that the task must not pass now; None when there is no promise."""
        if self._promise is None or self._promise.answer.error:
            return None
        return self._promise.answer.bound

    @property
    def answered(self) -> str:
        """The id of the open proposal that the task has answered, as of the last `look`; empty if there is none."""
        return "" if self._promise is None else self._promise.answer.id

    def changes(self, view: View) -> tuple[Change, ...]:
        """Decided changes that earlier calls have not returned, oldest first. Call this before `look`."""
        new = view.changes[self._taken :]
        self._taken = max(self._taken, len(view.changes))
        return new

    def look(self, view: View, *, reached: int, speed: float, committed: float, now: float) -> list[BarrierMessage]:
        """The messages to append now.

        Args:
            view: the newest view of the log.
            reached: event time (ms) up to which the task has processed its input.
            speed: its recent speed, in event time (ms) per second.
            committed: when the last successful commit was begun, in monotonic seconds.
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
                incarnation=self._incarnation,
                watermark=reached,
                bound=reached + max(0, round(speed * MARGIN_S)),
                error=error,
            )
            self._promise = _Promise(answer, now, now)
            return [*messages, answer]
        promise = self._promise
        recorded = view.answers.get(self._task)
        if (recorded is None or recorded.incarnation != self._incarnation) and now - promise.sent >= RESEND_S:
            promise.sent = now
            messages.append(promise.answer)
        patience_s = view.open.timeout_ms / 1000 + GRACE_S
        if now - promise.since >= patience_s and now - promise.withdrawn >= RESEND_S:
            promise.withdrawn = now
            reason = f"task {self._task} saw no decision within {patience_s:g} s"
            messages.append(Withdraw(id=promise.answer.id, reason=reason, by=f"task {self._task}"))
        return messages

    def _claim(self, view: View, committed: float, now: float) -> list[BarrierMessage]:
        """Append `Opened` again if this incarnation has proved to be the newest."""
        if view.incarnations.get(self._task) == self._incarnation:
            self.superseded = None
            return []
        if self.superseded is None:
            self.superseded = now
        if committed <= self.superseded or now - self._claimed < RESEND_S:
            return []
        self._claimed = now
        return [Opened(task=self._task, incarnation=self._incarnation)]

    # --- How long a promise delayed the task --------------------------------------------------------

    def hold(self, now: float) -> None:
        """The task has more input to process, but its promise forbids it."""
        if self._held_since is None:
            self._held_since = now

    def let_go(self, now: float) -> None:
        """The task continues."""
        if self._held_since is not None and self._promise is not None:
            id_ = self._promise.answer.id
            self._waited_s[id_] = max(self._waited_s.get(id_, 0.0), now - self._held_since)
        self._held_since = None

    def take_waited(self, id_: str) -> float:
        """The longest delay, in seconds, that the promise for a change caused; the next call returns 0."""
        return self._waited_s.pop(id_, 0.0)
