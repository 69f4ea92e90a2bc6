"""Stores a task's snapshot on disk: blocks of source tuples and one manifest, in RocksDB. Entry: `StateStore`.

Faust tables were considered and rejected. They demand a changelog topic per table and write a record per key to it,
while here the source topics are the changelog. A snapshot is a few large blocks and must replace its
manifest in the same atomic write.

Keys: `m` the manifest (JSON); `b` + stream ordinal (2) + first row (8) + rows (4), big endian: one block. Blocks are
added in small pieces as tuples arrive; they are not part of the snapshot until a manifest names them. One write batch
holds the last blocks, deletions of blocks that no window needs, and the new manifest. So after a crash the table is the
old snapshot or the new one, and `roll_back` deletes the blocks beyond it. The manifest is written after the Kafka
commit it belongs to, never before: the disk is at or behind the committed cut.

If a write fails (disk full), the table is closed and stays as it was; the task continues without it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rocksdict import Rdict, WriteBatch

from operators.state.checkpoint import Block, Checkpoint
from schemas.codecs.blocks import decode_block, encode_block
from schemas.errors import StateError
from schemas.messages.commits import Floor, StreamPoint
from schemas.messages.formats import check_format
from services.files.rocks_store import RocksStore, block_options, scan
from services.recovery.starting_point import Snapshot

FORMAT = 1
BLOCK_TUPLES = 8_192
"""Rows per block: with the usual few columns 100 to 300 KiB."""

_KEY = struct.Struct(">cHQI")
_MANIFEST = b"m"


class DamagedTableError(StateError):
    """RocksDB finds the table's files damaged; the only remedy is to empty the table."""


