"""Runs a task's epochs: reads until the next epoch is due, advances the program to the watermark, and delivers.

`services.task.task` runs an `EpochLoop` in the task's thread once the replay has ended.
"""

from __future__ import annotations

import time

from schemas.messages.control import COMPUTING
from services.kafka.topics import Lane
from services.task.alignment import Alignment
from services.task.commits import Committer
from services.task.context import TaskContext
from services.task.epoch_timer import EpochTimer
from services.task.inbox import Arrival, FlushRequest, Inbox
from services.task.program import LOOK_S
from services.task.spill import QUIET_S

REJECTED_BYTES = 16 << 20
"""Bytes of rejected records that an epoch collects before it is delivered early."""

STATISTICS_S = 1.0

PREPARING_S = 0.5
"""Epochs are at least so far apart while nobody waits for them: each costs a transaction."""


class EpochLoop:
    """The epochs of one incarnation of a task.

    Attributes:
        slowest: partitions that the watermark waits for, as of the last report.
        stopping: set to end the loop; the inbox must be woken, too.
    """

    def __init__(self, context: TaskContext, inbox: Inbox, alignment: Alignment, committer: Committer) -> None:
        self.slowest: frozenset[Lane] = frozenset()
        self.stopping = False
        self._context = context
        self._inbox = inbox
        self._alignment = alignment
        self._committer = committer
        self._reported = 0.0
        self._looked = float("-inf")
        self._last_input = time.monotonic()
        self._takes_over = self._ended = False
        self._busy = (time.monotonic(), 0.0)

    def run(self) -> bool:
        """Run epochs until the loop is stopped, or the task's plan ends; True if the open epoch is to be delivered."""
        context = self._context
        timer = EpochTimer(context.spec.settings.epoch_ms / 1000, time.monotonic())
        while not self.stopping:
            if self._ends():
                self._conclude()
                return False
            self._read(timer)
            timer.epoch_began(time.monotonic())
            self.epoch(final=False)
            timer.epoch_ended(time.monotonic(), PREPARING_S if context.changes.prepares else 0.0)
        return True

    def _ends(self) -> bool:
        """Whether the task has nothing more to do for its plan."""
        context = self._context
        suspended = context.feedback is not None and not context.feedback.nothing_suspended()
        return context.changes.ends_at(context.engine.cut) and context.program.settled and not suspended

    def _conclude(self) -> None:
        """End the task with its plan: commit the position of every partition, unless the last epoch has, and read no
        more."""
        context = self._context
        self._alignment.pause(frozenset(context.lanes))
        if not self._ended or context.rejected.records or context.program.has_output() or self._committer.moved():
            self._committer.deliver(commit=True, ending=True)
            context.trace.epoch_ended(context.engine.cut)
        context.changes.conclude(time.monotonic())

    def _read(self, timer: EpochTimer) -> None:
        """Feed the engine until the next epoch is due."""
        context = self._context
        context.step = self._what_it_reads()
        while not self.stopping and context.rejected.size_bytes < REJECTED_BYTES:
            if context.changes.hurries and self._inbox.empty:
                timer.hurry()
            seconds_left = timer.seconds_left(time.monotonic())
            item = self._inbox.get(0 if self._clean_up_if_quiet() else min(max(seconds_left, 0), LOOK_S))
            if isinstance(item, FlushRequest):
                self.epoch(final=True)
                item.done.set()
            if context.changes.looks_within_epochs and time.monotonic() - self._looked >= LOOK_S:
                self._look(time.monotonic())
            if isinstance(item, Arrival):
                self._take(item)
            self._take_retained()
            if context.predecessor is not None and context.predecessor.over and not self._takes_over:
                self._takes_over = True
                timer.request()
            if context.changes.is_awaited(self._possible_cut()):
                timer.request()
            self._alignment.pause_lanes_ahead()
            if context.feedback is not None and context.feedback.serve(context.engine.watermark(), time.monotonic()):
                timer.request()
            if seconds_left <= 0:
                return

    def _take_retained(self) -> None:
        """Feed what has waited for the former plan's tasks, or for a schema."""
        context = self._context
        for lane in context.lanes.values():
            if context.predecessor is not None or lane.waits_for:
                context.take(lane)
        context.step = self._what_it_reads()

    def _what_it_reads(self) -> str:
        """The step of a task that reads: what it waits for, if a schema is missing."""
        return next((lane.waits_for for lane in self._context.lanes.values() if lane.waits_for), "reading")

    def _possible_cut(self) -> int:
        """How far an epoch could advance now, as far as its input and answers of the tasks below are concerned."""
        context = self._context
        watermark = context.engine.watermark()
        return watermark if context.feedback is None else min(watermark, context.feedback.limit)

    def _look(self, now: float) -> None:
        self._looked = now
        self._context.changes.look(self._committer.last_commit, now)

    def _take(self, item: Arrival) -> None:
        context = self._context
        lane = context.lanes[item.lane]
        if item.batch is None:
            if lane.may_idle and not context.is_closed(lane) and not lane.waits_for:
                lane.set_idle(context.engine, True)
            return
        lane.retained.append(item.batch)
        if not context.is_closed(lane) and not lane.waits_for:
            context.take(lane)
            self._last_input = time.monotonic()

    def _clean_up_if_quiet(self) -> bool:
        """Run a cleanup step if no input arrives; the next epoch commits its results."""
        now, spill = time.monotonic(), self._context.spill
        quiet = now - self._last_input >= QUIET_S and self._inbox.empty
        return spill is not None and quiet and spill.run_cleanup_step(now)

    def epoch(self, final: bool) -> None:
        """Advance to the watermark, and deliver what is due.

        Args:
            final: deliver and commit everything, due or not.
        """
        context, committer, engine = self._context, self._committer, self._context.engine
        now = time.monotonic()
        self._look(now)
        watermark = engine.watermark()
        if context.silence is not None:
            watermark = context.silence.watermark(watermark)
        due_cut = cut = context.changes.limit(watermark, now)
        has_results = answering = False
        if context.feedback is not None:
            context.feedback.serve(due_cut, now)
            cut = min(due_cut, context.feedback.limit)
            answering = context.feedback.has_answers()
        if cut > engine.cut:
            context.step = COMPUTING
            has_results = context.program.advance(cut)
            if context.feedback is not None and not has_results and context.feedback.limit > cut:
                # It has only halted where its plan begins.
                has_results = context.program.advance(min(due_cut, context.feedback.limit))
            context.metrics.epoch.observe(time.monotonic() - now)
            context.trace.joined(now)
            self._alignment.pause_lanes_ahead()
        if context.spill is not None and context.spill.advanced():
            has_results = True
        delivering = has_results or answering or bool(context.rejected.records) or context.program.has_output()
        # Cleanup can reduce the backlog without producing results.
        cleaned_up = context.program.pending_pairs != committer.committed_pending
        begins = committer.start_unrecorded
        moved = committer.moved() or begins or cleaned_up or context.changes.ownership_in_doubt
        due = final or begins or now - committer.last_commit >= context.spec.settings.commit_ms / 1000
        self._ended = self._ends()
        if self._ended:  # the next plan's tasks wait for this commit
            committer.deliver(commit=True, ending=True)
        elif delivering or (due and moved):
            committer.deliver(commit=due or context.changes.must_commit or context.spec.settings.transactional)
        if context.feedback is not None:
            context.feedback.send_requests(now)
        if context.silence is not None:
            context.silence.tell(engine, now)
        if context.spill is not None and not final:
            context.step = "producing pending results"
            context.spill.clean_up_between_epochs(time.monotonic())
        context.changes.observe()  # results do not wait for it
        if now - self._reported >= STATISTICS_S:
            self._reported = now
            self._report()
        if context.program.durable is not None:
            committer.keep_durable(context.program.durable, final)
        context.trace.epoch_ended(engine.cut)

    def _report(self) -> None:
        context, engine = self._context, self._context.engine
        context.metrics.reached(self._committer.committed_cut, time.time() * 1000)
        total_busy_s = context.program.report(context.metrics)
        self.slowest = frozenset(key for key, lane in context.lanes.items() if lane.watermark(engine) <= engine.cut)
        context.metrics.idle.set(sum(lane.idle for lane in context.lanes.values()))
        now = time.monotonic()
        began, busy_s = self._busy
        self._busy = now, total_busy_s
        engine.load = min(1.0, (total_busy_s - busy_s) / max(now - began, 0.001))
