"""`ops.bench.drift.topics` at tiny sizes: Weir's results are right, and other commands learn what they need."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from ops.bench.drift.runs import DriftSettings
from ops.bench.drift.scenarios import Scenario, scenarios
from ops.bench.drift.topics import compare, events
from ops.bench.measuring.measure import Progress
from schemas.errors import UsageError, WeirError
from schemas.language.program import parse_program
from tests.broker_fixture import SessionBroker

TINY = DriftSettings(seconds=3, rate=200.0)


def named(name: str) -> Scenario:
    return next(scenario for scenario in scenarios(TINY.rate, TINY.phases) if scenario.name == name)


@pytest.mark.parametrize("name", ["recurring", "cycle", "chain"])
def test_the_program_is_the_scenarios_query(name: str) -> None:
    scenario = named(name)
    text = scenario.program(1_000, {stream: stream for stream in scenario.names}, "out")
    query = parse_program(text).queries[0]
    assert query.sink == "out"
    assert replace(query, sink=None, name="") == replace(scenario.query(1_000), name="")


def test_the_last_events_match_nothing_and_close_all_windows() -> None:
    *before, last = events(named("recurring"), TINY)
    assert len(before) == (1_500 + 3_000) // 100
    keys = [batch.columns[name].values[0] for batch in last.values() for name in batch.columns if name != "ts"]
    assert max(keys) < 0
    assert len({int(batch.ts[0]) for batch in last.values()}) == 1
    assert last["A"].ts[0] > before[-1]["A"].ts[-1] + 2 * TINY.window_ms


def test_a_scenario_that_answers_plans_is_refused() -> None:
    with pytest.raises(UsageError, match="adversary"):
        next(compare(named("adversary"), TINY, {}, Progress()))


@pytest.mark.kafka
def test_weir_delivers_all_results(broker: SessionBroker) -> None:
    found = list(compare(named("recurring"), TINY, {}, Progress(), bootstrap=broker.bootstrap, limit_s=120.0))
    assert [run.name for run in found] == ["Weir, adapt on", "Weir, adapt off"]
    for run in found:
        assert run.right
        assert run.results > 1_000
        assert 0 <= run.late_cpu_s <= run.cpu_s
        assert 0 <= run.seconds < run.whole_s
        assert "right" in run.line()


@pytest.mark.kafka
def test_another_command_gets_the_topics_and_must_not_end_early(broker: SessionBroker) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ))); exit(3)"
    other = {"ender": f'{sys.executable} -c "{script}"'}
    with pytest.raises(WeirError, match="ender ended with code 3") as raised:
        list(compare(named("recurring"), TINY, other, Progress(), bootstrap=broker.bootstrap, limit_s=120.0))
    environment = json.loads(str(raised.value).splitlines()[-1])
    assert environment["BOOTSTRAP"] == broker.bootstrap
    assert environment["WINDOW_MS"] == "1000"
    assert {f"TOPIC_{name}" for name in "ABCD"} | {"SINK"} <= environment.keys()


@pytest.mark.kafka
def test_who_takes_too_long_is_stopped(broker: SessionBroker) -> None:
    script = "import time; time.sleep(600)"
    other = {"sleeper": f'{sys.executable} -c "{script}"'}
    found = list(compare(named("recurring"), TINY, other, Progress(), bootstrap=broker.bootstrap, limit_s=0.0))
    assert [(run.name, run.results, run.right) for run in found][-1] == ("sleeper", 0, False)
    assert "WRONG" in found[-1].line()
