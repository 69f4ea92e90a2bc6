"""Every durable format: Weir reads what it has written, refuses and leaves alone what a newer version writes, and tells
damage from both. The formats and their places: `schemas.messages.formats`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from schemas.codecs.blocks import decode_block
from schemas.codecs.exchange import decode_exchange
from schemas.codecs.notice import decode_notice
from schemas.columns import Batch
from schemas.errors import NewerFormatError, StateError
from schemas.messages.commits import decode_commit
from schemas.messages.control import decode_control
from schemas.messages.prepared import decode_prepared
from schemas.messages.repeats import decode_repeats
from schemas.messages.spills import decode_events
from services.recovery.starting_point import Snapshot
from services.recovery.state_store import StateStore
from services.spill import backlog as backlogs
from services.spill.block_store import SpillStore
from tests import format_cases as cases

Value = Any


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        file: holds the format's bytes as commit 808f51c wrote them.
        value: the decoded value.
        decode: reads the bytes; formats that are read from a folder use the folder.
        mark: the part of the bytes that names version 1, and its replacement for a version newer than today's.
        deterministic: True if today's writer produces the same bytes.
    """

    file: str
    value: Value
    decode: Callable[[bytes, Path], Value]
    mark: tuple[bytes, bytes]
    deterministic: bool = True

    @property
    def golden(self) -> bytes:
        """The bytes."""
        return (cases.GOLDEN / self.file).read_bytes()

    @property
    def newer(self) -> bytes:
        """The same bytes as a newer version would mark them."""
        assert self.golden.count(self.mark[0]) == 1
        return self.golden.replace(*self.mark)


def rows(batch: Batch) -> Value:
    return batch.ts.tolist(), {name: column.to_values() for name, column in batch.columns.items()}


def _exchange(raw: bytes, folder: Path) -> Value:
    block = decode_exchange(cases.FIELDS, raw, "topic[0]@7")
    return (block.channel, block.watermark, block.last), rows(block.batch)


def _notice(raw: bytes, folder: Path) -> Value:
    found = decode_notice(cases.FIELDS, raw, "topic[0]@7")
    signatures = found.suspended.tolist(), found.resumed.tolist()
    return found.channel, found.number, found.whole, signatures, rows(found.late)


def _repeats(raw: bytes, folder: Path) -> Value:
    found = decode_repeats(raw, "r[0]@7").positions("r[0]@7")
    return {stream: positions.tolist() for stream, positions in found.items()}


def _block(raw: bytes, folder: Path) -> Value:
    block = decode_block(raw, "place")
    return block.stream, block.first_row, rows(block.batch)


def _snapshot(raw: bytes, folder: Path) -> Value:
    table = Rdict(str(folder / "t"), Options(raw_mode=True))
    table[b"m"] = raw
    table[(cases.GOLDEN / "snapshot-key.bin").read_bytes()] = (cases.GOLDEN / "snapshot-block.bin").read_bytes()
    table.close()
    store = StateStore(folder / "t", cases.STREAMS)
    try:
        snapshot: Snapshot | None = store.roll_back()
        return snapshot, [(block.stream, block.first_row, rows(block.batch)) for block in store.blocks()]
    finally:
        store.close()


def _spill_folder(raw: bytes, folder: Path) -> Value:
    (folder / "weir-spill").write_bytes(raw)
    SpillStore(folder).close()


def _debt(raw: bytes, folder: Path) -> Value:
    (folder / backlogs.FILE).write_bytes(raw)
    return backlogs.read(folder)


WATERMARK = cases.EXCHANGE
BLOCK = cases.STREAM, cases.FIRST_ROW, rows(cases.BATCH)
NOTICE = (3, 12, True, ([1, 2**63], [5]), rows(cases.BATCH))
COMPACT = b'"v":1', b'"v":2'
REPEATS = {stream: positions.tolist() for stream, positions in cases.REPEATS.items()}

