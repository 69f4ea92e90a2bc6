"""`weir explain --analyze`: over files by the command line, and of a query that runs on a real broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker_fixture import Topics
from tests.services.four_streams import SOURCES, write_four_streams
from tests.worker_harness import Case, Feed, Workers, wait_for


def weir(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "explain", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_four_streams(tmp_path_factory.mktemp("explain"), 50)


def test_files_are_run_and_their_results_dropped(folder: Path) -> None:
    """Rates, averages and peaks are those of the data; the counters those of `weir run`."""
    done = weir(folder, "q.sql", "--analyze", "--json", "--plan", "(((A B) C) D)", *SOURCES)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)["analyses"]
    run = [sys.executable, "-m", "services.cli", "run", "q.sql", "--plan", "(((A B) C) D)", "--stats", "s.json"]
    results = subprocess.run([*run, *SOURCES], cwd=folder, capture_output=True, check=True).stdout.count(b"\n")
    stats = json.loads((folder / "s.json").read_bytes())
    (task,) = found["tasks"]
    assert task["results"] == results == stats["results"]
    assert [o["results"] for o in found["operators"]] == [o["results"] for o in stats["operators"]]
    assert found["sources"][0]["input_per_s"] == pytest.approx(20, rel=0.05)
    expected = {tuple(e["aliases"]): e for e in found["expected"]}
    assert expected["A", "B"]["per_s"] == pytest.approx(found["operators"][0]["results_per_s"], rel=0.4)
    # A window of two seconds holds forty tuples; it is filling and, at the end, empty.
    assert max(o["state_tuples"][1] for o in found["operators"]) == pytest.approx(40, abs=2)


def test_the_tree_of_a_run(folder: Path) -> None:
    done = weir(folder, "q.sql", "--analyze", *SOURCES)
    assert done.returncode == 0
    assert done.stdout.startswith("query  results\nplan   (")
    assert "; alive on average, states at their largest" in done.stdout
    assert re.search(
        r"source a A \[RANGE 2 SECONDS\]  20\.1/s, [34]\d\.\d alive  \(expected ~20\.1/s, ~40\.2 alive\)", done.stdout
    )
    assert not list(folder.glob("*.late"))


def test_standard_input_is_read_once(folder: Path) -> None:
    """Regression: a pipe was sampled for the plan, and what had been sampled was missing from the run."""
    one = "CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (timestamp = 'at'); SELECT A.k FROM a A [ROWS 1];"
    (folder / "one.sql").write_text(one)
    command = [sys.executable, "-m", "services.cli", "explain", "one.sql", "--analyze", "--source", "a=-"]
    rows = "".join(f'{{"k": 1, "at": {at}}}\n' for at in range(100))
    done = subprocess.run(command, cwd=folder, input=rows, capture_output=True, text=True, check=True, timeout=120)
    assert "in    100 tuples" in done.stdout


def test_a_page_shows_the_plan_or_the_run(folder: Path) -> None:
    done = weir(folder, "q.sql", "--html", "plan.html", *SOURCES)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plan.html\n", "")
    document = _document(folder / "plan.html")
    assert document["basis"].startswith("Expected, by sampled statistics: ")
    assert len(document["plans"][0]["nodes"]) == 7
    done = weir(folder, "q.sql", "--analyze", "--html", "run.html", "--plan", "(((A B) C) D)", *SOURCES)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run.html\n", "")
    document = _document(folder / "run.html")
    assert document["basis"] == "Measured in a run over files: tuples alive on average, states at their largest"
    (plan,) = document["plans"]
    nodes = {node["id"]: node for node in plan["nodes"]}
    assert plan["text"] == "(((A B) C) D)"
    assert nodes["A"]["per_s"] == pytest.approx(20, rel=0.05)
    assert sum(node["cores"] for node in nodes.values() if "cores" in node) == pytest.approx(1)
    assert document["tasks"][0]["results"] == nodes["(((A B) C) D)"]["results"] > 0


def test_a_page_on_standard_output_is_alone_there(folder: Path) -> None:
    done = weir(folder, "q.sql", "--html", "-")
    assert (done.returncode, done.stdout[:15], done.stdout[-8:]) == (0, "<!doctype html>", "</html>\n")


def _document(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'id="document">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    return dict(json.loads(text))


def test_an_executor_that_analyze_does_not_show_is_no_matter_without(folder: Path) -> None:
    """It may come from WEIR_EXECUTOR, which is for `weir run`."""
    done = weir(folder, "q.sql", "--executor", "juggler")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--analyze", "--json", "--html", "plan.html"), "--html and --json are two forms of the same"),
        (("--html", "none/plan.html"), "--html: cannot create none/plan.html: No such file or directory"),
        (("--html", "q.sql"), "--html q.sql is the same file as the query"),
        (("--html", "a.jsonl", *SOURCES), "--html a.jsonl is the same file as --source a"),
        (("--json",), "--json has no effect without --analyze"),
        (("--task", "0"), "--task has no effect without"),
        (("--analyze", "--task", "3", *SOURCES), "--task has no effect over files"),
        (("--analyze", "--executor", "juggler", *SOURCES), "--executor juggler: --analyze does not show shared"),
        (("--analyze", "--plan", "(((A B) C) D)"), "a query that runs has a plan already"),
        (("--analyze", "--source", "a=a.jsonl"), "no source for 'b', 'c', 'd'"),
    ],
)
def test_what_cannot_be(folder: Path, options: tuple[str, ...], said: str) -> None:
    done = weir(folder, "q.sql", *options)
    assert done.returncode == 2
    assert said in done.stderr


THREE = """
CREATE STREAM a (x BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{a}', timestamp = 'at');
CREATE STREAM b (x BIGINT, y BIGINT, at TIMESTAMP) WITH (topic = '{b}', timestamp = 'at');
CREATE STREAM c (x BIGINT, y BIGINT, at TIMESTAMP) WITH (topic = '{c}', timestamp = 'at');
INSERT INTO '{sink}'
SELECT A.n AS n, B.y AS y FROM a A, b B, c C WINDOW RANGE 10 SECONDS
WHERE A.x = B.x AND B.x = C.x PARTITION BY A.x, B.x, C.x
"""


@pytest.mark.deep
@pytest.mark.kafka
def test_a_query_that_runs(topics: Topics, tmp_path: Path) -> None:
    """Sums over two tasks, one task alone, as text and as JSON; and what is said when nothing runs."""
    workers = Workers(tmp_path)
    case = Case.make(topics, tmp_path, THREE, partitions=2)
    nothing = weir(tmp_path, str(case.path), "--analyze", "--bootstrap", case.bootstrap)
    assert nothing.returncode == 1
    assert "has ever run" in nothing.stderr
    try:
        worker = workers.start(case, "--plan", "((A B) C)")
        worker.wait_running([0, 1])
        feed = Feed(case)
        for at in range(100):
            for stream, column in (("a", "n"), ("b", "y"), ("c", "y")):
                for part in (0, 1):
                    feed.send(stream, [{"x": 2 * (at % 5) + part, column: at, "at": 1_700_000_000_000 + at * 50}], part)
        feed.flush()

        def seen() -> dict[str, object] | None:
            done = weir(tmp_path, str(case.path), "--analyze", "--json", "--bootstrap", case.bootstrap)
            assert done.returncode == 0, worker.with_log(done.stderr)
            (found,) = json.loads(done.stdout)["analyses"]
            # Both tasks have processed everything but what has the last timestamp.
            return found if sum(task["results"] for task in found["tasks"]) > 0 and _taken(found) == 600 else None

        found = wait_for(seen, lambda: worker.with_log("statistics of all rows"))
        assert found["plan"] == "((A B) C)"
        assert [task["task"] for task in found["tasks"]] == [0, 1]
        inner = next(o for o in found["operators"] if o["name"] == "(A B)")
        assert inner["inputs"] == [198, 198]
        assert inner["complete"] == [True, True]
        assert sum(inner["state_tuples"]) == 396
        done = weir(tmp_path, str(case.path), "--analyze", "--task", "1", "--bootstrap", case.bootstrap)
        assert done.returncode == 0
        assert "hash join ((A B) C)" in done.stdout
        assert "task 1 at 2023-11-14T" in done.stdout
        assert "task 0" not in done.stdout
        page = tmp_path / "plan.html"
        done = weir(tmp_path, str(case.path), "--analyze", "--html", str(page), "--bootstrap", case.bootstrap)
        assert (done.returncode, done.stdout) == (0, f"{page}\n")
        document = _document(page)
        assert document["basis"].startswith("Measured in the running query, ")
        assert [task["task"] for task in document["tasks"]] == [0, 1]
        wrong = weir(tmp_path, str(case.path), "--analyze", "--task", "7", "--bootstrap", case.bootstrap)
        assert (wrong.returncode, "the tasks that run are 0, 1" in wrong.stderr) == (2, True)
    finally:
        workers.end()


def _taken(found: dict[str, list[dict[str, int]]]) -> int:
    return sum(task["input_tuples"] for task in found["tasks"])
