"""The coordinator's side of the barrier: takes up requests, waits for answers, decides.

`coordinator.Coordinator` calls `Coordination.decide` with each view of the log and appends the messages that it
returns. Pure. Apart from how long it has waited it remembers nothing that is not in the log, so a successor continues
where it ended, and two coordinators at once do no harm. The protocol is in `services.control.barrier`.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.messages.control import BarrierMessage, Cut, Propose, Request, Withdraw
from services.control.barrier import View
from services.control.plan_versions import PREPARED

PREPARATION_S = 120.0
"""How much longer tasks may take to answer while the next plan version is prepared beside them."""

RESEND_S = 1.0
"""A message that has had no effect in the log after this long is sent again."""

BY = "coordinator"
AUTO = "auto"


class Coordination:
    """Decides for one query.

    Args:
        tasks: how many the query has, where its tasks do not report it (`schemas.messages.control.Opened`).
        check: why a request cannot be taken up; empty when it can.
        distributed_auto: the strategy that `auto` chooses for a distributed query.
    """

    def __init__(self, tasks: int, check: Callable[[Request], str], distributed_auto: str = "auto") -> None:
        self._tasks = tasks
        self._check = check
        self._distributed_auto = distributed_auto
        self._waiting_for: str | None = None
        self._since = 0.0
        self._sent: tuple[BarrierMessage, float] | None = None

    def decide(self, view: View, now: float) -> list[BarrierMessage]:
        """The messages to append now.

        Args:
            view: the newest view of the log.
            now: monotonic seconds.
        """
        message = self._next(view, now)
        if message is None:
            return []
        if self._sent is not None and self._sent[0] == message and now - self._sent[1] < RESEND_S:
            return []
        self._sent = message, now
        return [message]

    def _next(self, view: View, now: float) -> BarrierMessage | None:
        if view.open is None:
            self._waiting_for = None
            return self._take_up(view.waiting[0], view) if view.waiting else None
        proposal = view.open
        if self._waiting_for != proposal.id:
            self._waiting_for, self._since = proposal.id, now
        if view.refusals:
            answer = min(view.refusals, key=lambda answer: answer.task)
            return Withdraw(id=proposal.id, reason=f"task {answer.task} refused: {answer.error}", by=BY)
        if not view.missing:
            return Cut(id=proposal.id, cut=max(view.least_cut, proposal.at or 0))
        waited_s = proposal.timeout_ms / 1000
        prepared = bool(view.tasks) and proposal.strategy in PREPARED
        if prepared:
            waited_s += PREPARATION_S
        if now - self._since < waited_s:
            return None
        named = ", ".join(map(str, view.missing[:8])) + (", ..." if len(view.missing) > 8 else "")
        hint = "; if the next plan cannot catch up beside this one, ask for moving-state" if prepared else ""
        reason = (
            f"{len(view.missing)} of {proposal.tasks} tasks did not answer within {waited_s:g} s (task {named}): "
            f"is their worker running, and not still recovering?{hint}"
        )
        return Withdraw(id=proposal.id, reason=reason, by=BY)

    def _take_up(self, request: Request, view: View) -> BarrierMessage:
        problem = self._check(request)
        if problem:
            return Withdraw(id=request.id, reason=problem, by=BY)
        is_distributed = view.tasks > 0
        return Propose(
            id=request.id,
            plan=request.plan,
            strategy=self._distributed_auto if is_distributed and request.strategy == AUTO else request.strategy,
            fingerprint=request.fingerprint,
            tasks=view.tasks or self._tasks,
            at=request.at,
            timeout_ms=request.timeout_ms,
            prefer=request.prefer,
        )