FORMATS = [
    Format("commit.json", cases.COMMIT, lambda raw, _: decode_commit(raw.decode("latin-1"), "t[0]"), COMPACT),
    *(
        Format(f"control-{name}.json", message, lambda raw, _: decode_control(raw, "c[0]@7"), COMPACT)
        for name, message in cases.CONTROL.items()
    ),
    Format("prepared.json", cases.PREPARED, lambda raw, _: decode_prepared(raw, "t[0]@7"), COMPACT),
    Format(
        "spills.json",
        (cases.EVENTS, cases.EVENT_PLAN),
        lambda raw, _: ((found := decode_events(raw, cases.EVENT_GROUPS, "s[0]@7")).events, found.plan),
        (b'"v":1', b'"v":3'),
    ),
    Format("repeats.json", REPEATS, _repeats, COMPACT, deterministic=False),
    Format("exchange.bin", (WATERMARK, rows(cases.BATCH)), _exchange, (b"WX\1", b"WX\3")),
    Format("notice.bin", NOTICE, _notice, (b"WN\1", b"WN\2")),
    Format("block.bin", BLOCK, _block, (b"WEIR\1", b"WEIR\2"), deterministic=False),
    Format("snapshot-manifest.json", (cases.SNAPSHOT, [BLOCK]), _snapshot, (b'"v": 1', b'"v": 2')),
    Format("weir-spill", None, _spill_folder, (b"format 1", b"format 2")),
    Format("debt.json", cases.DEBT, _debt, (b'"format":1', b'"format":2')),
]

each = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.file)


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, but for what RocksDB notes of itself whenever it is opened."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name not in ("t", "blocks")
    }


def table(folder: Path) -> dict[bytes, bytes]:
    """What a snapshot's table holds, if there is one."""
    if not (folder / "t").exists():
        return {}
    found = Rdict(str(folder / "t"), Options(raw_mode=True))
    try:
        return {bytes(key): bytes(value) for key, value in found.items()}
    finally:
        found.close()


@each
def test_what_was_written_is_read(format: Format, tmp_path: Path) -> None:
    assert format.decode(format.golden, tmp_path) == format.value


def test_todays_writers_write_it_alike() -> None:
    """So older workers of this version read it too."""
    encoded = cases.encoded()
    assert set(encoded) == {path.name for path in cases.GOLDEN.iterdir()}
    for format in FORMATS:
        if format.deterministic:
            assert encoded[format.file] == format.golden, format.file


@each
def test_what_a_newer_weir_writes_is_refused_and_left_alone(format: Format, tmp_path: Path) -> None:
    """A newer snapshot was emptied as damaged, newer control messages passed over, and blocks for another plan's."""
    with pytest.raises(NewerFormatError) as caught:
        format.decode(format.newer, tmp_path)
    said = str(caught.value)
    assert re.search(r"was written by a newer Weir \(format [23], this one reads [12]\): upgrade this Weir first", said)
    assert "\n" not in said
    assert not isinstance(caught.value, StateError), "handlers of damage would make it anew"
    assert set(files(tmp_path).values()) <= {format.newer}
    assert set(table(tmp_path)) in ({b"m", (cases.GOLDEN / "snapshot-key.bin").read_bytes()}, set())
    assert table(tmp_path).get(b"m", format.newer) == format.newer


SHORT = {
    "commit.json": b'{"v":2}',
    "control-cut.json": b'{"v":2,"type":"party"}',
    "spills.json": b'{"v":3}',
    "repeats.json": b'{"v":2}',
    "exchange.bin": b"WX\3",
    "notice.bin": b"WN\2",
    "snapshot-manifest.json": b'{"v": 2}',
    "debt.json": b'{"format":2}\n',
}


@pytest.mark.parametrize("file", SHORT)
def test_nothing_but_its_version_is_asked_of_a_newer_one(file: str, tmp_path: Path) -> None:
    """A log of spills of another form was taken for another program's before its version was read."""
    (format,) = (format for format in FORMATS if format.file == file)
    with pytest.raises(NewerFormatError, match=r"format [23], this one reads [12]"):
        format.decode(SHORT[file], tmp_path)


def _damaged(format: Format) -> list[bytes]:
    raw, (now, _) = format.golden, format.mark
    zero = now.replace(b"1", b"0").replace(b"\1", b"\0")
    return [b"", b"\0" * 64, b"{}", b"[1, 2]", b"garbage", raw[: len(raw) // 2], raw[:3], raw.replace(now, zero)]


@each
@pytest.mark.parametrize("kind", range(8))
def test_damage_is_told_from_a_newer_version(format: Format, kind: int, tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        format.decode(_damaged(format)[kind], tmp_path)
    assert "newer Weir" not in str(caught.value)
    assert "\n" not in str(caught.value)
