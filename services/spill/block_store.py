"""Stores spilled state on disk: blocks of bytes by key, in RocksDB. Entry: `SpillStore`.

    folder/weir-spill      marks the folder as Weir's, with its format
    (files without a name  are mapped as memory: state that must stay at hand, see `operators.kernels.pages`)
    folder/blocks/         the RocksDB table: `b` + key: a block; `n` + key: its length, 4 bytes, big endian

A block is written once, read once or twice and deleted, so there is no write-ahead log. Blocks reach the disk in the
background when a buffer of BUFFER_BYTES is full, and for certain with `flush`. A process that dies before `flush` loses
the rest; no component relies on it. File merges never block writers: readers know the key they want, so many files do
not slow them down. Nothing is cached: a part is read when it is joined, and memory is scarce.

Every failure is a `SpillError` that says what to do. A full disk refuses new blocks; blocks that were put before can
still be read, from the buffers if necessary.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch, WriteOptions

from operators.kernels.pages import Pages
from schemas.errors import SpillError
from schemas.messages.formats import check_format
from services.files.rocks_store import RocksStore, block_options, scan

FORMAT = 1
BUFFER_BYTES = 2 << 20
BUFFERS = 6
"""Upper limit of the buffers of BUFFER_BYTES that the store fills while the disk is behind. When all are full, a put
waits until one is written. On a disk that other processes keep busy, small buffers cut the longest wait from 230 ms to
50 ms."""

MERGED_FILES = 64
"""How many files of one buffer each a background thread merges."""

_OPEN_FILES = 256
_NEVER = 1 << 20
_MARK = "weir-spill"
_CONFIG = "rocksdict-config.json"
"""The file that rocksdict adds to RocksDB's files."""
_BLOCK = b"b"
_LENGTH = b"n"
_SIZE = struct.Struct(">I")


