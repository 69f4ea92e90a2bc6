"""Executes a case with given settings; returns its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from operators.groups.sharing import group_engine
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES
from schemas.query import Window
from schemas.refusals import Feature
from tests.cases import Case, plan
from tests.chains import Chain, merged
from tests.combinations.traits import CHANGES, DEATHS, EXECUTOR_TRAITS, GROUP, JIT, MEMORY, PER_OPERATOR, SPLIT
from tests.feeding import partitions_of, tables_of, to_rows
from tests.group_cases import GroupCase, feed_group
from tests.operators.deaths import Life
from tests.operators.group_lives import GroupLife
from tests.operators.migrating import Changes, changes_of
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.test_spill_deaths import Incarnations
from tests.subtractions import orders

Row = dict[str, Any]
TURNS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def results(traits: frozenset[str], case: Case, data: st.DataObject) -> list[Row]:
    """All results of the case's query, with everything among the traits that is a setting."""
    budget = None
    if MEMORY in traits:
        budget = data.draw(
            st.builds(MemoryBudget, st.sampled_from([0, 2_000, 8_000]), st.sampled_from(sorted(STRATEGIES)), st.just(4))
        )
    plans = orders if Feature.EXCEPT in traits else plan
    asked = [CHANGES[trait] for trait in traits if trait in CHANGES]
    changes = data.draw(changes_of(case, asked, 2, plans)) if asked else []
    changes = sorted(changes, key=lambda change: change[0])
    if traits & {PER_OPERATOR, SPLIT}:
        return _distributed(traits, case, budget, changes, data)
    if GROUP in traits:
        return _group(traits, case, budget, data)
    if budget is not None:
        return _spilling(traits, case, budget, changes, data)
    return _fused(traits, case, changes, data)


def _fused(traits: frozenset[str], case: Case, changes: Changes, data: st.DataObject) -> list[Row]:
    """One task, which may die."""
    executor = next(iter(traits & {*EXECUTOR_TRAITS}), "xjoin")
    options: dict[str, Any] = {"executor": executor, "feedback": JIT in traits}
    life = Life(case, **options)
    for cut, to, strategy in changes:
        life.engine.migrate(to, strategy, cut)
    got: list[Row] = []
    for turns in data.draw(st.lists(TURNS, max_size=3)):
        for size in turns:
            got += life.turn(size)
        if DEATHS in traits:
            life = _successor(life, case, options)
    return got + life.finish()


def _successor(dead: Life, case: Case, options: dict[str, Any]) -> Life:
    """A task that goes on where another has died, by the plan that was in force or had begun to be."""
    begun = [record for record in dead.engine.migrations if record.began_at is not None]
    plan_now = begun[-1].plan if begun else dead.engine.plan
    life = Life(replace(case, plan=plan_now), **options)
    life.replay_from(dead, {s.name: dead.engine.replay_horizon(s.name) for s in case.query.streams()}, floor=0)
    for record in dead.engine.migrations:
        if record.began_at is None:
            life.engine.migrate(record.plan, record.strategy, max(record.cut, life.engine.cut))
    return life


def _spilling(
    traits: frozenset[str], case: Case, budget: MemoryBudget, changes: Changes, data: st.DataObject
) -> list[Row]:
    """One task within a budget, which may die."""
    options = {"feedback": JIT in traits, "executor": next(iter(traits & {*EXECUTOR_TRAITS}), "xjoin")}
    task = Incarnations(case, budget, changes, snapshots=data.draw(st.booleans()), **options)
    for turns in data.draw(st.lists(TURNS, max_size=3)):
        for size in turns:
            task.turn(size, snapshot=data.draw(st.booleans()), clean=data.draw(st.booleans()))
        if DEATHS in traits:
            task.die()
    task.end()
    return task.results


def _group(traits: frozenset[str], case: Case, budget: MemoryBudget | None, data: st.DataObject) -> list[Row]:
    """The query beside another over the same streams, which has other windows."""
    first = replace(case.query, name="q0", sink="q0")
    windows = st.sampled_from([Window("RANGE", 5), Window("RANGE", 20)])
    others = tuple(s if s.is_static else replace(s, window=data.draw(windows)) for s in first.sources)
    queries = (first, replace(first, name="q1", sink="q1", sources=others))
    group = GroupCase(queries, case.rows, case.push_sizes, case.epoch_ms, case.tables)
    options: dict[str, Any] = {"executor": None, "tables": group.batches(), "feedback": JIT in traits}
    if budget is not None:
        options |= {"budget": budget, "blocks": MemoryBlocks()}
    if DEATHS not in traits:
        engine = group_engine(queries, partitions=partitions_of(case.rows), **options)
        found = feed_group(engine, group)["q0"]
        engine.clean()
        return found + [row for batch in engine.cleaned().get("q0", ()) for row in to_rows(batch)]
    life = GroupLife(group, queries, {}, **options)
    got: list[Row] = []
    for turns in data.draw(st.lists(TURNS, max_size=3)):
        for size in turns:
            got += [row for name, batch in life.turn(size).items() if name == "q0" for row in to_rows(batch)]
        dead = life
        life = GroupLife(group, queries, {}, **options)
        life.read_again(dead.at, dead.points(), dead.engine.cut, dead.repeats)
    return got + [row for name, batch in life.turn(0, last=True).items() if name == "q0" for row in to_rows(batch)]


def _distributed(
    traits: frozenset[str], case: Case, budget: MemoryBudget | None, changes: Changes, data: st.DataObject
) -> list[Row]:
    """A task per operator, or several that share one; any may die. A plan change is a handover between two plans."""
    split = data.draw(st.integers(2, 3)) if SPLIT in traits else 1
    tables = tables_of(case)
    if changes and JIT in traits:
        changes = changes[:1]
    got: list[Row] = []
    begin = 0
    for number, plan_now in enumerate([case.plan, *(to for _, to, _ in changes)]):
        end = changes[number][0] if number < len(changes) else 1_000_000
        chain = Chain(
            case.query,
            plan_now,
            case.rows,
            split,
            end,
            tables=tables,
            feedback=JIT in traits,
            ends=end < 1_000_000,
            budget=budget,
        )
        for _ in range(data.draw(st.integers(0, 12))):
            task = data.draw(st.sampled_from(chain.tasks))
            if DEATHS in traits and data.draw(st.integers(0, 3)) == 0:
                task.die()
            else:
                chain.turn(task, data.draw(st.integers(1, 4)))
        chain.finish()
        got += [row for row in [*merged(chain.results()), *chain.late()] if begin <= row["_ts"] < end]
        begin = max(begin, end)
    return got
