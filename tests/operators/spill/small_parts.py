"""What leaves memory and what is cleaned up between two slices, made so small that all of it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from operators.spill import eviction as leaving
from operators.spill import spilling
from operators.spill.cleanup import by_join as cleaning
from operators.spill.cleanup import steps as instalments


@contextmanager
def small_parts() -> Iterator[None]:
    """A few tuples leave, and a group or two are cleaned up, between two slices; late results go to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "LEAVE_BYTES", 300)
        patch.setattr(spilling, "LEAVE_GROWTH", 0)
        patch.setattr(leaving, "CHUNK_BYTES", 200)
        patch.setattr(instalments, "CLEAN_TUPLES", 1)
        patch.setattr(instalments, "HELD_SHARE", 1_000.0)
        patch.setattr(cleaning, "LATE_BYTES", 500)
        yield