class SpillStore(RocksStore):
    """The spilled blocks of one task; an `operators.spill.block_store.BlockStore`. Owned by one thread at a time.

    Args:
        path: the store's folder. It is made if missing. An existing folder must be empty or made by a SpillStore, whose
            blocks stay.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder.

        Raises:
            SpillError: the folder is not Weir's, is in use, is damaged, or cannot be used.
            NewerFormatError: a newer Weir has made it.
        """
        self.path = path
        self._sizes: dict[str, int] = {}
        self._claim()
        self._open()

    def _claim(self) -> None:
        """Mark the folder as Weir's, or check its mark."""
        mark = self.path / _MARK
        begins = "spilled state of Weir, format "
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = sorted(entry.name for entry in self.path.iterdir())
            if not others:
                mark.write_text(f"{begins}{FORMAT}\n")
                return
            found = mark.read_text() if _MARK in others else None
        except (OSError, UnicodeDecodeError) as error:
            raise SpillError(
                f"spill folder {self.path} cannot be used: {error}; give a folder that Weir may write to"
            ) from None
        if found is None:
            raise SpillError(
                f"spill folder {self.path} holds {others[0]!r} and is not Weir's; give an empty folder or a new one"
            )
        version = found.removeprefix(begins).removesuffix("\n")
        if not (found.startswith(begins) and version.isdecimal()):
            raise SpillError(f"spill folder {self.path} says {found[:60]!r}, no mark of Weir; give an empty folder")
        check_format(int(version), FORMAT, f"spill folder {self.path}")

    def _open(self) -> None:
        options = block_options(BUFFER_BYTES, MERGED_FILES)
        options.set_max_write_buffer_number(BUFFERS)
        options.set_level_zero_slowdown_writes_trigger(_NEVER)
        options.set_level_zero_stop_writes_trigger(_NEVER)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        options.set_bytes_per_sync(1 << 20)
        options.set_max_open_files(_OPEN_FILES)
        uncached = BlockBasedOptions()
        uncached.disable_cache()
        options.set_block_based_table_factory(uncached)
        unlogged = WriteOptions()
        unlogged.disable_wal = True
        try:
            table = self._table = Rdict(str(self.path / "blocks"), options)
            table.set_write_options(unlogged)
            sizes = scan(table, _LENGTH, values=True)
            self._sizes = {key[1:].decode(): _SIZE.unpack(size)[0] for key, size in sizes}
        except Exception as error:  # rocksdict raises bare Exception
            self.close()
            raise self._error("cannot be opened", error) from None

    def put(self, key: str, raw: bytes) -> None:
        """Store a block; replaces a former block of the same key.

        Raises:
            SpillError: the disk is full or fails; the block is not stored.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(_BLOCK + key.encode(), raw)
        batch.put(_LENGTH + key.encode(), _SIZE.pack(len(raw)))
        self._do(f"block {key!r} cannot be written", lambda table: table.write(batch))
        self._sizes[key] = len(raw)

    def get(self, key: str) -> bytes:
        """Read the block of a key.

        Raises:
            SpillError: the key has no block, or the block is damaged or cannot be read.
        """
        raw = None
        if key in self._sizes:
            raw = self._do(f"block {key!r} cannot be read", lambda table: table.get(_BLOCK + key.encode()))
        if raw is None:
            raise SpillError(
                f"block {key!r} is not in spill folder {self.path}: something else has deleted it; "
                "run again from the sources with an empty folder"
            )
        return bytes(raw)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete blocks; keys without a block are ignored. The disk space is freed later, by merges."""
        known = [key for key in keys if key in self._sizes]
        batch = WriteBatch(raw_mode=True)
        for key in known:
            batch.delete(_BLOCK + key.encode())
            batch.delete(_LENGTH + key.encode())
        if known:
            self._do(f"{len(known)} blocks cannot be deleted", lambda table: table.write(batch))
        for key in known:
            self._sizes.pop(key, None)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, ascending."""
        return sorted(key for key in self._sizes if key.startswith(prefix))

    def map_file(self, size: int) -> Pages:
        """Map so many bytes of a new file, zeros. It has no name and stays open only as a mapping, so nothing of it
        stays behind.

        Raises:
            SpillError: the disk has no room for it, or fails.
        """
        try:
            with tempfile.TemporaryFile(dir=self.path) as file:
                # Without room, writing to the mapping would end the process.
                os.posix_fallocate(file.fileno(), 0, size)
                return _map(file.fileno(), size)
        except OSError as error:
            raise self._error(f"{size:,} bytes of state cannot be kept in a file", error) from None

    def flush(self) -> None:
        """Make all puts and deletions durable.

        Raises:
            SpillError: the disk is full or fails; what was durable before stays so.
        """
        self._do("blocks cannot be written out", lambda table: table.flush())

    def size_bytes(self) -> int:
        """Bytes of all stored blocks. The folder may be larger until merges have removed deleted blocks."""
        return sum(self._sizes.values())

    def wipe(self) -> None:
        """Empty the store.

        Raises:
            SpillError: the folder cannot be used.
        """
        self.close()
        shutil.rmtree(self.path / "blocks", ignore_errors=True)
        self._open()

    def remove(self) -> None:
        """Close the store and delete its own files; the folder and other files stay.

        Raises:
            SpillError: a file cannot be deleted.
        """
        self.close()
        blocks = self.path / "blocks"
        try:
            Rdict.destroy(str(blocks), Options(raw_mode=True))
            (blocks / _CONFIG).unlink(missing_ok=True)
            if blocks.is_dir() and not any(blocks.iterdir()):
                blocks.rmdir()
            (self.path / _MARK).unlink(missing_ok=True)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._error("what is not needed any more cannot be deleted", error) from None

    def _do(self, failed: str, action: Callable[[Rdict], Any]) -> Any:
        if self._table is None:
            raise SpillError(f"spill folder {self.path} is closed: {failed}")
        try:
            return action(self._table)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._error(failed, error) from None

    def _error(self, failed: str, error: Exception) -> SpillError:
        """Make an error of one line: what failed, why, and what to do."""
        why = " ".join(str(error).split())
        if "No space left" in why or "File too large" in why or "Disk quota exceeded" in why:
            advice = "the disk is full: free some room or give a folder on another disk"
        elif "Too many open files" in why:
            advice = "the process has too many files open: raise its limit (ulimit -n)"
        elif "lock" in why.lower() and why.startswith("IO error"):
            advice = "another process uses it: stop that one or give another folder"
        elif why.startswith("Corruption"):
            advice = "its files are damaged: empty the folder and run again from the sources"
        else:
            advice = "see that the disk works and that Weir may write to the folder"
        return SpillError(f"spill folder {self.path}: {failed}: {why}; {advice}")


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def _map(file: int, size: int) -> Pages:
    """Map the first bytes of a file. The descriptor may be closed, whereas Python's `mmap` keeps a copy of it.

    Raises:
        OSError: there are too many mappings.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_char * size).from_address(address)
    weakref.finalize(pages, _LIBC.munmap, address, size).atexit = False
    return np.frombuffer(pages, np.uint8)