class StateStore(RocksStore):
    """The table of one task. Owned by one thread at a time.

    Args:
        path: the table's folder, made if missing.
        streams: stream names in their order of first use; their ordinals are part of the keys.
    """

    def __init__(self, path: Path, streams: Sequence[str]) -> None:
        """Open the table.

        Raises:
            DamagedTableError: its files are damaged.
            StateError: the folder cannot be used.
        """
        self.path = path
        self._streams = list(streams)
        self._stored: dict[int, list[tuple[int, int]]] = {}
        self._open()

    def _open(self) -> None:
        # Small buffers save memory, and a high number keeps merges rare: the table is read only when a task starts.
        options = block_options(1 << 20, 16)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._table = Rdict(str(self.path), options)
            self._stored = {ordinal: [] for ordinal in range(len(self._streams))}
            for _, ordinal, first, rows in self._keys():
                self._stored.setdefault(ordinal, []).append((first, rows))
        except Exception as error:  # rocksdict raises bare Exception
            self.close()
            kind = DamagedTableError if str(error).startswith("Corruption") else StateError
            raise kind(f"state table {self.path} cannot be opened: {error}") from None

    def _keys(self) -> list[tuple[bytes, int, int, int]]:
        return [(key, *_KEY.unpack(key)[1:]) for key, _ in scan(self._open_table(), b"b", values=False)]

    def _open_table(self) -> Rdict:
        if self._table is None:
            raise StateError(f"state table {self.path} is closed")
        return self._table

    def roll_back(self) -> Snapshot | None:
        """Return to the last snapshot: delete the blocks that were added after it, and return its manifest.

        Returns:
            None in a table without a snapshot, which is empty afterwards.

        Raises:
            StateError: the manifest is damaged.
            NewerFormatError: a newer Weir has written it.
        """
        try:
            raw = self._open_table().get(_MANIFEST)
        except Exception as error:  # rocksdict raises bare Exception
            raise StateError(f"manifest in {self.path} cannot be read: {error}") from None
        if raw is None:
            self._forget_beyond([])
            return None
        try:
            found = json.loads(bytes(raw))
            check_format(found["v"], FORMAT, f"snapshot in {self.path}")
            if found["streams"] != self._streams:
                raise StateError(f"snapshot in {self.path} is of streams {found['streams']}, not {self._streams}")
            self._forget_beyond(found["blocks"])
            if found["blocks"] != (there := _summary(self._stored)):
                raise StateError(f"snapshot in {self.path} has blocks {there}, its manifest says {found['blocks']}")
            points = {
                (topic, int(number)): tuple(
                    StreamPoint(offset, max_ts, tuple(Floor(*floor) for floor in floors))
                    for offset, max_ts, floors in streams
                )
                for topic, number, streams in found["points"]
            }
            return Snapshot(found["cluster"], found["query"], found["epoch"], found["cut"], points)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"snapshot in {self.path} has a damaged manifest: {error}") from None

    def _forget_beyond(self, summary: Sequence[Sequence[int]]) -> None:
        """Delete blocks that were added after the manifest; `summary` is its list of blocks."""
        ends = dict(enumerate(first + rows for first, _, rows in summary))
        batch = WriteBatch(raw_mode=True)
        kept = {
            ordinal: [(first, rows) for first, rows in stored if first < ends.get(ordinal, 0)]
            for ordinal, stored in self._stored.items()
        }
        for ordinal, stored in self._stored.items():
            for first, rows in stored:
                if first >= ends.get(ordinal, 0):
                    batch.delete(_KEY.pack(b"b", ordinal, first, rows))
        self._write(batch)
        self._stored = kept

    def blocks(self) -> Iterator[Block]:
        """Iterate over all blocks, ascending by their first tuple's ts; those of a stream in row order.

        Raises:
            StateError: a block is damaged.
        """
        try:
            keys = self._keys()
        except Exception as error:  # rocksdict raises bare Exception
            raise StateError(f"blocks in {self.path} cannot be read: {error}") from None
        streams = [self._read(list(own)) for _, own in itertools.groupby(keys, key=lambda key: key[1])]
        yield from heapq.merge(*streams, key=lambda block: int(block.batch.ts[0]))

    def _read(self, keys: Iterable[tuple[bytes, int, int, int]]) -> Iterator[Block]:
        table = self._open_table()
        for key, ordinal, first, rows in keys:
            name = self._streams[ordinal] if ordinal < len(self._streams) else f"#{ordinal}"
            position = f"{self.path}, stream {name}, row {first}"
            try:
                raw = bytes(table[key])
            except Exception as error:  # rocksdict raises bare Exception
                raise StateError(f"block at {position} cannot be read: {error}") from None
            block = decode_block(raw, position)
            if (block.stream, block.first_row, len(block.batch)) != (name, first, rows):
                raise StateError(f"block at {position} is of stream {block.stream}, row {block.first_row}")
            yield Block(block.stream, block.first_row, block.batch)

    def add(self, blocks: Sequence[Block]) -> int:
        """Add blocks that the next `write` will make part of its snapshot.

        Returns:
            Bytes of the added blocks.

        Raises:
            StateError: the blocks could not be written; the table is closed and keeps its last snapshot.
        """
        size = 0
        for block in blocks:
            ordinal = self._streams.index(block.stream)
            for begin in range(0, len(block.batch), BLOCK_TUPLES):
                part = block.batch.slice(begin, min(begin + BLOCK_TUPLES, len(block.batch)))
                first = block.first_row + begin
                raw = encode_block(block.stream, first, part)
                batch = WriteBatch(raw_mode=True)
                batch.put(_KEY.pack(b"b", ordinal, first, len(part)), raw)
                self._write(batch)
                self._stored[ordinal].append((first, len(part)))
                size += len(raw)
        return size

    def write(self, snapshot: Snapshot, checkpoint: Checkpoint) -> int:
        """Add a checkpoint's blocks and make `snapshot` the manifest of all that were added.

        Returns:
            Bytes of the new blocks.

        Raises:
            StateError: the snapshot could not be written; the table is closed and keeps its former snapshot.
        """
        size = self.add(checkpoint.blocks)
        batch = WriteBatch(raw_mode=True)
        kept: dict[int, list[tuple[int, int]]] = {}
        for ordinal, stored in self._stored.items():
            live = checkpoint.live_from.get(self._streams[ordinal], 0)
            kept[ordinal] = [(first, rows) for first, rows in stored if first + rows > live]
            for first, rows in stored:
                if first + rows <= live:
                    batch.delete(_KEY.pack(b"b", ordinal, first, rows))
        batch.put(_MANIFEST, self._manifest(snapshot, kept))
        self._write(batch, flush=True)
        self._stored = kept
        return size

    def _write(self, batch: WriteBatch, *, flush: bool = False) -> None:
        table = self._open_table()
        try:
            table.write(batch)
            if flush:
                # Without a flush RocksDB would notice a full disk only after later writes have reached its log.
                table.flush()
        except Exception as error:  # rocksdict raises bare Exception
            self.close()
            raise StateError(f"snapshot cannot be written to {self.path}: {error}") from None

    def _manifest(self, snapshot: Snapshot, kept: Mapping[int, list[tuple[int, int]]]) -> bytes:
        points = [
            [
                topic,
                number,
                [[p.offset, p.max_ts, [[f.offset, f.cut] for f in p.floors]] for p in streams],
            ]
            for (topic, number), streams in snapshot.points.items()
        ]
        return json.dumps(
            {
                "v": FORMAT,
                "streams": self._streams,
                "cluster": snapshot.cluster,
                "query": snapshot.fingerprint,
                "epoch": snapshot.epoch,
                "cut": snapshot.cut,
                "points": points,
                "blocks": _summary(kept),
            }
        ).encode()

    def wipe(self) -> None:
        """Empty the table.

        Raises:
            StateError: the folder cannot be used.
        """
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._open()


def _summary(stored: Mapping[int, list[tuple[int, int]]]) -> list[list[int]]:
    """Per stream the first row, the number of blocks and of rows, as a manifest lists them."""
    return [
        [min((first for first, _ in blocks), default=0), len(blocks), sum(rows for _, rows in blocks)]
        for _, blocks in sorted(stored.items())
    ]
