"""`weir run --adapt`: the same bytes as without, and what it tells of its decisions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SECONDS = 60
RATE = 2000
PARTNERS = "BCD"
SOURCES = [f"--source={name}={name}.jsonl" for name in "ABCD"]
QUERY = "\n".join(
    [
        "CREATE STREAM A (b BIGINT, c BIGINT, d BIGINT, at TIMESTAMP) WITH (topic = 'A', timestamp = 'at');",
        *(
            f"CREATE STREAM {name} ({name.lower()} BIGINT, at TIMESTAMP) WITH (topic = '{name}', timestamp = 'at');"
            for name in PARTNERS
        ),
        "INSERT INTO 'found' SELECT A.at AS a, B.at AS b, C.at AS c, D.at AS d FROM A, B, C, D WINDOW RANGE 4 SECONDS "
        "WHERE A.b = B.b AND A.c = C.c AND A.d = D.d;",
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A star: at first D has many partners for a tuple of A and B hardly any, later it is the other way round."""
    made = tmp_path_factory.mktemp("adapt")
    (made / "q.sql").write_text(QUERY)
    rng = np.random.default_rng(1)
    n = SECONDS * RATE
    at = np.arange(n) * 1000 // RATE
    swapped = at >= SECONDS * 1000 // 2
    values = {"b": np.where(swapped, 400, 400_000), "c": np.full(n, 40_000), "d": np.where(swapped, 400_000, 400)}
    drawn = {name: rng.integers(0, most).tolist() for name, most in values.items()}
    lines = (
        f'{{"b":{b},"c":{c},"d":{d},"at":{t}}}\n'
        for b, c, d, t in zip(drawn["b"], drawn["c"], drawn["d"], at, strict=True)
    )
    (made / "A.jsonl").write_text("".join(lines))
    for name in PARTNERS:
        column = rng.integers(0, values[name.lower()]).tolist()
        text = "".join(f'{{"{name.lower()}":{value},"at":{t}}}\n' for value, t in zip(column, at, strict=True))
        (made / f"{name}.jsonl").write_text(text)
    return made


def run(folder: Path, *options: str) -> tuple[bytes, dict[str, Any], str]:
    """Results, statistics and messages of `weir run`."""
    command = [sys.executable, "-m", "services.cli", "run", "q.sql", "--stats", "s.json", "-v"]
    done = subprocess.run([*command, *SOURCES, *options], cwd=folder, capture_output=True, check=True)
    return done.stdout, json.loads((folder / "s.json").read_bytes()), done.stderr.decode()


def test_the_plan_follows_the_data_and_no_byte_changes(folder: Path) -> None:
    expected, plain, _ = run(folder, "--executor", "xjoin", "--adapt", "off")
    assert plain["adaptations"] == []
    found, stats, told = run(folder, "--adapt", "on")
    assert found == expected
    assert expected.count(b"\n") > 1000
    assert isinstance(stats["adaptations"], list)
    made = [one for one in stats["adaptations"] if one["made"]]
    assert [one["at"] > SECONDS * 500 for one in made] in ([True], [False, True]), "the first plan may be corrected"
    assert made[-1]["at"] < SECONDS * 500 + 12_000
    assert (made[0]["from_plan"], made[-1]["to_plan"]) == (plain["plan"], stats["plan"])
    assert made[-1]["predicted"]["saving"] > 0.2
    outcomes = [one["measured"]["saving"] for one in made if one["measured"] is not None]
    assert outcomes
    assert min(outcomes) > 0
    assert f"changed {made[-1]['from_plan']} -> {made[-1]['to_plan']}" in told


def test_it_is_the_default_and_a_given_plan_stays(folder: Path) -> None:
    expected, stats, _ = run(folder, "--executor", "xjoin")
    assert any(one["made"] for one in stats["adaptations"])
    assert run(folder)[0] == expected, "the executor may be one without a plan to change"
    found, pinned, _ = run(folder, "--plan", "(((A B) C) D)")
    assert found == expected
    assert pinned["adaptations"] == pinned["migrations"] == []


def test_advice_is_reported_and_not_followed(folder: Path) -> None:
    _, stats, told = run(folder, "--adapt", "advise")
    assert isinstance(stats["adaptations"], list)
    assert stats["migrations"] == []
    assert "advised, not made" in told


def test_what_cannot_be_adapted_says_why(folder: Path) -> None:
    _, stats, told = run(folder, "--adapt", "on", "--executor", "mjoin")
    assert stats["adaptations"] == []
    assert "weir: --adapt on: the plan stays, since mjoin keeps no tree of joins" in told
