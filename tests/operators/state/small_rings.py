"""Rings so small that those of a few tuples grow, and count within `operators.kernels.pages.RingMemory`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from operators.kernels import pages
from operators.state import side_state, store


@contextmanager
def small_rings() -> Iterator[None]:
    """States and stores begin with room for four tuples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "MAPPED_FROM", 1)
        patch.setattr(store, "FIRST_CAPACITY", 4)
        patch.setattr(side_state, "FIRST_CAPACITY", 4)
        yield
