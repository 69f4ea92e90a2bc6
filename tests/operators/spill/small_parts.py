"""Limits of eviction and cleanup between two slices, so small that both are always interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from operators.spill import eviction, spilling
from operators.spill.cleanup import by_join, steps


@contextmanager
def small_parts() -> Iterator[None]:
    """Evict a few tuples and clean up a group or two between two slices; late results go to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "LEAVE_BYTES", 300)
        patch.setattr(spilling, "LEAVE_GROWTH", 0)
        patch.setattr(eviction, "CHUNK_BYTES", 200)
        patch.setattr(steps, "CLEAN_TUPLES", 1)
        patch.setattr(steps, "DEADLINE_SHARE", 1_000.0)
        patch.setattr(by_join, "LATE_BYTES", 500)
        yield
