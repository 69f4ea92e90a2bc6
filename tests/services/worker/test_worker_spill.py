"""A worker with a memory budget: the oracle's results once each, on a real broker, some of them late."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from services.kafka.topics import ControlTopics
from tests.broker_fixture import Topics
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, Workers, assert_exact, canonical, in_time, unmarked, wait_for

FOREVER = SENSORS.replace("[RANGE 800 MILLISECONDS]", "[UNBOUNDED]").replace("[RANGE 500 MILLISECONDS]", "[ROWS 150]")

SMALL = ("--memory", "20KiB")


@pytest.mark.deep
@pytest.mark.kafka
def test_results_equal_the_oracle(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Through a kill -9 and on another disk: what was spilled and pending then is found in the input, and in the log of
    spills; results that are out are not made again, late ones neither."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(21)
    reader = Reader(case.bootstrap, case.sink)
    first = workers.start(case, *SMALL, "--spill", "bottom-up").wait_running()
    for part in range(4):
        send(feed, rng, 100 * part, 100)
        wait_for(lambda: first.metric("watermark_milliseconds") == case.watermark(), first.with_log("progress"))
        if part == 2:
            wait_for(lambda: not all(map(in_time, reader.rows())), first.with_log("late results"))
            wait_for(
                lambda: first.metric("spilled_tuples") and first.metric("cleanups_total"), first.with_log("spills")
            )
            assert first.metric("spilled_bytes_total") > 0
            assert first.metric("memory_budget_bytes") == 20 << 10
    # At once: it has time now, and soon nothing would be pending.
    first.kill()
    second = workers.start(case, *SMALL, "--snapshot", "200ms", state=tmp_path / "another").wait_running()
    assert "source=window" in second.text(), second.with_log("recovery")
    send(feed, rng, 400, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, second)
    wait_for(lambda: second.metric("owed_pairs") == 0 == second.metric("spilled_tuples"), second.with_log("no backlog"))
    events = Reader(case.bootstrap, ControlTopics.of(f"weir-{case.sink}").spills)
    numbers = [int(record.key or b"") for record in events.poll()]
    assert numbers == list(range(len(numbers)))
    assert second.stop() == 0


@pytest.mark.deep
@pytest.mark.kafka
def test_at_least_once_loses_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Workers with a budget die twice without transactions. Then one with transactions takes over what is pending."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(29)
    reader = Reader(case.bootstrap, case.sink, "read_uncommitted")
    spills = Reader(case.bootstrap, ControlTopics.of(f"weir-{case.sink}").spills, "read_uncommitted")
    for begin in (0, 100, 200):
        options = (*SMALL, "--spill", "bottom-up", "--guarantee", "at-least-once", "--commit", "500ms")
        worker = workers.start(case, *options).wait_running()
        send(feed, rng, begin, 100)
        wait_for(lambda w=worker: w.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
        wait_for(lambda w=worker: w.metric("spilled_groups_total") > 0, worker.with_log("spills"))
        worker.kill()
    assert not all(map(in_time, reader.rows())), "a cleanup has produced some results"
    writers = {json.loads(record.value or b"")["writer"] for record in spills.poll()}
    assert len(writers) == 3
    worker = workers.start(case, *SMALL).wait_running()
    feed.finish(CLOSING)
    expected = case.expected()
    wait_for(lambda: not expected - canonical(unmarked(reader.rows())), worker.with_log("all results"))
    assert set(canonical(unmarked(reader.rows()))) == set(expected)
    wait_for(lambda: worker.metric("owed_pairs") == 0 == worker.metric("spilled_tuples"), worker.with_log("no backlog"))
    assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.kafka
def test_windows_that_forget_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """They force no cleanup, nor does one that counts: a worker that has time does it nevertheless. What a dead one
    leaves pending its successor produces, even one without a budget."""
    case = Case.make(topics, tmp_path, FOREVER)
    feed, rng = Feed(case), random.Random(23)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, *SMALL).wait_running()
    for begin in (0, 100):
        send(feed, rng, begin, 100)
        wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    wait_for(lambda: not all(map(in_time, reader.rows())), worker.with_log("late results"))
    spills = worker.metric("spilled_groups_total")
    send(feed, rng, 200, 100)
    wait_for(lambda: worker.metric("spilled_groups_total") > spills, worker.with_log("more spills"))
    worker.kill()
    worker = workers.start(case).wait_running()
    assert "an earlier --memory left results pending" in worker.text()
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0
