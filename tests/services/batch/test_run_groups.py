"""`weir run` of a file with several queries: every query's results in a file of its own, the bytes it gives alone."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.executors import EXECUTORS
from operators.groups.sharing import APART
from schemas.groups import read_by, streams_of
from services.batch.file_run import Outputs
from services.batch.group_run import GroupRun
from services.files.sinks import LineSink
from services.files.sources import SourceFile
from services.files.tables import read_tables
from tests.group_cases import GroupCase, group_cases
from tests.profiles import examples
from tests.services.batch.test_run import run, write_jsonl
from tests.services.batch.test_run_cli import QUERY, SOURCES, Weir, folder, weir

__all__ = ("folder", "weir")

SECOND = "INSERT INTO 'all' SELECT T.at FROM temperature T [RANGE 1 SECOND];\n"
COUNT = "INSERT INTO 'n' SELECT COUNT(*) AS n FROM humidity H [RANGE 1 SECOND] EMIT EVERY 1 SECOND;\n"
LONE = (
    "INSERT INTO 'n' SELECT H.mote FROM humidity H [RANGE 1 SECOND] "
    "EXCEPT temperature T [RANGE 1 MILLISECOND] ON H.mote = T.mote;\n"
)
ALARMS = b'{"mote":1,"H.percent":2.5,"_ts":2000}\n'
ALL = b'{"T.at":1000,"_ts":1000}\n{"T.at":1500,"_ts":1500}\n'


@examples(60)
@given(
    group_cases(partitions=1, in_files=True),
    st.sampled_from([None, None, APART, *sorted(EXECUTORS)]),
    st.sampled_from([1, 30, 1 << 20]),
    st.sampled_from([0, 5, 100_000]),
)
def test_every_query_has_the_bytes_that_it_gives_alone(
    case: GroupCase, executor: str | None, block_bytes: int, least_tuples: int
) -> None:
    with TemporaryDirectory() as name:
        here = Path(name)
        streams = streams_of(case.queries)
        paths = {s.name: write_jsonl(here / s.name, s, case.rows[s.name][0]) for s in streams}
        whole = read_by(case.queries)
        rows = {t.name: str(write_jsonl(here / t.name, t, case.tables[t.name])) for t in whole.tables()}
        files = {s.name: SourceFile(s, str(paths[s.name]), block_bytes=block_bytes) for s in streams}
        sinks = {query.name: LineSink("--out", str(here / f"{query.name}.jsonl")) for query in case.queries}
        late, dead = LineSink("--late", str(here / "late")), LineSink("--dead-letters", str(here / "dead"))
        tables = read_tables(whole, rows)
        job = GroupRun(
            case.queries,
            files,
            Outputs(list(sinks.values()), late, dead),
            epoch_ms=case.epoch_ms,
            executor=executor,
            least_tuples=least_tuples,
            tables=tables,
        )
        job.run()
        for sink in (*sinks.values(), late, dead):
            sink.close()
        refused: set[bytes] = set()
        for query in case.queries:
            (alone := here / f"alone {query.name}").mkdir()
            _, wanted = run(query, paths, alone, epoch_ms=case.epoch_ms, tables=read_tables(query, rows))
            assert (here / f"{query.name}.jsonl").read_bytes() == wanted
            refused |= set((alone / "late.jsonl").read_bytes().splitlines())
        assert set((here / "late").read_bytes().splitlines()) == refused


def test_a_folder_with_a_file_for_every_query(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND + COUNT)
    args = ("run", "q.sql", *SOURCES, "--out", "new/results", "--stats", "stats.json")
    assert weir(*args) == (0, b"", "")
    assert Path("new/results/alarms.jsonl").read_bytes() == ALARMS
    assert Path("new/results/all.jsonl").read_bytes() == ALL
    assert sorted(path.name for path in Path("new/results").iterdir()) == ["alarms.jsonl", "all.jsonl", "n.jsonl"]
    stats = json.loads(Path("stats.json").read_text())
    assert (stats["input_tuples"], stats["late"], stats["dead_letters"]) == (3, 0, 0)
    assert [(one["name"], one["results"]) for one in stats["queries"]] == [("alarms", 1), ("all", 2), ("n", 2)]
    assert stats["results"] == sum(entry["results"] for entry in stats["timeline"]) == 5
    # Once more, in place of what is there.
    first = Path("new/results/n.jsonl").read_bytes()
    code, _, err = weir(*args, "-v", "--executor", "apart")
    assert code == 0
    assert "weir: all: 2 results (apart, xjoin T)\n" in err
    assert Path("new/results/n.jsonl").read_bytes() == first
    assert weir("run", "q.sql", *SOURCES[2:], "--query", "n")[1] == first


def test_that_plans_of_a_group_are_not_adapted_is_said_if_that_was_asked(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND)
    args = ("run", "q.sql", *SOURCES, "--out", "r", "--adapt")
    for mode in ("on", "advise"):
        why = f"weir: --adapt {mode}: the plans stay, since those of a group of queries are not adapted\n"
        assert weir(*args, mode) == (0, b"", why)
    assert weir(*args, "off") == (0, b"", "")


def test_late_and_dead_letters_of_a_group_are_written_once(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND)
    Path("t.jsonl").write_text('{"mote":1,"at":9000}\n{"mote":"x","at":9000}\n{"mote":1,"at":1000}\n')
    code, _, err = weir("run", "q.sql", *SOURCES, "--out", "r")
    assert code == 0
    assert "weir: 1 late tuple left out" in err
    assert "weir: 1 dead letter (" in err
    assert weir("run", "q.sql", *SOURCES, "--out", "r", "--late", "l", "--dead-letters", "d") == (0, b"", "")
    assert Path("l").read_bytes() == b'{"mote":1,"at":1000}\n'
    assert len(Path("d").read_bytes().splitlines()) == 1


@pytest.mark.parametrize("executor", ["juggler", "apart"])
def test_one_query_by_an_executor_of_groups(executor: str, folder: Path, weir: Weir) -> None:
    assert weir("run", "q.sql", *SOURCES, "--executor", executor) == (0, ALARMS, "")


def test_what_cannot_share_an_operator_runs_apart_unless_all_must(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND + COUNT.replace("'n'", "'counts'") + LONE)
    code, _, err = weir("run", "q.sql", *SOURCES, "--out", "r", "-v")
    assert code == 0
    assert err.splitlines()[1:] == [
        "weir: alarms: 1 result (shared, juggler)",
        "weir: all: 2 results (shared, juggler)",
        "weir: counts: 2 results (shared, juggler)",
        "weir: n: 2 results (apart, xjoin (H T))",
    ]
    code, _, err = weir("run", "q.sql", *SOURCES, "--out", "r", "--executor", "juggler")
    assert (code, err) == (
        2,
        "weir: query 'n': a shared operator does not go with EXCEPT: the operator joins, and EXCEPT subtracts; run it "
        "standalone\n",
    )


BOTH = """INSERT INTO 'both' SELECT T.at, H.at AS other
FROM temperature T [RANGE 300 MILLISECONDS], humidity H [ROWS 40] WHERE T.mote = H.mote;
"""


@pytest.mark.parametrize("args", [("--memory", "1b"), ("--memory", "99KiB", "--executor", "apart", "--spill-dir", "d")])
def test_a_group_within_a_memory_budget(args: tuple[str, ...], folder: Path, weir: Weir) -> None:
    """The same results, some of them late."""
    Path("q.sql").write_text(QUERY + BOTH)
    sources = ("--source", "temperature=t.jsonl", "--source", "humidity=h.jsonl")
    with Path("t.jsonl").open("w") as temperature, Path("h.jsonl").open("w") as humidity:
        for at in range(0, 6000, 2):
            temperature.write(f'{{"mote":{at % 97},"at":{at}}}\n')
            humidity.write(f'{{"mote":{at % 89},"percent":1.5,"at":{at + 1}}}\n')
    assert weir("run", "q.sql", *sources, "--out", "whole", "--epoch", "100ms") == (0, b"", "")
    code, _, err = weir("run", "q.sql", *sources, "--out", "r", "--epoch", "100ms", "--stats", "s.json", *args)
    assert (code, err) == (0, "")
    late = 0
    for name in ("alarms", "both"):
        whole = Path(f"whole/{name}.jsonl").read_text().splitlines()
        lines = Path(f"r/{name}.jsonl").read_text().splitlines()
        late += sum('"_phase":"cleanup"' in line for line in lines)
        assert sorted(line.replace(',"_phase":"cleanup"', "") for line in lines) == sorted(whole)
    assert late
    stats = json.loads(Path("s.json").read_text())
    assert sum(part["spill"]["cleanup_results"] for part in stats["parts"]) == late
    assert all(part["spill"]["owed"] == 0 for part in stats["parts"])


def test_a_budget_and_feedback_for_a_group(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND + COUNT.replace("[RANGE 1 SECOND]", "[ROWS 3]"))
    for more in (("--memory", "1MiB"), (), ("--executor", "apart"), ("--stats", "s.json")):
        assert weir("run", "q.sql", *SOURCES, "--out", "r", "--jit", "on", *more) == (0, b"", "")
        assert Path("r/alarms.jsonl").read_bytes() == ALARMS
    stats = json.loads(Path("s.json").read_text())
    (idle,) = stats["feedback"]["edges"]
    assert idle["consumer"] == "an empty input"
    assert [part["feedback"]["edges"] for part in stats["parts"]] == [[idle], []]


def test_explain_of_a_group(folder: Path, weir: Weir) -> None:
    counts = COUNT.replace("'n'", "'counts'")
    Path("q.sql").write_text(QUERY + SECOND.replace(";", " WHERE T.mote > 1;") + counts + LONE)
    code, out, err = weir("explain", "q.sql")
    assert (code, err) == (0, "")
    assert out.decode().split("\n\n")[:4] == [
        "operator over T, H, shared by 3 queries",
        "query  alarms  ->  topic alarms\nquery  all  ->  topic all\nquery  counts  ->  topic counts\n"
        "       aggregate every 1 SECOND\n       value COUNT(*)",
        "input temperature T [RANGE 5 SECONDS]  (alarms, all)\ninput humidity H [RANGE 5 SECONDS]  (alarms, counts)",
        "2 predicates, of 2 in the queries\nattribute list\n  T.mote > 1  (all)\n"
        "join list\n  T.mote = H.mote  (alarms)",
    ]
    assert "H is taken off" in out.decode() or "difference" in out.decode(), out.decode()
    code, out, err = weir("explain", "q.sql", "--plan", "(T H)")
    assert (code, out) == (2, b"")
    assert "--plan is about one query, and q.sql has 4: --query of 'alarms', 'all', 'counts', 'n'" in err
    assert "plan   (H T)" in weir("explain", "q.sql", "--plan", "(H T)", "--query", "alarms")[1].decode()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (SOURCES, "q.sql has 2 queries: name a folder for their results with --out DIR, or pick one with --query: 'al"),
        ((*SOURCES, "--out", "t.jsonl"), "--out t.jsonl is no folder, and each of 2 queries needs a file of its own"),
        ((*SOURCES, "--out", "q.sql/r"), "--out: cannot create the folder q.sql/r: Not a directory"),
        ((*SOURCES[:2], "--out", "r"), "no source for 'humidity': add --source humidity=PATH"),
        ((*SOURCES, "--source", "T=t.jsonl", "--out", "r"), "--source T: the query reads no such stream"),
        ((*SOURCES, "--out", "r", "--plan", "(T H)"), "--plan is about the plan of one query, and q.sql has 2 queries"),
        ((*SOURCES, "--out", "r", "--spill", "top"), "--spill top has no effect without --memory, such as --memory"),
        ((*SOURCES, "--out", "r", "--memory", "1MiB", "--cleanup", "none", "--spill-dir", "d"),
         "--cleanup none is about the plan of one query, and q.sql has 2 queries"),
        ((*SOURCES, "--out", "r", "--migrate", "5:(T H):jisc"), "--migrate is about the plan of one query"),
        ((*SOURCES, "--out", "r", "--late", "r/all.jsonl"), "--late r/all.jsonl is the same file as --out all"),
        ((*SOURCES, "--query", "some"), "--query some: q.sql has 'alarms', 'all'"),
    ],
)  # fmt: skip
def test_wrong_arguments_exit_2_before_anything_is_touched(
    args: tuple[str, ...], message: str, folder: Path, weir: Weir
) -> None:
    Path("q.sql").write_text(QUERY + SECOND)
    before = sorted(folder.iterdir())
    code, out, err = weir("run", "q.sql", *args)
    assert (code, out) == (2, b"")
    assert message in err
    assert err.startswith("weir: ")
    assert len(err.splitlines()) == 1
    assert sorted(folder.iterdir()) == before


def test_a_second_query_of_one_name_is_shown_where_it_stands(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + SECOND.replace("'all'", "'alarms'"))
    code, _, err = weir("run", "q.sql", *SOURCES, "--out", "r")
    assert code == 2
    first, line, caret = err.splitlines()
    assert "a second query writes to 'alarms'; each query needs a topic of its own" in first
    assert line[caret.index("^") : caret.rindex("^") + 1] == "'alarms'"
