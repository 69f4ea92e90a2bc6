"""`weir run` and `weir explain` from the command line: exit codes, messages, outputs, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from operators.data.statistics import MESSAGES
from services import cli

QUERY = """\
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = 't', timestamp = 'at', disorder = '2 SECONDS');
CREATE STREAM humidity (mote BIGINT, percent DOUBLE, at TIMESTAMP)
  WITH (topic = 'h', timestamp = 'at');
CREATE STREAM untimed (mote BIGINT) WITH (topic = 'u');
INSERT INTO 'alarms'
SELECT T.mote AS mote, H.percent
FROM temperature T [RANGE 5 SECONDS], humidity H [RANGE 5 SECONDS]
WHERE T.mote = H.mote;
"""
ANSWER = b'{"mote":1,"H.percent":2.5,"_ts":2000}\n'
COMMAND = [sys.executable, "-m", "services.cli"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a query and two sources, as the current one."""
    monkeypatch.chdir(tmp_path)
    Path("q.sql").write_text(QUERY)
    Path("t.jsonl").write_text('{"mote":1,"celsius":41.5,"at":1000}\n{"mote":2,"celsius":1,"at":1500}\n')
    Path("h.csv").write_text("mote,percent,at\n1,2.5,1970-01-01T00:00:02Z\n")
    return tmp_path


SOURCES = ("--source", "temperature=t.jsonl", "--source", "humidity=h.csv")


