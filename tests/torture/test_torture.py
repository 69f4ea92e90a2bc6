"""One trial of the smallest size, to check that the suite itself runs: `make torture` runs it for hours."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker_fixture import SessionBroker
from tests.torture.cluster import Attached, Cluster
from tests.torture.scenario import Fault, Scenario, draw
from tests.torture.trial import run, summary

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

SINK = r"t1-[0-9a-f]{6}\.q"
"""The name of a trial's output topic."""


def small() -> Scenario:
    """A join of two streams for two seconds, whose worker is killed."""
    fault = Fault(0.7, "worker-kill", {"worker": 0, "seconds": 0.0})
    return dataclasses.replace(
        draw(1, only="join"), seconds=2.0, rate=50, streams=2, edges=((0, 1, "k"),), keys=20, workers=1,
        faults=(fault,), extra=(), partitions=1, coordinator=False,
        options=("--session-timeout", "6s", "--snapshot", "500ms"), windows=("RANGE 1 SECOND",) * 2, window_ms=1000,
        selects={"q": "SELECT A.n AS a, B.n AS b FROM sa A, sb B WINDOW RANGE 1 SECOND WHERE A.k = B.k"},
        late=0.04, bad=0.05, proxied=False, clock=False, big=0, session_s=6,
    )  # fmt: skip


class Forging(Attached):
    """A broker to which this test writes a result that no worker has produced."""

    def heal(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        topics = producer.list_topics(timeout=30).topics
        (sink,) = [name for name in topics if re.fullmatch(SINK, name)]
        producer.produce(sink, b'{"a":0,"b":0,"_ts":99}', partition=0)
        assert producer.flush(30) == 0


@pytest.mark.deep
def test_a_small_trial(broker: SessionBroker, tmp_path: Path) -> None:
    """The outcome is exact, and the trial leaves nothing behind."""
    outcome = run(small(), Attached(broker.bootstrap), tmp_path / "trial", tmp_path / "evidence", "again")
    assert outcome.violations == [], summary(outcome)
    assert outcome.expected > 100
    assert [kind for kind, _ in outcome.silences] == ["worker-kill"]
    assert not (tmp_path / "trial").exists()


@pytest.mark.slow
def test_what_is_wrong_leaves_its_evidence(broker: SessionBroker, tmp_path: Path) -> None:
    """Scenario, events, logs, expected and found results, and the command to repeat the trial; topics are deleted."""
    outcome = run(small(), Forging(broker.bootstrap), tmp_path / "trial", tmp_path / "evidence", "again")
    assert {violation.kind for violation in outcome.violations} >= {"extra"}, summary(outcome)
    folder = Path(outcome.evidence)
    assert Scenario.from_json((folder / "scenario.json").read_text()) == small()
    assert (folder / "repeat.txt").read_text() == "again\n"
    assert {"happened.json", "query.sql", "violations.json", "worker-0-0.log", "worker-0-1.log"} <= {
        path.name for path in folder.iterdir()
    }
    expected = json.loads((folder / "expected-q.json").read_text())
    assert len(json.loads((folder / "got-q.json").read_text())) == len(expected) + 1
    topics = Producer({"bootstrap.servers": broker.bootstrap}).list_topics().topics
    assert not [name for name in topics if re.fullmatch(SINK, name)]


LOST_S = 10.0
"""The longest time without results when one of three brokers is lost for good."""


@pytest.mark.slow
def test_a_lost_broker_is_felt_for_less_than_ten_seconds(tmp_path: Path) -> None:
    """Each of three brokers is killed with -9 in its turn, under load: it leads a third of all partitions, and
    coordinates transactions, groups or the cluster. It is restarted only when others have taken over, and the next is
    killed when it has caught up: of three replicas two must be there."""
    args = {"seconds": 15.0, "in_sync": True}
    kills = tuple(Fault(5.0 + 35.0 * n, "node-kill", {"node": n % 3, **args}) for n in range(6))
    scenario = dataclasses.replace(small(), brokers=3, seconds=220.0, rate=200, keys=200, faults=kills, partitions=3)
    cluster = Cluster(tmp_path / "cluster", 3, "400m")
    try:
        outcome = run(scenario, cluster, tmp_path / "trial", tmp_path / "evidence", "again")
    finally:
        cluster.close()
    print("\nlonger than any other without a commit or a result, after each kill:", outcome.silences)
    assert outcome.violations == [], summary(outcome)
    assert len(outcome.silences) == len(kills)
    assert max(silence for _, silence in outcome.silences) < LOST_S, outcome.silences
