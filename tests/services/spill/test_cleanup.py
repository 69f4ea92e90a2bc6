"""`weir run --cleanup none` and `weir cleanup`: all results, each once, whatever happens in between."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema
from typer.testing import CliRunner

from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all
from ops.spark.delivery import TopicDestination
from schemas.codecs.results import ResultRecords
from schemas.columns import Batch
from schemas.errors import BrokerError
from services.cli import app
from services.process.security import KafkaClients
from services.spill import backlog as backlogs
from services.spill.backlog import FILE, open_backlog
from services.spill.block_store import SpillStore
from services.spill.destinations import deliver
from tests.broker_fixture import Topics
from tests.registry_fixture import client_of, rows_of_avro
from tests.services.four_streams import QUERY, SOURCES, write_four_streams
from tests.worker_harness import Reader, canonical, unmarked, wait_for

Rows = list[dict[str, Any]]


def weir(*arguments: str) -> tuple[int, str, str]:
    """Run a command; returns exit code, standard output and standard error."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr + str(result.exception or "")


def counted(rows: Rows) -> Counter[str]:
    return Counter(json.dumps({key: value for key, value in row.items() if key != "_phase"}) for row in rows)


def rows_of(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Left:
    """A run that has left a backlog in the folder `backlog`, and the results that it should have found."""

    def __init__(self, folder: Path, text: str = QUERY) -> None:
        self.folder = write_four_streams(folder, 100)
        query = text.replace("WINDOW RANGE 2 SECONDS", "WINDOW UNBOUNDED").replace("b B", "b B [ROWS 70]")
        (folder / "q.sql").write_text(query)
        self.run("all.jsonl")
        budget = ("--memory", "60KiB", "--cleanup", "none", "--spill-dir", self.path("backlog"))
        budget += ("--stats", self.path("stats.json"))
        self.said = self.run("some.jsonl", *budget)
        self.expected = counted(rows_of(folder / "all.jsonl"))
        self.found = counted(rows_of(folder / "some.jsonl"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def run(self, out: str, *options: str) -> str:
        sources = [f"--source={name}={self.path(name)}.jsonl" for name in "abcd"]
        plan = ("--plan", "(((A B) C) D)")
        code, _, stderr = weir("run", self.path("q.sql"), *sources, *plan, "--out", self.path(out), *options)
        assert code == 0, stderr
        return stderr

    def exact(self, rest: Rows) -> bool:
        return self.found + counted(rest) == self.expected and all(row["_phase"] == "cleanup" for row in rest)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("left"))


@pytest.fixture
def backlog(left: Left, tmp_path: Path) -> Path:
    """A copy of the folder with the backlog."""
    return Path(shutil.copytree(left.path("backlog"), tmp_path / "backlog"))


def test_a_run_saves_and_reports_its_backlog(left: Left) -> None:
    assert re.fullmatch(
        r"weir: [0-9,]+ pairs of tuples were not compared for lack of memory; "
        rf"`weir cleanup {left.path('backlog')}` produces the results among them\n",
        left.said,
    )
    assert left.found.total() < left.expected.total()
    assert not left.found - left.expected
    stats = json.loads(Path(left.path("stats.json")).read_text())
    pending = int(left.said.split()[1].replace(",", ""))
    assert (stats["results"], stats["spill"]["cleanup_results"]) == (left.found.total(), 0)
    assert stats["spill"]["owed"] == pending > 0


def test_a_cleanup_finds_the_rest_once(left: Left, backlog: Path, tmp_path: Path) -> None:
    rest = tmp_path / "rest.jsonl"
    code, shown, stderr = weir("cleanup", str(backlog), "--out", str(rest), "--of", left.path("q.sql"))
    assert (code, shown) == (0, ""), stderr
    assert left.exact(rows_of(rest))
    pending = (left.expected - left.found).total()
    assert stderr.startswith(f"weir: wrote {pending:,} pending results to {rest} in ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backlog", "rest.jsonl"]

    rest.unlink()
    code, shown, stderr = weir("cleanup", str(backlog), "--out", str(rest))
    assert (code, shown) == (0, "")
    assert stderr == f"weir: {backlog} was cleaned up before: {pending:,} results, to {rest}; nothing to do\n"
    assert not rest.exists()
    # A folder whose backlog is cleaned up is free for the next run.
    backlogs.check_free(backlog)
    assert not (backlog / FILE).exists()


def test_standard_output(left: Left, backlog: Path) -> None:
    code, shown, stderr = weir("cleanup", str(backlog))
    assert code == 0, stderr
    assert left.exact([json.loads(line) for line in shown.splitlines()])


def test_a_cleanup_that_is_killed_is_repeated(left: Left, backlog: Path, tmp_path: Path) -> None:
    rest = tmp_path / "rest.jsonl"
    command = [sys.executable, "-m", "services.cli", "cleanup", str(backlog), "--out", str(rest)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.glob(".rest.jsonl.*")) or rest.exists(), "a cleanup that has begun")
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, _, stderr = weir("cleanup", str(backlog), "--out", str(rest))
    assert code == 0, stderr
    assert left.exact(rows_of(rest))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backlog", "rest.jsonl"]


def test_a_cleanup_that_dies_unrecorded_writes_the_same_file_again(left: Left, backlog: Path, tmp_path: Path) -> None:
    rest = tmp_path / "rest.jsonl"
    before = (backlog / FILE).read_bytes()
    shutil.copytree(backlog, tmp_path / "kept")
    assert weir("cleanup", str(backlog), "--out", str(rest))[0] == 0
    first = rest.read_bytes()
    # The state when the file has its name but the manifest does not record the end of the cleanup.
    shutil.rmtree(backlog)
    shutil.copytree(tmp_path / "kept", backlog)
    assert (backlog / FILE).read_bytes() == before
    with open_backlog(backlog) as opened:
        backlogs.note_destination(opened, str(rest))
    other = str(tmp_path / "other.jsonl")
    code, _, stderr = weir("cleanup", str(backlog), "--out", other)
    assert code == 1
    assert f"a cleanup of {backlog} to {rest} has begun, and some results may be there: finish it there" in stderr
    assert weir("cleanup", str(backlog), "--out", str(rest))[0] == 0
    assert rest.read_bytes() == first


class Shelf:
    """A destination that has some groups already."""

    def __init__(self, has: dict[int, int]) -> None:
        self.has = has
        self.given: dict[int, int] = {}

    def delivered_groups(self) -> dict[int, int]:
        return self.has

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        self.given[group] = sum(len(batch) for batch in batches)
        return self.given[group]

    def finish(self) -> None:
        assert self.given

    def close(self) -> None:
        raise AssertionError("its owner closes it")


def test_a_destination_does_not_receive_its_groups_again(backlog: Path) -> None:
    """This holds also if the cleanup computes all groups, as Spark does."""
    shelf = Shelf({0: 10, 5: 2})
    with open_backlog(backlog) as opened:
        batches = [Batch(np.arange(3), {}), Batch(np.arange(4), {})]
        assert deliver(opened, "a shelf", shelf, [(0, batches), (1, batches)]) == 19
    assert shelf.given == {1: 7}
    assert backlogs.manifest_in(backlog).results == 19
    store = SpillStore(backlog)
    assert store.keys() == []
    store.close()


def test_damage_is_reported(left: Left, backlog: Path, tmp_path: Path) -> None:
    rest = tmp_path / "rest.jsonl"
    store = SpillStore(backlog)
    key = store.keys()[0]
    raw = store.get(key)
    store.put(key, raw[:-1] + bytes([raw[-1] ^ 1]))
    store.close()
    code, _, stderr = weir("cleanup", str(backlog), "--out", str(rest))
    assert code == 1
    assert f"block at {backlog} under '{key}' is damaged: checksum " in stderr
    assert "run the query again from its sources, with an empty folder" in stderr
    store = SpillStore(backlog)
    store.delete([key])
    store.close()
    code, _, stderr = weir("cleanup", str(backlog), "--out", str(rest))
    assert code == 1
    assert f"block '{key}' is not in spill folder {backlog}" in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["backlog"]
    assert backlogs.manifest_in(backlog).results is None

    raw = (backlog / FILE).read_bytes()
    for text, shown in (
        (raw[:-2], f"{backlog / FILE} is damaged: checksum "),
        (raw.replace(b'"format":1', b'"format":2'), "written by a newer Weir (format 2, this one reads 1): upgrade"),
        (b"{}", "is no backlog of Weir ("),
    ):
        (backlog / FILE).write_bytes(text)
        code, _, stderr = weir("cleanup", str(backlog))
        assert code == 1
        assert shown in stderr


def test_refusals(left: Left, backlog: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sql"
    other.write_text(QUERY)
    cases = [
        ((str(backlog), "--of", str(other)), "the backlog is of query 'results' ("),
        ((str(tmp_path),), f"{tmp_path} holds no backlog; accepted is a folder that `weir run --cleanup none"),
        ((str(backlog), "--out", "x", "--topic", "y"), "--out x and --topic y: results go to one of them"),
        ((str(backlog), "--share", "x"), "--share x has no effect without --spark"),
        ((str(backlog), "--out", "/no/x"), "--out: cannot create /no/x: No such file"),
    ]
    for arguments, shown in cases:
        code, _, stderr = weir("cleanup", *arguments)
        assert code != 0
        assert shown in stderr
    manifest = backlogs.manifest_in(backlog)
    backlogs.write(backlog, msgspec.structs.replace(manifest, fingerprint="0" * 16))
    code, _, stderr = weir("cleanup", str(backlog))
    assert "is the backlog of query 0000000000000000, and this Weir reads its text as " in stderr
    backlogs.write(backlog, msgspec.structs.replace(manifest, text="SELECT"))
    assert f"the query in {backlog / FILE} is not one of this Weir: " in weir("cleanup", str(backlog))[2]


def test_runs_refuse_options_that_save_no_backlog(left: Left, backlog: Path) -> None:
    command = ("run", left.path("q.sql"), *SOURCES)
    cases = [
        (("--cleanup", "none"), "--cleanup none has no effect without --memory"),
        (("--memory", "1MiB", "--cleanup", "none"), "name it with --spill-dir"),
        (("--memory", "1MiB", "--spill-dir", str(backlog)), f"--spill-dir {backlog} holds pending results of query 'r"),
    ]
    for options, shown in cases:
        code, _, stderr = weir(*command, *options)
        assert code != 0
        assert shown in stderr


def test_a_run_without_pending_results_reports_it(left: Left, tmp_path: Path) -> None:
    folder = str(tmp_path / "backlog")
    stderr = left.run("again.jsonl", "--memory", "64MiB", "--cleanup", "none", "--spill-dir", folder)
    assert stderr == "weir: no results are pending\n"
    assert counted(rows_of(left.folder / "again.jsonl")) == left.expected
    assert f"{folder} holds no backlog; accepted is" in weir("cleanup", folder)[2]


@pytest.mark.deep
@pytest.mark.kafka
def test_a_topic_gets_each_result_once(left: Left, backlog: Path, topics: Topics) -> None:
    """A repeated cleanup does not deliver groups again that have a commit record; of two concurrent cleanups, the later
    one continues."""
    sink = topics("cleaned")
    clients = KafkaClients(topics.bootstrap)
    to = ("--topic", sink, "--bootstrap", topics.bootstrap)
    told: list[str] = []
    with open_backlog(backlog) as opened:
        pending = opened.manifest.pending
        arguments = (clients, sink, "results", opened.manifest.id, 2, lambda: told.append("begun"))
        first = TopicDestination(*arguments, records=ResultRecords(), say=told.append, replication=1)
        assert first.delivered_groups() == {}
        assert told == []
        groups = clean_up_all(OfflineCleanup(opened.query, pending), pending, opened.blocks)
        done = {group: first.write(group, batches) for _, (group, batches) in zip(range(3), groups, strict=False)}
        assert told == ["begun"]
        second = TopicDestination(*arguments, records=ResultRecords(), say=told.append, replication=1)
        assert second.delivered_groups() == done
        with pytest.raises(BrokerError, match="another `weir cleanup` is cleaning up backlog"):
            first.write(99, [])
        first.close()
        second.close()
    code, _, stderr = weir("cleanup", str(backlog), *to)
    assert code == 0, stderr
    reader = Reader(topics.bootstrap, sink)
    reader.wait_for_count((left.expected - left.found).total())
    assert left.exact(reader.rows())
    code, _, stderr = weir("cleanup", str(backlog), *to)
    assert "nothing to do" in stderr
    assert f", to topic {sink} of cluster " in stderr
    reader.close()


OWN = """{"type": "record", "name": "com.acme.Own", "fields": [
  {"name": "dv", "type": "int"}, {"name": "source", "type": "string", "default": "weir"},
  {"name": "av", "type": ["null", "long"]}, {"name": "bv", "type": "int"},
  {"name": "_phase", "type": ["null", "string"]},
  {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"""
"""Of some results, `dv` is too large."""
INTO_OWN = "INSERT INTO 'results' KEY (bv) WITH (format = 'avro', schema = '{}', registry = '{}')\n"


def check_own_schema(folder: Path, topics: Topics, registry: str, schema: str, *options: str) -> None:
    """Clean up to a topic: results by a schema of the user's own, with headers; those that do not fit it are dead
    letters.

    Args:
        schema: as the query names it.
        options: of the cleanup.
    """
    text = QUERY.replace("SELECT", INTO_OWN.format(schema, registry) + "SELECT")
    text = text.replace("C.v AS cv, D.v AS dv", 'C.s AS "_headers.c-v", D.v * 200000000 AS dv')
    text = text.replace("STREAM c (k", "STREAM c (s STRING, k")
    left, sink = Left(folder, text), topics("own", 3)
    if schema == "registered":
        client_of(registry).register_schema(f"{sink}-value", Schema(OWN, "AVRO"))
    else:
        (folder / schema).write_text(OWN)
    to = ("--topic", sink, "--bootstrap", topics.bootstrap, "--of", left.path("q.sql"))
    code, _, stderr = weir("cleanup", left.path("backlog"), *to, *options)
    assert code == 0, stderr
    rest = left.expected - left.found
    fitting = Counter({row: n for row, n in rest.items() if json.loads(row)["dv"] < 2**31})
    assert 0 < fitting.total() < rest.total()
    refused = re.findall(r"weir: ([0-9,]+) results do not fit the topic or its schema", stderr)
    assert sum(int(count.replace(",", "")) for count in refused) == (rest - fitting).total()
    reader = Reader(topics.bootstrap, sink, decode=rows_of_avro(registry, sink))
    reader.wait_for_count(fitting.total())
    rows = reader.rows()
    for record, row in zip(reader.records, rows, strict=True):
        assert (row.pop("source"), row["_phase"]) == ("weir", "cleanup")
        row["_headers"] = record.headers
    assert len({record.partition for record in reader.records}) == 3, "keys decide"
    assert canonical(unmarked(rows)) == canonical(json.loads(row) for row in fitting.elements())
    reader.close()


@pytest.mark.deep
@pytest.mark.kafka
@pytest.mark.parametrize("schema", ["own.avsc", "registered"])
def test_a_topic_gets_results_by_a_schema_of_its_own(
    schema: str, topics: Topics, registry: str, tmp_path: Path
) -> None:
    """The file of the schema is beside that of the query. It was looked for in the working directory."""
    check_own_schema(tmp_path, topics, registry, schema)
