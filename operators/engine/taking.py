"""How engines take tuples in and say how far they may go: the verbs that every engine has of its `Intake`."""

from __future__ import annotations

from operators.engine.intake import Intake, ReplayPoint


class Taking:
    """The part of an engine that its intake answers for; see `Intake`."""

    _intake: Intake

    @property
    def cut(self) -> int:
        """Everything with a smaller ts has been processed."""
        return self._intake.cut

    @property
    def pending_tuples(self) -> int:
        """Tuples taken in that wait for the watermark."""
        return self._intake.pending_tuples

    def close(self, stream: str, partition: int) -> None:
        """The partition has ended."""
        self._intake.close(stream, partition)

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark; a push includes it again."""
        self._intake.set_idle(stream, partition, idle)

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        self._intake.set_clock(stream, partition, max_ts)

    def watermark(self) -> int:
        """The watermark of all partitions: `advance` may go up to it. -1 while one of them has shown nothing."""
        return self._intake.watermark()

    def partition_watermark(self, stream: str, partition: int) -> int:
        """The watermark of one partition."""
        return self._intake.partition_watermark(stream, partition)

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Where to read a partition from, to see again every tuple with ts >= horizon.

        As far as this engine has seen the partition: not below what it was restored to, see `Engine.restore`.
        """
        return self._intake.replay_point(stream, partition, horizon_ms)
