"""What states and stores say they take against what the system says the process takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiles import mostly_deep

ROOT = Path(__file__).parents[3]
SHARE = 0.05
"""Of what is taken, beside SLACK_BYTES, the two may differ by this."""

SLACK_BYTES = 1_000_000
"""Python's own ups and downs."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")

MEASURE = '''
import gc, json, os, sys
import numpy as np
from operators.state.side_state import SideState
from operators.state.store import SourceStore
from operators.data.tuples import FOREVER, Tuples
from schemas.columns import Batch, Column
from schemas.query import Type
from services.process.memory import choose_small_pages, prepare

PART = 20_000

def resident():
    gc.collect()
    with open("/proc/self/statm") as stat:
        return int(stat.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def into_state(side, first):
    ts = np.arange(first, first + PART)
    keys = ts.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows = np.stack([ts] * len(side.aliases))
    side.insert(Tuples(side.aliases, rows, ts, ts + 10**9), keys, now=first)

def into_store(of, first):
    ts = np.arange(first, first + PART)
    offsets = np.arange(PART + 1) * 12
    text = Column(Type.STRING, np.full(PART * 12, 65, np.uint8), None, offsets)
    number = Column(Type.BIGINT, ts, ts % 3 > 0)
    of.append(Batch(ts, {"v": number, "s": text}))

def run(kind, parts, said):
    if kind == "store":
        held = SourceStore([("v", Type.BIGINT), ("s", Type.STRING), ("_ts", Type.TIMESTAMP)])
        put = into_store
        thin = lambda share: held.release(np.arange(held.hi - held.lo) % 100 < share)
    else:
        aliases = tuple("ABC") if kind == "results" else ("A",)
        held = SideState(aliases, FOREVER, hashed=True, exact_expiry=kind == "source")
        put = into_state
        thin = lambda share: held.take_out(np.arange(held.hi - held.lo) % 100 < share)
    before = resident()
    first = 0
    def note(stage):
        said.append((kind + ": " + stage, held.touched_bytes(), resident() - before))
    for _ in range(parts):
        put(held, first)
        first += PART
    note("grown")
    if kind != "store":
        held.keep(np.arange(held.hi - held.lo) % 10 > 0)
        note("compacted")
    thin(8)
    note("a few out")
    thin(60)
    note("more out")
    for _ in range(parts):
        put(held, first)
        first += PART
    note("grown again")
    thin(97)
    note("nearly all out")

choose_small_pages()
prepare()
for kind in ("source", "results", "store"):
    run(kind, 2, [])
said = []
for kind in ("source", "results", "store"):
    run(kind, int(sys.argv[1]), said)
print(json.dumps(said))
'''


@pytest.mark.parametrize("parts", mostly_deep([12, 45]))
def test_said_is_taken(parts: int) -> None:
    """Through growth, compaction and parts taken out, at some MB and some tens of MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(parts)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == 6 + 6 + 5
    wrong = [one for one in said if abs(one[1] - one[2]) > SHARE * one[2] + SLACK_BYTES]
    assert not wrong, said
