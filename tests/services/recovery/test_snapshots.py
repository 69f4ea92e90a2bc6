"""The writer of a task's snapshots."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from operators.state.checkpoint import Block, Checkpoint
from schemas.columns import Batch
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.recovery.snapshots import SnapshotWriter
from services.recovery.state_store import StateStore


def test_the_table_is_closed_whatever_a_write_raised(tmp_path: Path) -> None:
    """It stayed locked, so the task's next incarnation in this process ran without snapshots."""
    store = StateStore(tmp_path, ["a"])
    of_no_stream = Block("b", 0, Batch(np.arange(3, dtype=np.int64), {}))
    with ThreadPoolExecutor(1) as executor:
        writer = SnapshotWriter(store, executor, 1000, get_log("test"), WorkerMetrics("q").of("0"))
        writer.add(Checkpoint(10, (of_no_stream,), {}))
        with pytest.raises(ValueError, match="'b' is not in list"):
            writer.close()
    StateStore(tmp_path, ["a"]).close()
