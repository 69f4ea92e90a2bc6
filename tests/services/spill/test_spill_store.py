"""Block stores: their common behaviour, what outlives the process, and one clear line for each failure."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from operators.kernels.pages import MAPPED_FROM, RingMemory, zeroed
from operators.spill.block_store import BlockStore
from schemas.codecs.blocks import decode_block, encode_block
from schemas.columns import Batch, Column
from schemas.errors import SpillError, StateError
from schemas.query import Type
from services.spill.block_store import BUFFER_BYTES, SpillStore
from tests.operators.spill.memory_blocks import MemoryBlocks

ROOT = Path(__file__).parents[3]
BLOCK = 256 << 10


def noise(number: int, size: int = BLOCK) -> bytes:
    """Bytes that do not compress."""
    return np.random.default_rng(number).bytes(size)


@pytest.fixture(params=["memory", "disk"])
def blocks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    """Every implementation of a block store."""
    if request.param == "memory":
        yield MemoryBlocks()
        return
    store = SpillStore(tmp_path / "spill")
    yield store
    store.close()


# --- Every store --------------------------------------------------------------------------------------


def test_a_block_that_was_put_can_be_read(blocks: BlockStore) -> None:
    blocks.put("a/1", b"one")
    blocks.put("a/2", b"")
    blocks.put("b/\u00e4", noise(1))
    assert (blocks.get("a/1"), blocks.get("a/2"), blocks.get("b/\u00e4")) == (b"one", b"", noise(1))
    blocks.put("a/1", b"another")
    assert blocks.get("a/1") == b"another"


def test_keys_of_a_prefix_ascend(blocks: BlockStore) -> None:
    for key in ("j1/g007/p2", "j1/g007/p1", "j1/g01/p1", "j2/g007/p1", "j1"):
        blocks.put(key, b"x")
    assert blocks.keys("j1/g007/") == ["j1/g007/p1", "j1/g007/p2"]
    assert blocks.keys("j1") == ["j1", "j1/g007/p1", "j1/g007/p2", "j1/g01/p1"]
    assert len(blocks.keys("")) == 5
    assert blocks.keys("j3") == []


def test_a_mapped_file_has_zeros_and_leaves_nothing(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "spill")
    before = sorted(tmp_path.rglob("*"))
    pages = memoryview(store.map_file(100_000))
    assert pages[:] == bytes(100_000)
    pages[70_000:70_003] = b"abc"
    assert pages[69_999:70_004] == b"\0abc\0"
    assert sorted(tmp_path.rglob("*")) == before
    store.close()


@contextlib.contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """Lower one of this process's limits."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_mapped_files_need_no_descriptors(tmp_path: Path) -> None:
    """Each kept one: some rings of some tasks, and a worker could open no file and no connection."""
    store = SpillStore(tmp_path / "spill")
    most = max(map(int, os.listdir("/proc/self/fd")))  # some below may be free
    with limited(resource.RLIMIT_NOFILE, most + 8):
        memory = RingMemory(0, store.map_file)
        with memory.used():
            rings = [zeroed(MAPPED_FROM, np.uint8) for _ in range(64)]
    assert memory.in_files == 64 * MAPPED_FROM
    for number, ring in enumerate(rings):
        ring[:] = number
    assert [set(ring.tolist()) for ring in rings] == [{number} for number in range(64)]
    store.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists a process's mappings")
def test_a_file_is_mapped_while_something_refers_to_it(tmp_path: Path) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(f"{tmp_path}/spill/")

    store = SpillStore(tmp_path / "spill")
    before = mappings()
    ring = np.frombuffer(store.map_file(1 << 16), np.int64).reshape(2, -1)
    ring[:] = 7
    part = ring[1, -3:]
    del ring
    assert mappings() == before + 1
    assert part.tolist() == [7, 7, 7]
    del part
    assert mappings() == before
    store.close()


def test_too_many_open_files_are_not_the_disk(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "spill")
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(SpillError, match="too many files open: raise") as error:
        store.map_file(1 << 16)
    one_line(error)
    store.close()


def test_a_file_for_which_the_disk_has_no_room_is_refused(tmp_path: Path) -> None:
    store = SpillStore(tmp_path / "spill")
    with pytest.raises(SpillError, match=r"bytes of state cannot be kept in a file: .*; "):
        store.map_file(1 << 55)
    store.close()


def test_what_was_deleted_is_gone(blocks: BlockStore) -> None:
    for key in "abc":
        blocks.put(key, key.encode())
    blocks.delete(iter(["a", "c", "unknown"]))
    blocks.delete([])
    assert blocks.keys("") == ["b"]
    with pytest.raises(StateError, match="block 'a' is not "):
        blocks.get("a")
    blocks.put("a", b"again")
    assert blocks.get("a") == b"again"


def test_blocks_of_columns_go_through(blocks: BlockStore) -> None:
    """Blocks as spilled parts have them: columns, compressed and with a checksum."""
    texts = Column.from_values([None if i % 5 == 0 else f"text {i}" for i in range(9_000)], Type.STRING)
    blocks.put("part", encode_block("A", 7, Batch(np.arange(9_000), {"s": texts})))
    found = decode_block(blocks.get("part"), "part")
    assert (found.stream, found.first_row, found.batch.ts[-1]) == ("A", 7, 8_999)
    assert found.batch.columns["s"].to_values() == texts.to_values()


# --- On disk ------------------------------------------------------------------------------------------