class Weir:
    """Runs the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capfdbinary

    def __call__(self, *args: str) -> tuple[int, bytes, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["weir", *args])
        with pytest.raises(SystemExit) as exit_:
            sys.exit(cli.main())  # type: ignore[func-returns-value]
        out, err = self._capture.readouterr()
        return int(exit_.value.code or 0), out, err.decode()


@pytest.fixture
def weir(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Weir:
    return Weir(monkeypatch, capfdbinary)


def test_results_go_to_standard_output_and_nothing_else(folder: Path, weir: Weir) -> None:
    assert weir("run", "q.sql", *SOURCES) == (0, ANSWER, "")


def test_verbose_prints_one_summary_line(folder: Path, weir: Weir) -> None:
    code, out, err = weir("run", "q.sql", *SOURCES, "-v", "--out", "r.jsonl", "--plan", "(H T)")
    assert (code, out) == (0, b"")
    assert err.startswith("weir: 3 tuples, 1 result, 0 late, 0 dead letters in ")
    assert err.rstrip().endswith("plan (H T)")
    assert Path("r.jsonl").read_bytes() == ANSWER


def test_repeats_are_dropped_and_counted(folder: Path, weir: Weir) -> None:
    """The second is a repeat, the third comes too long after the first."""
    options = "disorder = '2 SECONDS', deduplicate = 'mote', deduplicate_within = '1 SECOND'"
    Path("q.sql").write_text(QUERY.replace("disorder = '2 SECONDS'", options))
    times = (2000, 1000, 2001, 2500)
    Path("t.jsonl").write_text("".join(f'{{"mote":1,"at":{at}}}\n' for at in times))
    Path("h.csv").write_text("mote,percent,at\n1,2.5,2600\n")
    code, out, err = weir("run", "q.sql", *SOURCES, "-v", "--stats", "stats.json")
    assert (code, [json.loads(line)["_ts"] for line in out.splitlines()]) == (0, [2600, 2600])
    assert "5 tuples, 2 results, 0 late, 2 repeats, " in err
    assert json.loads(Path("stats.json").read_text())["deduplicated"] == 2


def test_no_input_has_no_event_times(folder: Path, weir: Weir) -> None:
    """The timeline told of a second of 1970."""
    Path("t.jsonl").write_text("")
    Path("h.csv").write_text(Path("h.csv").read_text().partition("\n")[0] + "\n")
    weir("run", "q.sql", *SOURCES, "--stats", "s.json", "--out", "r.jsonl")
    assert json.loads(Path("s.json").read_bytes())["timeline"] == []


def test_statistics_have_all_keys_of_the_design(folder: Path, weir: Weir) -> None:
    with Path("t.jsonl").open("a") as file:
        file.write('{"mote":1,"at":9000}\n{"mote":1,"at":1000}\noops\n')
    weir("run", "q.sql", *SOURCES, "--stats", "s.json", "--late", "l.jsonl", "--dead-letters", "d.jsonl")
    stats = json.loads(Path("s.json").read_bytes())
    assert {
        "input_tuples", "results", "late", "dead_letters", "comparisons", "intermediate_results",
        "peak_state_tuples", "peak_state_bytes", "seconds", "plan", "migrations", "feedback", "spill",
        "timeline",
    } <= set(stats)  # fmt: skip
    assert (stats["input_tuples"], stats["results"], stats["late"], stats["dead_letters"]) == (5, 1, 1, 1)
    assert stats["migrations"] == []
    assert stats["feedback"].keys() == {*MESSAGES, "suppressed_results", "detecting_s", "edges"}
    keys = {"spills", "spilled_tuples", "spilled_bytes", "owed", "cleanup_results", "cleanup_seconds"}
    assert keys <= set(stats["spill"])
    assert {"event_time", "results", "state_tuples", "comparisons"} <= set(stats["timeline"][-1])
    assert stats["timeline"][-1]["event_time"] == 10_000
    assert stats["plan"] in ("(T H)", "(H T)")
    assert Path("l.jsonl").read_text() == '{"mote":1,"at":1000}\n'
    assert json.loads(Path("d.jsonl").read_text())["line"] == 5


@pytest.mark.parametrize("executor", ["xjoin", "mjoin", "eddy", "stairs"])
def test_every_executor_answers(executor: str, folder: Path, weir: Weir) -> None:
    assert weir("run", "q.sql", *SOURCES, "--executor", executor, "--stats", "s.json") == (0, ANSWER, "")
    assert json.loads(Path("s.json").read_bytes())["executor"] == executor


def test_what_is_left_out_is_said(folder: Path, weir: Weir) -> None:
    with Path("t.jsonl").open("a") as file:
        file.write('{"mote":1,"at":9000}\n{"mote":1,"at":1000}\noops\n')
    code, out, err = weir("run", "q.sql", *SOURCES)
    assert (code, out) == (0, ANSWER)
    assert err.splitlines() == [
        "weir: 1 dead letter (--dead-letters FILE keeps them), the first is t.jsonl:5: "
        "broken JSON: expected a value at character 1, found 'oops'",
        "weir: 1 late tuple left out (--late FILE keeps them)",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no source for 'temperature', 'humidity': add --source temperature=PATH"),
        (("--source", "temperature=t.jsonl"), "no source for 'humidity'"),
        (("--source", "temprature=t.jsonl"), "'temperature', 'humidity', did you mean 'temperature'?"),
        (("--source", "T=t.jsonl"), "'T' is an alias of stream 'temperature'"),
        (("--source", "untimed=t.jsonl"), "--source untimed: the query reads no such stream"),
        (("--source", "t.jsonl"), "--source 't.jsonl' is not of the form NAME=PATH"),
        (("--source", "temperature="), "is not of the form NAME=PATH"),
        ((*SOURCES, "--source", "humidity=x"), "--source humidity is given twice: h.csv and x"),
        (("--source", "temperature=-", "--source", "humidity=-"), "standard input is taken"),
        (("--source", "temperature=q.sql", "--source", "humidity=h.csv"), "q.sql tells no format, accepted"),
        ((*SOURCES, "--plan", "(T X)"), "unknown alias 'X'"),
        ((*SOURCES, "--epoch", "5"), "a duration is a number and a unit"),
        ((*SOURCES, "--epoch", "0s"), "an epoch is at least 1ms"),
        ((*SOURCES, "--query", "alarm"), "--query alarm: q.sql has 'alarms', did you mean 'alarms'?"),
        ((*SOURCES, "--out", "t.jsonl"), "--out t.jsonl is the same file as --source temperature"),
        ((*SOURCES, "--out", "./q.sql"), "--out ./q.sql is the same file as the query"),
        ((*SOURCES, "--out", "a", "--late", "../{here}/a"), "is the same file as --out"),
        ((*SOURCES, "--out", "no/such/folder"), "--out: cannot create no/such/folder: No such"),
        ((*SOURCES, "--migrate", "5:(T H) jisc"), "--migrate '5:(T H) jisc': expected TS:PLAN:STRATEGY"),
        ((*SOURCES, "--migrate", "5:(T H):lazy"), "--migrate: unknown migration strategy 'lazy'; there are"),
        ((*SOURCES, "--migrate", "soon:(T H):jisc"), "--migrate: 'soon' is not of the form YYYY-MM-DD"),
        ((*SOURCES, "--migrate", "-5:(T H):jisc"), "--migrate: the event time '-5' is before 1970"),
        ((*SOURCES, "--memory", "much"), "a size is a number of bytes, or a number and a unit, such as 64MiB"),
        ((*SOURCES, "--memory", "1MiB", "--spill", "top"), "no spill strategy 'top'; there are bottom-up, local-out"),
        ((*SOURCES, "--spill", "bottom-up"), "--spill bottom-up has no effect without --memory"),
        ((*SOURCES, "--spill-dir", "d"), "--spill-dir d has no effect without --memory"),
        ((*SOURCES, "--cleanup", "none"), "--cleanup none has no effect without --memory"),
        ((*SOURCES, "--executor", "apart", "--plan", "(T H)"), "--plan is about the plan of one query, and --exec"),
    ],
)  # fmt: skip
def test_wrong_arguments_exit_2_before_anything_is_touched(
    args: tuple[str, ...], message: str, folder: Path, weir: Weir
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, err = weir("run", "q.sql", *(arg.replace("{here}", folder.name) for arg in args))
    assert (code, out) == (2, b"")
    assert message in err
    assert err.startswith("weir: ")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_wrong_query_exits_2_with_a_caret(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY.replace("T.mote = H.mote", "T.mote = H.mot"))
    code, out, err = weir("run", "q.sql", *SOURCES)
    assert (code, out) == (2, b"")
    first, line, caret = err.splitlines()
    assert "(line 9, column 18)" in first
    assert line == "  WHERE T.mote = H.mot;"
    assert caret == " " * 19 + "^^^"


def test_unusable_query_files(folder: Path, weir: Weir) -> None:
    assert weir("run", "none.sql")[::2] == (
        2,
        "weir: cannot read the query none.sql: No such file or directory\n",
    )
    Path("q.sql").write_bytes(b"\xff\xfe")
    assert weir("run", "q.sql")[0] == 2
    Path("q.sql").write_text(QUERY.split("INSERT")[0])
    assert "declares streams but has no SELECT" in weir("run", "q.sql")[2]


def test_one_of_several_queries(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY + "INSERT INTO 'all' SELECT T.at FROM temperature T [RANGE 1 SECOND];")
    assert "or pick one with --query: 'alarms', 'all'" in weir("run", "q.sql")[2]
    code, out, _ = weir("run", "q.sql", "--query", "all", "--source", "temperature=t.jsonl")
    assert (code, out) == (0, b'{"T.at":1000,"_ts":1000}\n{"T.at":1500,"_ts":1500}\n')


def test_reserved_output_and_stream_without_timestamp(folder: Path, weir: Weir) -> None:
    Path("q.sql").write_text(QUERY.replace("AS mote", "AS _ts"))
    code, _, err = weir("run", "q.sql", *SOURCES)
    assert code == 2
    Path("q.sql").write_text(QUERY.split("INSERT")[0] + "SELECT U.mote FROM untimed U [RANGE 1 SECOND]")
    code, _, err = weir("run", "q.sql", "--source", "untimed=t.jsonl")
    assert code == 2
    assert "takes the Kafka record's timestamp, which a file does not have" in err
    Path("q.sql").write_text(
        "CREATE STREAM s (k BIGINT, at TIMESTAMP) WITH (timestamp = 'at');"
        "CREATE TABLE c (id BIGINT PRIMARY KEY) WITH (topic = 'c', format = 'debezium-json');"
        "SELECT S.k FROM s S [RANGE 1 SECOND], c FOR SYSTEM_TIME AS OF S._ts AS C WHERE C.id = S.k"
    )
    code, _, err = weir("run", "q.sql", "--source", "s=t.jsonl", "--source", "c=t.jsonl")
    assert code == 2
    assert "table 'c' is read from a topic, where Debezium describes its changes" in err
    code, _, err = weir("run", "q.sql", "--source", "s=t.jsonl", "--source", "c=t.jsonl", "--table", "c=t.jsonl")
    assert code == 2
    assert "--table c: the rows of this table are in a topic; `weir run` reads their versions from --source" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "source 'humidity': cannot open missing.jsonl: No such file or directory"),
        (
            "h2.csv",
            b"mote,percent,when\n",
            "h2.csv: stream 'humidity' declares column 'at', which the header",
        ),
        ("h2.csv", b"", "h2.csv is empty, expected a CSV header"),
        ("h2.parquet", b"PAR1", "h2.parquet: not a readable Parquet file"),
        ("h2.jsonl.gz", b"oops", "h2.jsonl.gz: cannot be read further"),
    ],
)
def test_unreadable_sources_exit_1(
    name: str, content: bytes | None, message: str, folder: Path, weir: Weir
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    code, out, err = weir("run", "q.sql", "--source", "temperature=t.jsonl", "--source", f"humidity={name}")
    assert (code, out) == (1, b"")
    assert message in err
    assert len(err.splitlines()) == 1


def test_truncated_gzip_is_an_error_and_not_an_end(folder: Path, weir: Weir) -> None:
    import gzip

    lines = "".join(f'{{"mote":{i},"at":{i}}}\n' for i in range(100_000)).encode()
    Path("t.jsonl.gz").write_bytes(gzip.compress(lines)[:-2000])
    code, _, err = weir("run", "q.sql", "--source", "temperature=t.jsonl.gz", "--source", "humidity=h.csv")
    assert code == 1
    assert err.startswith("weir: t.jsonl.gz: cannot be read further: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("option", ["--out", "--stats"])
def test_full_disk_is_one_clear_line(option: str, folder: Path, weir: Weir) -> None:
    code, _, err = weir("run", "q.sql", *SOURCES, option, "/dev/full")
    assert code == 1
    assert err == (
        "weir: cannot write /dev/full: No space left on device (ENOSPC); its last line may be incomplete\n"
    )


def test_options_from_the_environment(folder: Path, weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SOURCES", "temperature=t.jsonl humidity=h.csv")
    monkeypatch.setenv("WEIR_OUT", "r.jsonl")
    assert weir("run", "q.sql")[0] == 0
    assert Path("r.jsonl").read_bytes() == ANSWER


def test_plan_changes_from_the_environment(folder: Path, weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks separate them, and are in their plans, too."""
    monkeypatch.setenv("WEIR_MIGRATE", "5:(T H):gms 1970-01-01T00:00:06Z:( H  T ):jisc")
    code, out, err = weir("run", "q.sql", *SOURCES, "--stats", "s.json")
    assert (code, out) == (0, ANSWER), err
    stats = json.loads(Path("s.json").read_bytes())["migrations"]
    assert [(one["cut"], one["to_plan"], one["asked"]) for one in stats] == [
        (5, "(T H)", "gms"),
        (6000, "(H T)", "jisc"),
    ]
    monkeypatch.delenv("WEIR_MIGRATE")
    code, _, err = weir("run", "q.sql", *SOURCES, "--migrate", "5:(T H", "--migrate", "6:(H T):jisc")
    assert (code, err[:50]) == (2, "weir: --migrate '5:(T H': expected TS:PLAN:STRATEG")


