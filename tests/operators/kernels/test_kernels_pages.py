"""The memory of rings: what was never written, and what was given back, is not there."""

from __future__ import annotations

import ctypes
import errno
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from operators.kernels.pages import GIVES_BACK, HUGE_FROM, MAPPED_FROM, RingMemory, give_back, zeroed
from operators.kernels.ring import ring_grow, ring_read, ring_thinned, touched_bytes

on_linux = pytest.mark.skipif(not GIVES_BACK, reason="memory comes and goes page by page on Linux")
PAGE = mmap.PAGESIZE


def in_memory_bytes(array: npt.NDArray[Any]) -> int:
    """Of the pages that an array has a part of, those that are in memory: mincore(2)."""
    begin = array.ctypes.data // PAGE * PAGE
    pages = -(-(array.ctypes.data + array.nbytes - begin) // PAGE)
    found = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * PAGE), found) == 0
    return sum(one & 1 for one in found) * PAGE


def leave_holes() -> None:
    """Have malloc hold memory that was written and is free, between blocks that are not."""
    held = [np.ones(size, np.uint8) for size in (90_000, 70_000, 300_000, 140_000) for _ in range(20)]
    del held[::2]


@on_linux
@pytest.mark.parametrize(
    ("shape", "dtype"), [(MAPPED_FROM // 8, np.int64), ((3, 1 << 14), np.int64), (1 << 18, np.bool_)]
)
def test_zeros_take_no_memory(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Whatever malloc has lying about; and as much as was written when they are."""
    leave_holes()
    ring = zeroed(shape, dtype)
    assert in_memory_bytes(ring) == 0
    assert (ring.shape, ring.dtype) == (np.empty(shape, dtype).shape, np.dtype(dtype))
    assert not ring.any()
    ring[:] = 1
    assert ring.all()
    assert in_memory_bytes(ring) == ring.nbytes


@on_linux
def test_a_ring_takes_what_is_counted_of_it() -> None:
    """Rings that grow, and rings that are reallocated when little stays."""
    leave_holes()
    ring = np.arange(1 << 14)
    grown, thinned = ring_grow(ring, 0, 1 << 14, 1 << 17), ring_thinned(ring, 0, ring % 2 == 0, 1 << 17)
    assert in_memory_bytes(grown) == touched_bytes(grown, 0, 1 << 14) == 1 << 17
    assert in_memory_bytes(thinned) == touched_bytes(thinned, 0, 1 << 13) == 1 << 16


@pytest.mark.parametrize("size", [0, 1, MAPPED_FROM - 8, MAPPED_FROM, HUGE_FROM - 8, HUGE_FROM])
def test_zeros_of_any_size(size: int) -> None:
    ring = zeroed(size // 8, np.uint64)
    assert ring.tolist() == [0] * (size // 8)
    ring += np.uint64(7)
    assert ring.tolist() == [7] * (size // 8)


def test_without_mappings_malloc_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have so many and no more."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    memory = RingMemory(2 * MAPPED_FROM, lambda size: pytest.fail(f"a file of {size} bytes"))
    monkeypatch.setattr(mmap, "mmap", refuse)
    assert not zeroed((2, MAPPED_FROM), np.int64).any()
    with memory.used():
        ring = zeroed((2, MAPPED_FROM), np.uint8)
    assert not ring.any()
    part = ring[0, 5:7]
    del ring
    assert memory.in_memory == 2 * MAPPED_FROM
    del part
    assert memory.in_memory == 0


@on_linux
@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (0, 9000), (3000, 12_000), (1 << 15, 1 << 16), (60_000, 70_000)])
def test_pages_are_given_back(lo: int, hi: int) -> None:
    """Numbers that are wanted stay; of the others all are zero but for less than a page at every edge, in every row of
    a ring that may go round."""
    ring = np.ones((2, 1 << 15), np.int64)
    give_back(ring, lo, hi)
    assert ring_read(ring, lo, hi).all()
    left = np.count_nonzero(ring, axis=1) - min(hi - lo, 1 << 15)
    assert (left < 4 * mmap.PAGESIZE // ring.itemsize).all()
