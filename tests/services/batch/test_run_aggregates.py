"""`weir run` of aggregates over files: the oracle's emissions as JSON lines, also while the plan changes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.language.program import parse_program
from tests import oracle
from tests.profiles import mostly_deep

QUERY = """\
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = 't', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM humidity (mote BIGINT, percent DOUBLE, at TIMESTAMP) WITH (topic = 'h', timestamp = 'at');
CREATE STREAM light (mote BIGINT, lux DOUBLE, at TIMESTAMP) WITH (topic = 'l', timestamp = 'at');
SELECT T.room AS room, COUNT(*) AS n, SUM(H.percent) AS total, MEDIAN(T.celsius) AS middle, MAX(L.lux) - MIN(L.lux) AS x
FROM temperature T [RANGE 400 MILLISECONDS], humidity H [RANGE 300 MILLISECONDS], light L [ROWS 12]
WHERE T.mote = H.mote AND H.mote = L.mote GROUP BY T.room EMIT EVERY 70 MILLISECONDS;
"""

MEASURES = {"temperature": "celsius", "humidity": "percent", "light": "lux"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds of readings."""
    path = tmp_path_factory.mktemp("aggregates")
    (path / "q.sql").write_text(QUERY)
    rng = random.Random(4)
    for stream, measure in MEASURES.items():
        rows = []
        for at in range(0, 3_000, 15):
            row = {"mote": rng.randrange(5), measure: rng.choice([None, rng.uniform(0, 100)]), "at": at}
            if stream == "temperature":
                row |= {"room": rng.choice(["kiln", "hall", None]), "at": at - min(at, rng.choice([0, 0, 30, 90]))}
            rows.append(row)
        (path / f"{stream}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[dict[str, object]]:
    """The oracle's emissions."""
    (query,) = parse_program(QUERY).queries
    given = {n: [json.loads(line) for line in (folder / f"{n}.jsonl").read_text().splitlines()] for n in MEASURES}
    found = oracle.results(query, given)
    assert len(found) > 50
    return found


@pytest.mark.parametrize(
    "options",
    mostly_deep(
        [
            ("--plan", "((T H) L)", "--migrate", "900:((H L) T):jisc", "--migrate", "1500:((T H) L):parallel-track"),
            ("--executor", "eddy", "--epoch", "33ms"),
            (),
        ]
    ),
)
def test_over_files(folder: Path, expected: list[dict[str, object]], options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", "--out", "-"]
    command += [f"--source={name}={name}.jsonl" for name in MEASURES]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    statistics = json.loads((folder / "s.json").read_text())
    assert statistics["results"] == len(expected)
    assert len(statistics["migrations"]) == options.count("--migrate")


def test_explained(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "services.cli", "explain", "q.sql"], cwd=folder, capture_output=True)
    lines = done.stdout.decode().splitlines()
    begin = lines.index("aggregate every 70 MILLISECONDS")
    assert lines[begin + 1 : begin + 7] == [
        "│  by    T.room",
        "│  value COUNT(*)",
        "│  value SUM(H.percent)",
        "│  value MEDIAN(T.celsius)",
        "│  value MAX(L.lux)",
        "│  value MIN(L.lux)",
    ]
    assert lines[begin + 7].startswith("└─ hash join")