def test_every_option_says_its_environment_variable(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    for command in ("run", "explain"):
        _, out, _ = weir(command, "--help")
        text = out.decode()
        for line in text.splitlines():
            if line.startswith("│ --") and "--help" not in line:
                assert "env var: WEIR_" in text[text.index(line) :].split("│ --")[1], line


def test_explain(folder: Path, weir: Weir) -> None:
    code, out, err = weir("explain", "q.sql", "--plan", "(H T)")
    assert (code, err) == (0, "")
    assert "plan   (H T)" in out.decode()
    assert "T.mote" in out.decode()
    code, out, _ = weir("explain", "q.sql", *SOURCES)
    assert code == 0
    assert "sampled statistics" in out.decode()
    assert weir("explain", "q.sql", "--plan", "(H")[0] == 2


# --- In a process of its own ----------------------------------------------------------------------------


def test_standard_input_and_a_closed_output(folder: Path) -> None:
    command = [*COMMAND, "run", "q.sql", "--source", "temperature=-", "--source", "humidity=h.csv"]
    data = Path("t.jsonl").read_bytes()
    done = subprocess.run(
        command, input=b"\xef\xbb\xbf" + data, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER, b"")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, input=data, stdout=writing, stderr=subprocess.PIPE, timeout=120, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_results_of_a_live_pipe_come_before_its_end_and_ctrl_c_is_clean(folder: Path) -> None:
    command = [
        *COMMAND,
        "run",
        "q.sql",
        "--source",
        "temperature=-",
        "--source",
        "humidity=h.csv",
        "--out",
        "r.jsonl",
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"mote":1,"at":1000}\n{"mote":3,"at":9000}\n')
        process.stdin.flush()
        deadline = time.monotonic() + 120
        while not (Path("r.jsonl").exists() and Path("r.jsonl").read_bytes() == ANSWER):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"weir: interrupted; 1 result written\n"
        assert Path("r.jsonl").read_bytes() == ANSWER
    finally:
        process.kill()
        process.wait()
