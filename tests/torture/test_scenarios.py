"""Checks the drawing of trials: the same for the same seed, only what Weir accepts, and every kind of fault."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from schemas import refusals
from schemas.language.program import parse_program
from services.process.security import KafkaClients
from services.process.settings import Guarantee, Placement, WorkerSettings
from services.spill.budget import budget_of
from services.worker.worker import Worker
from tests.torture.data import closing, records
from tests.torture.faults import DEEDS
from tests.torture.kinds import CLUSTER_FAULTS, FAULTS
from tests.torture.scenario import KINDS, Scenario, draw

pytestmark = pytest.mark.unmeasured

SEEDS = range(80)


def settings_of(scenario: Scenario) -> WorkerSettings:
    """The settings that `weir worker` makes of the options."""
    given = dict(zip(scenario.options[::2], scenario.options[1::2], strict=True))
    memory, spill = given.get("--memory"), given.get("--spill")
    return WorkerSettings(
        KafkaClients("127.0.0.1:1"),
        "group",
        guarantee=Guarantee(given.get("--guarantee", "exactly-once")),
        plan=given.get("--plan"),
        placement=Placement(given.get("--placement", "fused")),
        operator_partitions=int(given.get("--operator-partitions", 0)) or None,
        jit=given.get("--jit") == "on",
        budget=budget_of(memory, spill, None) if memory else None,
        spill_dir=Path("."),
    )


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_seed_always_draws_the_same(brokers: int) -> None:
    for seed in range(20):
        scenario = draw(seed, brokers=brokers)
        assert draw(seed, brokers=brokers) == scenario
        assert Scenario.from_json(scenario.to_json()) == scenario
    light = dataclasses.replace(draw(0, brokers=brokers), big=0, seconds=3)
    assert records(light) == records(light)


def test_only_what_weir_takes_is_drawn() -> None:
    """The language accepts every query, and a starting worker's checks accept all settings."""
    for seed in SEEDS:
        scenario = draw(seed)
        queries = parse_program(scenario.text("t")).queries
        if scenario.group:
            assert len(queries) == 3
            for name, select in scenario.selects.items():
                (query,) = parse_program(f"{scenario.declarations('t')}INSERT INTO '{name}'\n{select}").queries
                refusals.check(query, refusals.SHARED)
                assert query.aggregation is None
        Worker(queries[0], settings_of(scenario), group=scenario.group)


def test_everything_is_drawn() -> None:
    """Every kind of query and of fault is drawn, and nothing that is not implemented."""
    single = [draw(seed) for seed in range(300)]
    cluster = [draw(seed, brokers=3) for seed in range(300)]
    assert {scenario.kind for scenario in single} == set(KINDS)
    wishes = {"migrate", "register", "replace", "drop"}
    assert {fault.kind for scenario in single for fault in scenario.faults} == {*FAULTS, *wishes}
    assert {fault.kind for scenario in cluster for fault in scenario.faults} == {*CLUSTER_FAULTS, *wishes}
    assert DEEDS.keys() == {*FAULTS, *CLUSTER_FAULTS, *wishes}
    for kind in KINDS:
        drawn = [draw(seed, only=kind) for seed in range(30)]
        assert {0, 1} == {min(1, scenario.repeats_ms) for scenario in drawn}, kind
        assert {False, True} == {scenario.table for scenario in drawn}, kind
        assert {False, True} == {scenario.unnests for scenario in drawn}, kind
    for scenario in single:
        assert all(0 <= fault.at <= scenario.seconds for fault in scenario.faults)


def test_closing_tuples_are_in_every_partition() -> None:
    scenario = draw(3)
    lanes = {(record.alias, record.partition) for record in closing(scenario)}
    assert len(lanes) == sum(scenario.count(alias) for alias in scenario.aliases)
