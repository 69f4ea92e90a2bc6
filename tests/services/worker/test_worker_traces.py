"""A real worker sends the traces of its epochs, and goes on when the collector is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_fixture import Topics
from tests.services.collector import Collector
from tests.worker_harness import Case, Feed, Reader, Workers, assert_exact, wait_for

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = '{l}', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = '{r}', format = 'json', timestamp = 'at');
INSERT INTO '{sink}' SELECT L.k AS k FROM l L [RANGE 10 SECONDS], r R [RANGE 10 SECONDS] WHERE L.k = R.k;
"""
BEGIN = 1_700_000_000_000
PHASES = {"receive", "decode", "join", "commit"}


@pytest.mark.kafka
def test_a_worker_sends_its_epochs(topics: Topics, workers: Workers, tmp_path: Path) -> None:
    case = Case.make(topics, tmp_path, QUERY)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        worker = workers.start(case, env=env).wait_running()
        at = BEGIN

        def complete() -> bool:
            nonlocal at
            for stream in case.rows:
                feed.send(stream, [{"k": at % 7, "at": at}])
            feed.flush()
            at += 50
            worker.alive()
            return any(collector.phases(epoch).keys() == PHASES for epoch in collector.epochs().values())

        wait_for(complete, lambda: worker.with_log("an epoch with four phases"))
        epochs = list(collector.epochs().values())
        assert {epoch.attributes["weir.query"] for epoch in epochs} == {case.query.name}
        assert {epoch.attributes["weir.task"] for epoch in epochs} == {0}
        found = next(epoch for epoch in epochs if collector.phases(epoch).keys() == PHASES)
        assert found.attributes["weir.input_tuples"] > 0
        assert found.attributes["weir.committed"] is True
        assert found.attributes["weir.cut_ms"] >= BEGIN
        assert found.service["service.name"] == "weir"
    feed.send("l", [{"k": 1, "at": at}])
    feed.send("r", [{"k": 1, "at": at}])
    feed.finish({stream: {"k": -ordinal} for ordinal, stream in enumerate(case.rows, 1)})
    assert_exact(case, reader, worker)
    wait_for(lambda: "trouble with traces" in worker.text(), lambda: worker.with_log("a line about the collector"))
    assert worker.stop() == 0
