"""Records that cannot be decoded, or barely: each of the former is a dead letter with a reason, and stops nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import orjson
import pytest

from tests.broker_fixture import SessionBroker, Topics
from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, no_traceback, problems
from tests.faults.workload import BAD, BASE, FAR_MS, STREAMS, Record, Row, Workload, closing, workload
from tests.worker_harness import Record as Found

pytestmark = pytest.mark.kafka

LARGE = 10_000_000


def mixed(seed: int) -> Workload:
    """Tuples with every kind of bad record in every stream, at random places."""
    rng = random.Random(seed)
    clean = workload(seed, 150, 2, dirty=False).records
    bad = [Record(stream, rng.randrange(2), BAD[kind][0], bad=kind) for kind in BAD for stream in STREAMS]
    records = list(clean)
    for record in bad:
        records.insert(rng.randrange(len(clean)), record)
    return Workload(records, 2)


@pytest.fixture(scope="module")
def outcome(broker: SessionBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trial, list[Found]]]:
    """One run over all kinds of bad records, judged as a whole; and its dead letters."""
    trial = Trial(Topics(broker.bootstrap), tmp_path_factory.mktemp("records"), mixed(20260117))
    try:
        trial.send(0.5)
        worker = trial.start()
        trial.finish(worker)
        no_traceback(worker)
        assert problems(worker) == [], "bad records are counted and sent on, not logged one by one"
        yield trial, trial.read(f"{trial.sink}.dead")
    finally:
        trial.close()


@pytest.mark.parametrize("kind", BAD)
def test_bad_record_becomes_a_dead_letter(outcome: tuple[Trial, list[Found]], kind: str) -> None:
    """There is one dead letter per record, with its original value, the reason, and its position. `outcome` has checked
    that the other results are right, for the run as a whole."""
    trial, letters = outcome
    wanted = {
        (stream, partition, offset)
        for (stream, partition, offset), (value, pattern) in trial.workload.expected.dead.items()
        if (value, pattern) == BAD[kind]
    }
    found = [
        (letter.headers["stream"], int(letter.headers["partition"]), int(letter.headers["offset"]))
        for letter in letters
        if letter.value == BAD[kind][0]
    ]
    assert len(found) == len(STREAMS)
    assert set(found) == wanted


def test_records_of_ten_megabytes(make_trial: MakeTrial) -> None:
    """A tuple of 10 MB joins and its result is delivered; a broken record of 10 MB is a complete dead letter."""
    text = random.Random(5).randbytes(LARGE // 2).hex()
    rows: list[tuple[str, Row]] = [
        ("a", {"n": 1, "k": 1000, "s": text, "x": 5.0, "at": BASE}),
        ("b", {"n": 2, "k": 1000, "s": text, "y": 4, "at": BASE + 1}),
        ("c", {"n": 3, "k": 1000, "z": True, "at": BASE + 2}),
    ]
    records = [Record(stream, 0, json.dumps(row).encode(), row) for stream, row in rows]
    records.append(Record("c", 0, b"[" + b"1," * (LARGE // 2) + b"1]", bad="array"))
    around = workload(77, 60, 1).records
    records = around[:90] + records + around[90:]
    large = {"max_message_bytes": "12000000"}
    trial = make_trial(Workload(records, 1), **large)
    trial.send(0.5)
    worker = trial.start()
    trial.finish(worker)
    assert sum(len(found.value or b"") > LARGE for found in trial.read(trial.sink)) == 1
    no_traceback(worker)


def test_result_too_large_for_the_sink(make_trial: MakeTrial) -> None:
    """Where the sink's limit is lower than the inputs', the result is a dead letter, and all others are delivered."""
    text = "t" * 300_000
    rows: list[tuple[str, Row]] = [
        ("a", {"n": 1, "k": 1000, "s": text, "x": 5.0, "at": BASE}),
        ("b", {"n": 2, "k": 1000, "s": text, "y": 4, "at": BASE}),
        ("c", {"n": 3, "k": 1000, "z": True, "at": BASE}),
    ]
    records = [Record(stream, 0, json.dumps(row).encode(), row) for stream, row in rows]
    others = workload(78, 60, 1, dirty=False).records
    trial = make_trial(Workload(others[:20] + records + others[20:], 1))
    trial.make_topic(trial.sink, **{"max.message.bytes": "200000"})
    trial.send()
    worker = trial.start()
    trial.wait_caught_up(worker)
    assert worker.stop() == 0
    (letter,) = trial.read(f"{trial.sink}.dead")
    refused = orjson.loads(letter.value or b"")
    assert refused["s"] == text
    assert "200000" in letter.headers["reason"] or "199488" in letter.headers["reason"]
    assert letter.headers["topic"] == trial.sink
    results = [orjson.loads(found.value or b"") for found in trial.read(trial.sink)]
    trial.check_results([*results, refused])


def test_record_timestamps_out_of_range(make_trial: MakeTrial) -> None:
    """In a stream whose event time is the Kafka record's own, years before 1970 and after 2100 are refused."""
    trial = make_trial(
        Workload(closing(1, BASE + FAR_MS), 1),
        text="""
CREATE STREAM a (n BIGINT) WITH (topic = '{a}', format = 'json');
CREATE STREAM b (n BIGINT) WITH (topic = '{b}', format = 'json');
CREATE STREAM c (n BIGINT) WITH (topic = '{c}', format = 'json');
INSERT INTO '{sink}' SELECT A.n AS n, B.n AS b, C.n AS c FROM a A, b B, c C WINDOW RANGE 1 SECOND
WHERE A.n = B.n AND B.n = C.n
""",
    )
    for stream in STREAMS:
        for n, at in enumerate((BASE, 253_402_300_799_000, BASE + 1, 4_102_444_800_000, BASE + FAR_MS)):
            trial.produce_at(stream, json.dumps({"n": n}).encode(), at)
    worker = trial.start()
    trial.wait_caught_up(worker)
    assert worker.stop() == 0
    results = [orjson.loads(found.value or b"") for found in trial.read(trial.sink)]
    assert [(row["n"], row["_ts"]) for row in results] == [(0, BASE), (2, BASE + 1)]
    letters = trial.read(f"{trial.sink}.dead")
    assert sorted((letter.headers["topic"], letter.headers["offset"]) for letter in letters) == sorted(
        (trial.topic(stream), offset) for stream in STREAMS for offset in ("1", "3")
    )
    assert all("record timestamp is" in letter.headers["reason"] for letter in letters)
