"""`weir run` of a set difference over files: the oracle's changes as JSON lines, also while the order changes."""

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
CREATE STREAM orders (id BIGINT, item STRING, at TIMESTAMP) WITH (topic = 'o', timestamp = 'at', disorder = '50 ms');
CREATE STREAM paid (id BIGINT, at TIMESTAMP) WITH (topic = 'p', timestamp = 'at');
CREATE STREAM held (id BIGINT, why STRING, at TIMESTAMP) WITH (topic = 'h', timestamp = 'at');
SELECT O.id AS id, O.item FROM orders O [RANGE 800 MILLISECONDS]
EXCEPT paid P [RANGE 2 SECONDS] ON P.id = O.id
EXCEPT held H [RANGE 150 MILLISECONDS] ON H.id = O.id AND H.why <> 'test'
WHERE O.item <> 'x';
""".replace("50 ms", "50 MILLISECONDS")

SOURCES = ("orders", "paid", "held")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of orders, of which some are paid and some held for a while, once or again and again."""
    path = tmp_path_factory.mktemp("difference")
    (path / "q.sql").write_text(QUERY)
    rng = random.Random(8)
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in SOURCES}
    for at in range(0, 4_000, 20):
        late = rng.choice([0, 0, 30, 90])
        rows["orders"].append({"id": at // 60, "item": rng.choice(["x", "y", "z", None]), "at": at - min(late, at)})
        if at % 40 == 0:
            rows["paid"].append({"id": rng.randrange(max(at // 60 - 20, 0), at // 60 + 1), "at": at})
        rows["held"].append(
            {"id": rng.randrange(max(at // 60 - 20, 0), at // 60 + 1), "why": rng.choice(["test", "risk"]), "at": at}
        )
    for name, items in rows.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items))
    return path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """One `weir run`."""
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json"]
    command += [f"--source={name}={name}.jsonl" for name in SOURCES]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[dict[str, object]]:
    """The oracle's changes."""
    (query,) = parse_program(QUERY).queries
    given = {n: [json.loads(line) for line in (folder / f"{n}.jsonl").read_text().splitlines()] for n in SOURCES}
    return oracle.results(query, given)


def test_the_oracles_changes_in_order(folder: Path, expected: list[dict[str, object]]) -> None:
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    assert len(expected) > 150
    stats = json.loads((folder / "s.json").read_bytes())
    assert stats["results"] == len(expected)
    assert stats["late"] > 0


@pytest.mark.parametrize("strategy", mostly_deep(["jisc", "moving-state", "gms", "gpt"]))
def test_the_order_changes_while_it_runs(folder: Path, expected: list[dict[str, object]], strategy: str) -> None:
    """There and back again; the same bytes, and what the statistics say of it."""
    changes = [f"--migrate=1970-01-01T00:00:01Z:((O H) P):{strategy}", f"--migrate=3200:((O P) H):{strategy}"]
    done = run(folder, "--plan", "((O P) H)", "--epoch", "100ms", *changes)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    first, second = json.loads((folder / "s.json").read_bytes())["migrations"]
    assert (first["from_plan"], first["to_plan"], first["cut"]) == ("((O P) H)", "((O H) P)", 1000)
    assert (second["strategy"], second["to_plan"], second["began_at"]) == (strategy, "((O P) H)", 3200)
    assert first["finished_at"] <= 3200
    if strategy in ("moving-state", "jisc"):
        assert first["completed_keys"] + second["completed_keys"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan", "((P O) H)"], b"a plan begins with O and is left-deep, such as ((O P) H) (line 1, column 1)"),
        (["--plan", "(O (P H))"], b"such as ((O P) H)"),
        (["--executor", "mjoin"], b"--executor mjoin does not go with EXCEPT: it joins, and EXCEPT subtracts"),
        (["--migrate", "2000:((O H) P):hybmig"], b"--migrate: a plan change by hybmig does not go with EXCEPT"),
        (["--migrate", "2000:((O H) P):ghm"], b"one of moving-state, jisc, gms, gpt"),
        (["--migrate", "2000:(O (H P)):jisc"], b"left-deep"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, options: list[str], message: bytes) -> None:
    done = run(folder, *options)
    assert done.returncode == 2
    assert message in done.stderr, done.stderr
