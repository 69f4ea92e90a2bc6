"""Backlogs in spill folders: the pending results that a run leaves for a later cleanup, and the cleanup's progress.

`weir run` calls `save_backlog` if it does not clean up itself; `weir cleanup` starts with `open_backlog`.

    folder/debt.json    two lines: {"format": 1, "sha256": ...} of the second line, and the manifest
    folder/blocks/      the spilled parts (`services.spill.block_store`)

The blocks are durable before the manifest is written, and the manifest is replaced as a whole, so a folder with a
manifest holds the whole backlog. The manifest names the destination before any result is visible there, and the number
of results once all are visible; the blocks are deleted last. So an interrupted cleanup can be repeated, and a finished
cleanup is recorded.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from operators.spill.backlog import Backlog
from operators.spill.block_store import BlockStore
from schemas.codecs.blocks import check_block
from schemas.errors import QueryError, StateError, UsageError
from schemas.messages.formats import check_format
from schemas.query import Query
from services.files.query_files import pick_query
from services.process.fingerprint import fingerprint
from services.spill.block_store import SpillStore

FILE = "debt.json"
FORMAT = 1


class BacklogManifest(msgspec.Struct, frozen=True):
    """A backlog with its query; the content of `debt.json`.

    Attributes:
        id: unique among all backlogs.
        text, query: the program, and the name of its query.
        fingerprint: of the query at the time of the run.
        owed_pairs: upper bound of the pairs of tuples that were not compared.
        pending: the pending results; `debt` in JSON.
        destination: where the cleanup delivers; empty before its first results are visible.
        results: how many results were pending; None until the cleanup has delivered all.
    """

    id: str
    text: str
    query: str
    fingerprint: str
    owed_pairs: int
    pending: Backlog = msgspec.field(name="debt")
    destination: str = ""
    results: int | None = None


class _Head(msgspec.Struct, frozen=True):
    format: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class OpenBacklog:
    """A backlog, its query and its blocks; no other process has them open."""

    folder: Path
    manifest: BacklogManifest
    query: Query
    blocks: BlockStore


def save_backlog(
    folder: Path, blocks: SpillStore, text: str, query: Query, pending: Backlog, owed_pairs: int
) -> BacklogManifest:
    """Make a run's backlog durable.

    Args:
        blocks: the store that holds the spilled parts; it is flushed first.
        text: the program that contains the query.

    Raises:
        StateError: the folder cannot be written.
    """
    blocks.flush()
    manifest = BacklogManifest(uuid.uuid4().hex[:16], text, query.name, fingerprint(query), owed_pairs, pending)
    write(folder, manifest)
    return manifest


def write(folder: Path, manifest: BacklogManifest) -> None:
    """Replace the folder's manifest.

    Raises:
        StateError: the manifest cannot be written; the old one stays.
    """
    body = msgspec.json.encode(manifest)
    head = msgspec.json.encode(_Head(FORMAT, hashlib.sha256(body).hexdigest()))
    replace_file(folder / FILE, head + b"\n" + body + b"\n")


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content atomically and durably.

    Raises:
        StateError: the file cannot be written.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        rename_durably(beside, path)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; see that its disk has room and works") from None


def rename_durably(written: Path, path: Path) -> None:
    """Rename a file whose content is on disk, and make the new name durable."""
    os.replace(written, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(folder: Path) -> BacklogManifest | None:
    """Read the folder's manifest; None if there is none.

    Raises:
        StateError: the manifest is damaged; the message says what to do.
        NewerFormatError: a newer Weir has written it.
    """
    path = folder / FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from None
    head_line, _, rest = raw.partition(b"\n")
    body = rest.removesuffix(b"\n")
    again = "run the query again from its sources, with an empty folder"
    try:
        head = msgspec.json.decode(head_line, type=_Head)
    except msgspec.DecodeError as error:
        raise StateError(f"{path} is no backlog of Weir ({error}): {head_line[:60]!r}; {again}") from None
    check_format(head.format, FORMAT, f"backlog {path}")
    found = hashlib.sha256(body).hexdigest()
    if found != head.sha256:
        raise StateError(f"{path} is damaged: checksum {found[:16]}, expected {head.sha256[:16]}; {again}")
    try:
        return msgspec.json.decode(body, type=BacklogManifest)
    except msgspec.DecodeError as error:
        raise StateError(f"this Weir cannot read the backlog {path}: {error}; use the Weir that wrote it") from None


def is_cleaned_up(folder: Path) -> bool:
    """Whether a folder has no pending results; deletes the manifest of a finished cleanup.

    Raises:
        StateError: the manifest cannot be read.
    """
    manifest = read(folder)
    if manifest is not None and manifest.results is not None:
        (folder / FILE).unlink()
    return manifest is None or manifest.results is not None


def check_free(folder: Path) -> None:
    """Check that a run may spill to a folder.

    Raises:
        UsageError: the folder holds a backlog of pending results.
        StateError: the manifest cannot be read.
    """
    if not is_cleaned_up(folder):
        raise UsageError(
            f"--spill-dir {folder} holds pending results of query {manifest_in(folder).query!r}: produce them with "
            f"`weir cleanup {folder}`, or give another folder"
        )


def manifest_in(folder: Path) -> BacklogManifest:
    """Read the manifest of a folder that must have one.

    Raises:
        UsageError: the folder has none.
        StateError: as `read`.
    """
    manifest = read(folder)
    if manifest is None:
        raise UsageError(
            f"{folder} holds no backlog; accepted is a folder that `weir run --cleanup none --spill-dir DIR` has left"
        )
    return manifest


@contextmanager
def open_backlog(folder: Path) -> Iterator[OpenBacklog]:
    """Open the backlog of a folder, to clean it up.

    Raises:
        UsageError: the folder has no backlog.
        StateError: the backlog is damaged, or another process has it open.
    """
    manifest = manifest_in(folder)
    try:
        query = pick_query(manifest.text, manifest.query, str(folder / FILE))
    except QueryError as error:
        raise StateError(f"the query in {folder / FILE} is not one of this Weir: {error}") from None
    if fingerprint(query) != manifest.fingerprint:
        raise StateError(
            f"{folder / FILE} is the backlog of query {manifest.fingerprint}, and this Weir reads its text as "
            f"{fingerprint(query)}, with other streams, windows or predicates; use the one that wrote it"
        )
    with closing(BacklogBlocks(SpillStore(folder))) as blocks:
        yield OpenBacklog(folder, manifest, query, blocks)


class BacklogBlocks:
    """The blocks of a backlog: an `operators.spill.block_store.BlockStore` whose errors say what to do about damage."""

    def __init__(self, store: SpillStore) -> None:
        self._store = store

    def put(self, key: str, raw: bytes) -> None:
        """As `SpillStore.put`."""
        self._store.put(key, raw)

    def get(self, key: str) -> bytes:
        """Read a block.

        Raises:
            StateError: the block is damaged or missing.
        """
        raw = self._store.get(key)
        try:
            check_block(raw, f"{self._store.path} under {key!r}")
        except StateError as error:
            raise StateError(
                f"{error}; what it would have given is lost: run the query again from its sources, with an empty folder"
            ) from None
        return raw

    def delete(self, keys: Iterable[str]) -> None:
        """As `SpillStore.delete`."""
        self._store.delete(keys)

    def keys(self, prefix: str) -> list[str]:
        """As `SpillStore.keys`."""
        return self._store.keys(prefix)

    def close(self) -> None:
        """As `SpillStore.close`."""
        self._store.close()


def check_query(manifest: BacklogManifest, query: Query) -> None:
    """Check that a backlog belongs to a query.

    Raises:
        UsageError: the backlog belongs to another query.
    """
    own = fingerprint(query)
    if own != manifest.fingerprint:
        raise UsageError(
            f"the backlog is of query {manifest.query!r} ({manifest.fingerprint}), not of {query.name!r} ({own}): its "
            "streams, windows or predicates are others"
        )


def check_destination(backlog: OpenBacklog, destination: str) -> None:
    """Check that no cleanup to another destination has started.

    Raises:
        UsageError: a cleanup to another destination has started.
    """
    before = backlog.manifest.destination
    if before and before != destination:
        raise UsageError(
            f"a cleanup of {backlog.folder} to {before} has begun, and some results may be there: finish it there, not "
            f"in {destination}"
        )


def note_destination(backlog: OpenBacklog, destination: str) -> None:
    """Record the destination of a cleanup, before any of its results are visible there.

    Raises:
        StateError: the manifest cannot be written.
    """
    if not backlog.manifest.destination:
        write(backlog.folder, msgspec.structs.replace(backlog.manifest, destination=destination))


def mark_cleaned_up(backlog: OpenBacklog, destination: str, results: int) -> None:
    """Record that the destination has all pending results, and delete the blocks.

    Raises:
        StateError: the manifest cannot be written.
    """
    write(backlog.folder, msgspec.structs.replace(backlog.manifest, destination=destination, results=results))
    backlog.blocks.delete(backlog.blocks.keys(""))
