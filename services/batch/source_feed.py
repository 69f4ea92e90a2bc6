"""`SourceFeed` feeds an engine from files: chooses the next block, writes late and dead records, tracks event time.

`FileRun` uses it. The next block comes from the source with the lowest watermark, so that no source runs ahead of the
others in event time and few tuples wait in the engine. The order of blocks depends on the files alone, never on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import orjson

from operators.engine.intake import LateRows
from schemas.columns import Batch
from services.batch.run_statistics import RunStatistics
from services.files.readers import SourceReader
from services.files.sinks import LineSink
from services.files.sources import SourceBlock, SourceFile

PARTITION: Final = 0
"""A file is one partition of its stream."""


class TupleReceiver(Protocol):
    """The engine that receives the tuples."""

    def push(self, stream: str, partition: int, batch: Batch) -> LateRows:
        """Take tuples of one partition in arrival order."""
        ...

    def close(self, stream: str, partition: int) -> None:
        """The partition has ended."""
        ...

    def partition_watermark(self, stream: str, partition: int) -> int:
        """The watermark of one partition."""
        ...


class SourceFeed:
    """The sources of an engine, read to their ends.

    Attributes:
        earliest: smallest event time (ms) so far; None before the first tuple.
        latest: largest event time (ms) so far; 0 before the first tuple.
        first_dead: the first dead letter as `file:line: reason`, for a message.
    """

    def __init__(
        self,
        sources: Mapping[str, SourceFile],
        statistics: RunStatistics,
        *,
        late: LineSink | None,
        dead_letters: LineSink | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Args:
        sources: by stream name.
        statistics: counts the dead letters.
        late: the file of late records; None to write none.
        dead_letters: the file of dead letters; None to write none.
        progress: called with the bytes read so far.
        """
        self.earliest: int | None = None
        self.latest = 0
        self.first_dead = ""
        self._sources = sources
        self._statistics = statistics
        self._late = late
        self._dead_letters = dead_letters
        self._progress = progress
        self._positions = dict.fromkeys(sources, 0)
        self._readers = {name: SourceReader(source) for name, source in sources.items()}
        self._open = list(self._readers)
        self._first: dict[str, SourceBlock | None] = {}

    def samples(self) -> dict[str, Batch]:
        """Wait for the first block of every source; returns their tuples. `begin` hands them to the engine."""
        self._first = {name: reader.next() for name, reader in self._readers.items()}
        return {name: block.decoded.batch for name, block in self._first.items() if block is not None}

    def begin(self, task: TupleReceiver) -> None:
        """Hand the engine the blocks that `samples` has read."""
        for name, block in self._first.items():
            self._take(task, name, block)
        self._first = {}

    def next_source(self, task: TupleReceiver) -> str | None:
        """The source with the lowest watermark; None when all have ended."""
        return min(self._open, key=lambda name: task.partition_watermark(name, PARTITION), default=None)

    def waiting(self, name: str) -> bool:
        """Whether `take` would wait for the writer of a pipe."""
        reader = self._readers[name]
        return reader.source.live and not reader.ready()

    def take(self, task: TupleReceiver, name: str) -> None:
        """Hand the engine the next block of a source, or close the partition if the source has ended.

        Raises:
            DataError: the source cannot be read further.
        """
        self._take(task, name, self._readers[name].next())

    def stop(self) -> None:
        """Let all readers end."""
        for reader in self._readers.values():
            reader.stop()

    def _take(self, task: TupleReceiver, name: str, block: SourceBlock | None) -> None:
        if block is None:
            task.close(name, PARTITION)
            self._open.remove(name)
            return
        batch = block.decoded.batch
        if len(batch):
            late = task.push(name, PARTITION, batch).late
            if self._late is not None and late.any():
                self._late.write(block.records(late))
            self.latest = max(self.latest, int(batch.ts.max()))
            self.earliest = min(int(batch.ts.min()), self.latest if self.earliest is None else self.earliest)
        if block.decoded.dead:
            self._record_dead(name, block)
        if self._progress is not None:
            self._positions[name] = block.position
            self._progress(sum(self._positions.values()))

    def _record_dead(self, name: str, block: SourceBlock) -> None:
        """Count dead letters and write them to their file."""
        dead = block.decoded.dead
        self._statistics.dead_letters += len(dead)
        by_stream = self._statistics.dead_by_stream
        by_stream[name] = by_stream.get(name, 0) + len(dead)
        if not self.first_dead:
            self.first_dead = f"{self._sources[name].name}:{block.lines[0]}: {dead[0].reason}"
        if self._dead_letters is None:
            return
        letters = [
            orjson.dumps(
                {
                    "reason": letter.reason,
                    "source": name,
                    "file": self._sources[name].name,
                    "line": line,
                    # Bytes that are not UTF-8 are written as \xff; everything else stays unchanged.
                    "raw": letter.raw.decode("utf-8", "backslashreplace"),
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for letter, line in zip(dead, block.lines, strict=True)
        ]
        self._dead_letters.write(b"".join(letters))
