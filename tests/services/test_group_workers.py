"""A registered group as a service: queries come and go while it runs, and every output topic is exact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial, select
from tests.services.test_exactly_once import CLOSING, send
from tests.worker_harness import Feed, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]


def test_twenty_queries_come_and_go_under_load_and_kills(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Some are added with the past and some from now on, some dropped, some replaced, while input flows and workers are
    killed."""
    trial = GroupTrial.make(topics, tmp_path)
    feed, rng = Feed(trial.case), random.Random(6)
    trial.register({f"q{n}": select(rng) for n in range(16)})
    added = 16
    for life in range(3):
        worker = workers.start(trial.case).wait_running()
        for part in range(3):
            send(feed, rng, 360 * life + 120 * part, 120)
            seen = worker.metric("group_results_total")
            wait_for(lambda w=worker, n=seen: w.metric("group_results_total") > n, worker.said("results"))
            if part == 0:
                trial.register({f"q{added + n}": select(rng) for n in range(2)}, from_now=life == 1)
                trial.register({f"q{life}": select(rng)})
                added += 2
            if part == 1:
                trial.drop(f"q{5 + life}")
                trial.wait_begun(worker)
        worker.kill()
    worker = workers.start(trial.case).wait_running()
    trial.register({"last": select(rng)})
    trial.wait_begun(worker)
    assert len(trial.selects) == 20
    send(feed, rng, 1080, 120)
    feed.finish(CLOSING)
    assert trial.judge(worker) > 2_000
    told = trial.weir("list")
    assert f"{trial.name}: a group of 20 over " in told
    assert f"  {trial.name}-last: runs since 2023-11-14T" in told
    assert f"  {trial.name}-q5: ended 2023-11-14T" in told
    assert worker.metric("group_queries") == 20
    assert worker.stop() == 0
