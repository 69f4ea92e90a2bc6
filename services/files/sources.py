"""`SourceFile` reads JSON lines, CSV and Parquet as streams of decoded blocks, in bounded memory; also tables.

Opening a source checks all that can be checked without reading records: that the file is there and
readable, its format, a CSV's header, a Parquet file's types. Reading happens in one thread per source
(`SourceReader`), a block or two ahead of the engine: the decoders run without the GIL.

Limits: a record is at most MAX_RECORD_BYTES. A Parquet file must be a file, not a pipe.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.codecs.csv_codec import CsvDecoder, end_of_records
from schemas.codecs.decoded import Decoded
from schemas.codecs.encode import encode_tuples
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.parquet_codec import ParquetDecoder
from schemas.codecs.slots import count_lines
from schemas.columns import Mask
from schemas.errors import DataError, UsageError
from schemas.nested.json_arrays import UnnestingDecoder, json_decoder
from schemas.query import OP_KEY, Stream, Table
from services.formats.changelogs import as_in_files, versions_of, with_operation

BLOCK_BYTES: Final = 1 << 20
"""Read and decoded at a time: some ten thousand records, which fit the cache with their columns."""

PARQUET_ROWS: Final = 32_768
MAX_RECORD_BYTES: Final = 1 << 28

_BOM: Final = b"\xef\xbb\xbf"
_HAS_OPERATION: Final = re.compile(rb'(?:^|,)"?%s"?\s*(?:,|$)' % OP_KEY.encode())
_FORMATS: Final = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
ACCEPTED_NAMES: Final = (
    "*.jsonl, *.ndjson, *.json and *.csv (each also with .gz), *.parquet, or - for standard input"
)


@dataclass(frozen=True, slots=True, eq=False)
class SourceBlock:
    """Consecutive records of a file.

    Attributes:
        decoded: its tuples and dead letters.
        text: the bytes of a JSON block, for writing records unchanged; empty for other formats.
        lines: (dead letters,) the line of each dead letter in the file, from 1 (Parquet: the row, from 1).
        position: bytes of the file read so far, for progress.
    """

    decoded: Decoded
    text: bytes
    lines: list[int]
    position: int

    def records(self, chosen: Mask) -> bytes:
        """The chosen tuples as JSON lines: the original lines if the source is JSON."""
        if not self.text or self.decoded.starts is None:
            return encode_tuples(as_in_files(self.decoded.batch.take(chosen))).data
        starts = self.decoded.starts
        picked = [
            self.text[starts[row] : starts[row + 1]].strip(b" \t\r\n")
            for row in np.unique(self.decoded.rows[np.flatnonzero(chosen)]).tolist()  # several may be of one record
        ]
        return b"".join(line + b"\n" for line in picked)


class SourceFile:
    """An opened source of one stream or table; iterate over `blocks` once.

    Attributes:
        name: the path as given, for messages.
        size: bytes, None where unknown (a pipe).
        live: True when waiting for more data is normal (a pipe, a terminal).
    """

    def __init__(self, stream: Stream | Table, path: str, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Open and check.

        Args:
            block_bytes: how much text is read and decoded at a time.

        Raises:
            DataError: the file is missing, unreadable, or its header or types do not fit the stream.
            UsageError: its name tells no format, or the stream has no timestamp field.
        """
        if isinstance(stream, Stream) and stream.timestamp is None:
            if stream.in_log_order:
                raise UsageError(
                    f"{stream} is read from a topic, where Debezium describes its changes; for a file, declare it "
                    f"without that format, and a field with timestamp = '...'"
                )
            raise UsageError(
                f"{stream} takes the Kafka record's timestamp, which a file does not have: "
                f"declare a field with timestamp = '...'"
            )
        self.stream = stream
        self._table = stream if isinstance(stream, Stream) and stream.is_versioned else None
        self._described = f"source {stream.name!r}" if isinstance(stream, Stream) else str(stream)
        self.name = path
        self.size: int | None = None
        self.live = False
        self._block_bytes = block_bytes
        self._position: Callable[[], int] = lambda: 0
        self.format, packed = self._format(path)
        if isinstance(stream, Stream) and stream.unnested and self.format != "json":
            raise UsageError(f"{self._described}: arrays are read from JSON lines, not from {path}")
        if self.format == "parquet":
            self._open_parquet(path)
            return
        self._read = self._open(path, packed)
        self._rest = self._first_bytes()
        self._lines = 1
        self._decoder: JsonDecoder | UnnestingDecoder | CsvDecoder = json_decoder(self._declared([OP_KEY]))
        self._cut = end_of_lines
        if self.format == "csv":
            self._cut = end_of_records
            self._decoder = self._csv_decoder()

    def _format(self, path: str) -> tuple[str, bool]:
        """The format and whether it is compressed."""
        if path == "-":
            return "json", False
        try:
            mode = Path(path).stat().st_mode
        except OSError as error:
            raise DataError(f"{self._described}: cannot open {path}: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            raise DataError(f"{self._described}: {path} is a folder, expected a file")
        suffixes = [suffix.lower() for suffix in Path(path).suffixes]
        packed = bool(suffixes) and suffixes[-1] == ".gz"
        suffix = suffixes[-2 if packed else -1] if len(suffixes) > packed else ""
        found = _FORMATS.get(suffix)
        if isinstance(self.stream, Table) and self.stream.format is not None:
            found = self.stream.format
        if found is None and not stat.S_ISREG(mode):
            found = "json"  # a named pipe, or the shell's <(command)
        if found is None or (packed and found == "parquet"):
            raise UsageError(
                f"{self._described}: the name of {path} tells no format, "
                f"accepted are {ACCEPTED_NAMES}"
            )
        return found, packed

    def _open(self, path: str, packed: bool) -> Callable[[int], bytes]:
        """A function that reads at most n bytes, b"" at the end; a pipe returns what it has."""
        if path == "-":
            self.live = True
            # Unbuffered: a read returns what is available, and the interpreter can end during a read.
            stdin: Any = sys.stdin.buffer
            if isinstance(stdin, io.BufferedReader):
                os.set_blocking(stdin.fileno(), True)  # else "nothing yet" would look like the end
                stdin = stdin.raw
            read: Callable[[int], bytes] = stdin.read
            return read
        try:
            file = io.FileIO(path)
        except OSError as error:
            raise DataError(f"{self._described}: cannot open {path}: {error.strerror}") from None
        mode = Path(path).stat()
        if stat.S_ISREG(mode.st_mode):
            self.size = mode.st_size
            self._position = file.tell
        else:
            self.live = True
        if not packed:
            return file.read
        unpacked = gzip.GzipFile(fileobj=io.BufferedReader(file, BLOCK_BYTES), mode="rb")
        return unpacked.read

    def _first_bytes(self) -> bytes:
        """The start of the file without a byte order mark. Empty for a pipe, which may have no data yet."""
        if self.live:
            return b""
        return self._more(max(self._block_bytes, len(_BOM))).removeprefix(_BOM)

    def _more(self, size: int) -> bytes:
        try:
            return self._read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.name}: cannot be read further: {error}") from None

    def _csv_decoder(self) -> CsvDecoder:
        """Read the header."""
        while b"\n" not in self._rest and (more := self._more(self._block_bytes)):
            self._rest = (self._rest + more).removeprefix(_BOM)
        end = self._rest.find(b"\n") + 1 or len(self._rest)
        if not self._rest:
            raise DataError(f"{self.name} is empty, expected a CSV header")
        names = [OP_KEY] if _HAS_OPERATION.search(self._rest[:end]) else []
        decoder = CsvDecoder.with_header(self._declared(names), self._rest[:end], self.name)
        self._rest = self._rest[end:]
        self._lines = 2
        return decoder

    def _open_parquet(self, path: str) -> None:
        try:
            self._parquet = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: not a readable Parquet file: {error}") from None
        self.size = Path(path).stat().st_size
        schema = self._parquet.schema_arrow
        self._rows = ParquetDecoder(self._declared(schema.names), schema, path)

    def _declared(self, names: Sequence[str]) -> Stream | Table:
        """The stream or table as a file with these columns has it."""
        return with_operation(self._table) if self._table is not None and OP_KEY in names else self.stream

    def blocks(self) -> Iterator[SourceBlock]:
        """The file's records, block by block, in order.

        Raises:
            DataError: the file cannot be read further; names it.
        """
        return self._parquet_blocks() if self.format == "parquet" else self._text_blocks()

    def _parquet_blocks(self) -> Iterator[SourceBlock]:
        total = max(self._parquet.metadata.num_rows, 1)
        done = 0
        batches = self._parquet.iter_batches(PARQUET_ROWS, columns=self._rows.columns, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{self.name}: cannot be read further after row {done}: {error}") from None
            if batch is None:
                return
            decoded = self._versions(self._rows.decode(batch), b"")
            lines = [done + letter.row + 1 for letter in decoded.dead]
            done += batch.num_rows
            yield SourceBlock(decoded, b"", lines, (self.size or 0) * done // total)

    def _text_blocks(self) -> Iterator[SourceBlock]:
        first = self.live and self._lines == 1
        for block in self._whole_records():
            if first:
                block = block.removeprefix(_BOM)
                first = False
            decoded = self._versions(self._decoder.decode_lines(block), block)
            if self.format == "json":
                lines = [self._lines + letter.row for letter in decoded.dead]
                self._lines += decoded.records
                yield SourceBlock(decoded, block, lines, self._position())
            else:
                lines = self._csv_lines(block, decoded)
                self._lines += count_lines(block)
                yield SourceBlock(decoded, b"", lines, self._position())

    def _versions(self, decoded: Decoded, block: bytes) -> Decoded:
        """The decoded records of a table as versions of its rows."""
        if self._table is None:
            return decoded
        starts = decoded.starts

        def raw(row: int) -> bytes:
            return b"" if starts is None else block[starts[row] : starts[row + 1]].rstrip(b"\r\n")

        return versions_of(self._table, decoded, raw)

    def _csv_lines(self, block: bytes, decoded: Decoded) -> list[int]:
        """The lines of the dead letters; a quoted newline makes a record span several."""
        if not decoded.dead or decoded.starts is None:
            return []
        newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
        starts = decoded.starts[[letter.row for letter in decoded.dead]]
        return [self._lines + before for before in np.searchsorted(newlines, starts).tolist()]

    def _whole_records(self) -> Iterator[bytes]:
        """Blocks cut between records; a last record without newline is a block of its own."""
        rest, self._rest = self._rest, b""
        size = self._block_bytes
        fresh = rest
        while True:
            end = self._cut(rest) if fresh else 0
            if end:
                yield rest[:end]
                rest = rest[end:]
                size = self._block_bytes
            elif len(rest) > MAX_RECORD_BYTES:
                raise DataError(
                    f"{self.name}: the record at line {self._lines} is longer than {MAX_RECORD_BYTES} bytes"
                    f"{' (is a quote not closed?)' if self.format == 'csv' else ''}"
                )
            elif len(rest) >= size:
                size *= 2  # a long record: read in growing pieces, so that its bytes are copied few times
            fresh = self._more(size)
            if not fresh:
                if rest:
                    yield rest
                return
            rest += fresh


def end_of_lines(buffer: bytes) -> int:
    """The end of the last complete line in the buffer; 0 if there is none."""
    return buffer.rfind(b"\n") + 1
