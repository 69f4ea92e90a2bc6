"""Encodes blocks of columns as bytes, for snapshots and spilled groups.

    magic "WEIR" | format (1) | CRC-32 of the rest (4, big endian) | Arrow IPC stream, LZ4-compressed

The Arrow schema's metadata carries the stream's name and the first row id, so a block describes itself.
Reading a block that fails its checksum raises; a damaged block is never used in part.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.columns import Batch, Column, numbers_of
from schemas.errors import StateError
from schemas.messages.formats import check_format
from schemas.query import Type

_HEAD = struct.Struct(">4sBI")
_MAGIC = b"WEIR"
_FORMAT = 1
_TS = "_ts"
    # A block is small: handing its columns to other threads takes several times as long as compressing them here.
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlock:
    """A block read back: rows first_row .. first_row + len(batch) of a stream."""

    stream: str
    first_row: int
    batch: Batch


def encode_block(stream: str, first_row: int, batch: Batch) -> bytes:
    """The bytes of a block. Cost: one pass; Arrow releases the GIL while it compresses."""
    names = list(batch.columns)
    arrays = [Column(Type.BIGINT, batch.ts).to_arrow(), *(batch.columns[name].to_arrow() for name in names)]
    meta = {"stream": stream, "row": str(first_row), "types": ",".join(batch.columns[n].type for n in names)}
    fields = [
        pa.field(_TS, pa.int64()),
        *(pa.field(f"c.{n}", a.type) for n, a in zip(names, arrays[1:], strict=True)),
    ]
    schema = pa.schema(fields, metadata=meta)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITE) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    payload = sink.getvalue()
    return _HEAD.pack(_MAGIC, _FORMAT, zlib.crc32(payload)) + bytes(payload)


def decode_block(raw: bytes, place: str) -> StoredBlock:
    """Read a block. `place` is where it is stored, for errors.

    Raises:
        StateError: it is not a block, or is damaged.
        NewerFormatError: a newer Weir has written it.
    """
    payload = check_block(raw, place)
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload), options=_READ) as reader:
            table = reader.read_next_batch()
        meta = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        types = [Type(name) for name in meta["types"].split(",") if name]
        names = [name.removeprefix("c.") for name in table.schema.names[1:]]
        columns = {n: Column.from_arrow(table.column(f"c.{n}"), t) for n, t in zip(names, types, strict=True)}
        ts = numbers_of(table.column(_TS)).astype(np.int64, copy=False)
        return StoredBlock(meta["stream"], int(meta["row"]), Batch(ts, columns))
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise StateError(f"block at {place} cannot be read: {error}") from None


def check_block(raw: bytes, place: str) -> memoryview:
    """Check that a block is whole, without reading its columns; returns its contents. `place` is for errors.

    Raises:
        StateError: it is not a block, or is damaged.
        NewerFormatError: a newer Weir has written it.
    """
    if len(raw) < _HEAD.size:
        raise StateError(f"block at {place} has {len(raw)} bytes, at least {_HEAD.size} make a block")
    magic, version, checksum = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise StateError(f"block at {place} begins with {raw[:4]!r}, expected {_MAGIC!r}")
    check_format(version, _FORMAT, f"block at {place}")
    payload = memoryview(raw)[_HEAD.size :]
    found = zlib.crc32(payload)
    if found != checksum:
        raise StateError(f"block at {place} is damaged: checksum {found:08x}, expected {checksum:08x}")
    return payload
