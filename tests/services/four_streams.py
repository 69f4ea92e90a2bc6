"""Four streams in files, joined in a chain: what tests of the command line run over."""

from __future__ import annotations

import json
import random
from pathlib import Path

QUERY = """\
CREATE STREAM a (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM c (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'c', timestamp = 'at');
CREATE STREAM d (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'd', timestamp = 'at');
SELECT A.v AS av, B.v AS bv, C.v AS cv, D.v AS dv FROM a A, b B, c C, d D
WHERE A.k = B.k AND B.v = C.k AND C.v = D.k WINDOW RANGE 2 SECONDS;
"""

SOURCES = [f"--source={name}={name}.jsonl" for name in "abcd"]


def write_four_streams(folder: Path, step_ms: int) -> Path:
    """The query as `q.sql` and ten seconds of each stream, a row every `step_ms`; the folder."""
    (folder / "q.sql").write_text(QUERY)
    rng = random.Random(4)
    for name in "abcd":
        rows = [{"k": rng.randrange(20), "v": rng.randrange(20), "at": at} for at in range(0, 10_000, step_ms)]
        rows = [{**row, "s": f"{name}{row['v'] % 3}"} for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