def test_more_than_the_buffers(tmp_path: Path) -> None:
    """Many times the memory of the buffers, with deletions between: each key keeps its own block."""
    store = SpillStore(tmp_path)
    count = 12 * BUFFER_BYTES // BLOCK
    for number in range(count):
        store.put(f"{number:05d}", noise(number))
        if number % 3 == 2:
            store.delete([f"{number - 1:05d}"])
    left = [number for number in range(count) if number % 3 != 1]
    assert store.keys("") == [f"{number:05d}" for number in left]
    assert store.size_bytes() == len(left) * BLOCK
    for number in left[::7]:
        assert store.get(f"{number:05d}") == noise(number)


def test_it_survives_being_closed(tmp_path: Path) -> None:
    store = SpillStore(tmp_path)
    store.put("a", b"one")
    store.put("b", noise(2))
    store.delete(["a"])
    store.flush()
    store.close()
    store.close()
    with pytest.raises(StateError, match=r"is closed: block 'b' cannot be read$"):
        store.get("b")
    again = SpillStore(tmp_path)
    assert (again.keys(""), again.size_bytes()) == (["b"], BLOCK)
    assert again.get("b") == noise(2)
    again.wipe()
    assert (again.keys(""), again.size_bytes()) == ([], 0)
    again.put("c", b"three")
    assert again.keys("") == ["c"]


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from services.spill.block_store import SpillStore
store = SpillStore(Path(sys.argv[1]))
for number in range(100):
    store.put(f"{number:03d}", np.random.default_rng(number).bytes(256 << 10))
    if number == 59:
        store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    """Of the blocks that were not flushed, each that is there is whole."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    store = SpillStore(tmp_path)
    keys = store.keys("")
    assert keys[:60] == [f"{number:03d}" for number in range(60)]
    for key in keys[::9] + keys[-1:]:
        assert store.get(key) == noise(int(key))
    assert store.size_bytes() == len(keys) * BLOCK


# --- What goes wrong ----------------------------------------------------------------------------------


def one_line(error: pytest.ExceptionInfo[StateError]) -> str:
    """The error's message, which must be one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StateError, match=r"holds 'thesis.txt' and is not Weir's; give an empty folder") as error:
        SpillStore(tmp_path)
    one_line(error)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_whose_mark_is_damaged(tmp_path: Path) -> None:
    SpillStore(tmp_path).close()
    (tmp_path / "weir-spill").write_text("spilled state of Weir, form")
    with pytest.raises(StateError, match=r"says 'spilled state of Weir, form', no mark of Weir; give an") as error:
        SpillStore(tmp_path)
    one_line(error)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StateError, match=r"cannot be used: .*; give a folder that Weir may write to$") as error:
            SpillStore(path)
        one_line(error)


def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    first = SpillStore(tmp_path)
    first.put("a", b"one")
    with pytest.raises(StateError, match=r"cannot be opened: .*; another process uses it: stop that one or") as error:
        SpillStore(tmp_path)
    one_line(error)
    assert first.get("a") == b"one"
    first.close()
    SpillStore(tmp_path).close()


def tables(path: Path) -> list[Path]:
    """RocksDB's files of blocks."""
    return sorted((path / "blocks").glob("*.sst"), key=lambda file: file.stat().st_size)


def test_damage_is_noticed(tmp_path: Path) -> None:
    """RocksDB's checksums find flipped bytes before the engine computes with them."""
    store = SpillStore(tmp_path)
    store.put("a", noise(1))
    store.flush()
    store.close()
    file = tables(tmp_path)[-1]
    data = bytearray(file.read_bytes())
    data[5000] ^= 0x10
    file.write_bytes(bytes(data))
    again = SpillStore(tmp_path)
    with pytest.raises(StateError, match=r"block 'a' cannot be read: Corruption: .*; its files are damaged: ") as error:
        again.get("a")
    one_line(error)


def test_a_lost_file_is_noticed(tmp_path: Path) -> None:
    store = SpillStore(tmp_path)
    store.put("a", noise(1))
    store.flush()
    store.close()
    tables(tmp_path)[-1].unlink()
    with pytest.raises(StateError, match=r"^spill folder .*; ") as error:
        SpillStore(tmp_path).get("a")
    one_line(error)


def test_a_missing_block_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"block 'j1/g3/p0' is not in spill folder .*; run again from the") as error:
        SpillStore(tmp_path).get("j1/g3/p0")
    one_line(error)


def fill(store: SpillStore, accepted: list[int]) -> None:
    """Put far more than the buffers hold; returns what was accepted."""
    for number in range(20 * BUFFER_BYTES // BLOCK):
        store.put(str(number), noise(number))
        accepted.append(number)


def test_a_full_disk_refuses_blocks_and_keeps_the_others(tmp_path: Path) -> None:
    """The process can read every accepted block, and what was durable stays so."""
    store = SpillStore(tmp_path)
    store.put("durable", noise(0))
    store.flush()
    accepted: list[int] = []
    with limited(resource.RLIMIT_FSIZE, BUFFER_BYTES // 4):
        with pytest.raises(StateError, match=r"cannot be written.*; the disk is full: free some room or") as error:
            fill(store, accepted)
        one_line(error)
        with pytest.raises(StateError, match="the disk is full"):
            store.flush()
        assert len(accepted) >= BUFFER_BYTES // BLOCK - 2
        for number in accepted:
            assert store.get(str(number)) == noise(number)
        assert store.keys("") == sorted([*map(str, accepted), "durable"])
        assert store.get("durable") == noise(0)
    store.close()
    again = SpillStore(tmp_path)
    assert again.get("durable") == noise(0)
