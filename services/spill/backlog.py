"""Debts in spill folders: what a run leaves to be paid later, and how far it is paid.

    folder/debt.json    two lines: {"format": 1, "sha256": ...} of the second line, and the debt
    folder/blocks/      the parts (`services.spill.block_store`)

The blocks are durable before the debt is written, and the debt is replaced as a whole: whoever finds one finds all of
it. Where it is paid to is noted before anything of that can be seen, and that it is paid when all of it can be; blocks
go last. So a payment that dies can be repeated, and one that was finished says so.
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

from operators.spill.backlog import Debt
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


class Manifest(msgspec.Struct, frozen=True):
    """A debt and whose it is.

    Attributes:
        id: no other debt has it.
        text, query: the program, and the name of its query.
        fingerprint: of the query as the run had it.
        owed_pairs: pairs of tuples that were not compared, at most.
        destination: where payment has begun to; empty before.
        results: how many have been paid; None while it is not all.
    """

    id: str
    text: str
    query: str
    fingerprint: str
    owed_pairs: int
    debt: Debt
    destination: str = ""
    results: int | None = None


class _Head(msgspec.Struct, frozen=True):
    format: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class OpenDebt:
    """A debt, its query and its blocks; nobody else has them open."""

    folder: Path
    manifest: Manifest
    query: Query
    blocks: BlockStore


def leave(folder: Path, blocks: SpillStore, text: str, query: Query, debt: Debt, owed_pairs: int) -> Manifest:
    """Make a debt durable.

    Args:
        text: the program that the query is of.

    Raises:
        StateError: the folder cannot be written.
    """
    blocks.flush()
    manifest = Manifest(uuid.uuid4().hex[:16], text, query.name, fingerprint(query), owed_pairs, debt)
    write(folder, manifest)
    return manifest


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the folder's debt.

    Raises:
        StateError: it cannot be written; what was there still is.
    """
    body = msgspec.json.encode(manifest)
    head = msgspec.json.encode(_Head(FORMAT, hashlib.sha256(body).hexdigest()))
    replace_file(folder / FILE, head + b"\n" + body + b"\n")


def replace_file(path: Path, data: bytes) -> None:
    """Let a file have this content, at once and for certain.

    Raises:
        StateError: it cannot be written.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        settle_name(beside, path)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; see that its disk has room and works") from None


def settle_name(written: Path, path: Path) -> None:
    """Give a file that is on the disk its name, for certain."""
    os.replace(written, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(folder: Path) -> Manifest | None:
    """The folder's debt; None where there is none.

    Raises:
        StateError: it is damaged; says what to do.
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
        raise StateError(f"{path} is no debt of Weir ({error}): {head_line[:60]!r}; {again}") from None
    check_format(head.format, FORMAT, f"debt {path}")
    found = hashlib.sha256(body).hexdigest()
    if found != head.sha256:
        raise StateError(f"{path} is damaged: checksum {found[:16]}, expected {head.sha256[:16]}; {again}")
    try:
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise StateError(f"{path} is a debt that this Weir cannot read: {error}; use the one that wrote it") from None


def settled(folder: Path) -> bool:
    """True where nothing is owed; what a debt that is paid has left is deleted.

    Raises:
        StateError: what the folder holds cannot be read.
    """
    manifest = read(folder)
    if manifest is not None and manifest.results is not None:
        (folder / FILE).unlink()
    return manifest is None or manifest.results is not None


def check_free(folder: Path) -> None:
    """See that a run may spill to a folder.

    Raises:
        UsageError: it holds a debt that is not paid.
        StateError: what it holds cannot be read.
    """
    if not settled(folder):
        raise UsageError(
            f"--spill-dir {folder} holds what query {debt_in(folder).query!r} owes: `weir cleanup {folder}` pays it, "
            "or give another folder"
        )


def debt_in(folder: Path) -> Manifest:
    """The debt of a folder that has one.

    Raises:
        UsageError: it has none.
        StateError: as `read`.
    """
    manifest = read(folder)
    if manifest is None:
        raise UsageError(
            f"{folder} holds no debt; accepted is a folder that `weir run --cleanup none --spill-dir DIR` has left"
        )
    return manifest


@contextmanager
def open_debt(folder: Path) -> Iterator[OpenDebt]:
    """The debt of a folder, to be paid.

    Raises:
        UsageError: there is none.
        StateError: it is damaged, or somebody else has it open.
    """
    manifest = debt_in(folder)
    try:
        query = pick_query(manifest.text, manifest.query, str(folder / FILE))
    except QueryError as error:
        raise StateError(f"the query in {folder / FILE} is not one of this Weir: {error}") from None
    if fingerprint(query) != manifest.fingerprint:
        raise StateError(
            f"{folder / FILE} is the debt of query {manifest.fingerprint}, and this Weir reads its text as "
            f"{fingerprint(query)}, with other streams, windows or predicates; use the one that wrote it"
        )
    with closing(DebtBlocks(SpillStore(folder))) as blocks:
        yield OpenDebt(folder, manifest, query, blocks)


class DebtBlocks:
    """The blocks of a debt, whose damage is told with what to do: an `operators.spill.block_store.BlockStore`."""

    def __init__(self, store: SpillStore) -> None:
        self._store = store

    def put(self, key: str, raw: bytes) -> None:
        """As `SpillStore.put`."""
        self._store.put(key, raw)

    def get(self, key: str) -> bytes:
        """A block as it was written.

        Raises:
            StateError: it is damaged or missing.
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


def check_query(manifest: Manifest, query: Query) -> None:
    """See that a debt is a query's.

    Raises:
        UsageError: it is another one's.
    """
    own = fingerprint(query)
    if own != manifest.fingerprint:
        raise UsageError(
            f"the debt is of query {manifest.query!r} ({manifest.fingerprint}), not of {query.name!r} ({own}): its "
            "streams, windows or predicates are others"
        )


def check_destination(debt: OpenDebt, destination: str) -> None:
    """See that no payment to another place has begun.

    Raises:
        UsageError: one has.
    """
    before = debt.manifest.destination
    if before and before != destination:
        raise UsageError(
            f"a payment of {debt.folder} to {before} has begun, and some of it may be there: finish it there, not in "
            f"{destination}"
        )


def begin(debt: OpenDebt, destination: str) -> None:
    """Note where a debt is being paid to, before anything of it can be seen there.

    Raises:
        StateError: it cannot be noted.
    """
    if not debt.manifest.destination:
        write(debt.folder, msgspec.structs.replace(debt.manifest, destination=destination))


def settle(debt: OpenDebt, destination: str, results: int) -> None:
    """All that was owed is where it belongs: note it, and forget the blocks.

    Raises:
        StateError: it cannot be noted.
    """
    write(debt.folder, msgspec.structs.replace(debt.manifest, destination=destination, results=results))
    debt.blocks.delete(debt.blocks.keys(""))
