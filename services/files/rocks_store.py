"""A RocksDB table that holds blocks of bytes. The stores of snapshots and of spilled state build on `RocksStore`.

A key begins with a letter for its kind.
"""

from __future__ import annotations

import contextlib

from rocksdict import DBCompressionType, Options, Rdict


def block_options(buffer_bytes: int, merged_files: int) -> Options:
    """Options of a table of compressed blocks.

    Args:
        buffer_bytes: how much is written to one file.
        merged_files: how many such files a background thread merges.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.none())  # blocks are compressed already
    options.set_write_buffer_size(buffer_bytes)
    options.set_level_zero_file_num_compaction_trigger(merged_files)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    return options


def scan(table: Rdict, kind: bytes, *, values: bool) -> list[tuple[bytes, bytes]]:
    """Read the entries of a kind, ascending by key.

    Args:
        values: False for keys only; then all values are empty.

    Raises:
        Exception: the files are damaged; rocksdict raises no other class.
    """
    found = []
    it = table.iter()
    try:
        it.seek(kind)
        while it.valid() and it.key()[:1] == kind:
            found.append((bytes(it.key()), bytes(it.value()) if values else b""))
            it.next()
        it.status()  # raises if damage, not the end, has stopped the iterator
    finally:
        del it  # a traceback would keep the iterator alive, and the iterator the table's lock
    return found


class RocksStore:
    """The part of a store that owns its open table; None while it is closed."""

    _table: Rdict | None = None

    def close(self) -> None:
        """Close the table. May be called twice. What was not flushed may be lost."""
        table, self._table = self._table, None
        if table is not None:
            with contextlib.suppress(Exception):  # rocksdict raises bare Exception
                table.close()
