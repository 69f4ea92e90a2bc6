"""What cannot be combined: which features a query has, the words of a refusal, and that names are those of the engine.

What each refusal protects is tested where the feature is. Here every refusal is met by a query that has its feature.
"""

from __future__ import annotations

import pytest

from operators.engine.executors import EXECUTORS
from operators.join.executor import JUGGLER
from operators.migration.strategies import AUTO, BLACK_BOX, STRATEGIES
from schemas import refusals
from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.query import Query
from schemas.refusals import Feature

STREAMS = """
CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', format = 'json', timestamp = 'at');
CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', format = 'json', timestamp = 'at');
"""

JOIN = "SELECT A.k FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = B.k"

QUERIES = {
    Feature.EXCEPT: "SELECT A.k FROM a A [RANGE 1 SECOND] EXCEPT b B [RANGE 1 SECOND] ON A.k = B.k",
    Feature.AGGREGATES: f"{JOIN.replace('A.k FROM', 'A.k, COUNT(*) AS n FROM')} GROUP BY A.k EMIT EVERY 1 SECOND",
    Feature.ROWS: JOIN.replace("B [RANGE 1 SECOND]", "B [ROWS 5]"),
    Feature.UNBOUNDED: JOIN.replace("B [RANGE 1 SECOND]", "B [UNBOUNDED]"),
}


def query(text: str) -> Query:
    return parse_program(STREAMS + text).queries[0]


@pytest.mark.parametrize("feature", QUERIES)
def test_features_are_found(feature: Feature) -> None:
    found = refusals.features(query(QUERIES[feature]))
    assert feature in found
    assert set(found) == {feature}


def test_a_plain_join_goes_with_everything() -> None:
    plain = query(JOIN)
    assert refusals.features(plain) == {}
    for setting in {one.setting for one in refusals.REFUSALS.values()}:
        refusals.check(plain, setting)


def test_a_refusal_names_both_and_says_why() -> None:
    with pytest.raises(UsageError) as raised:
        refusals.check(query(QUERIES[Feature.ROWS]), refusals.PLAN, refusals.executor(JUGGLER))
    assert str(raised.value) == (
        "--executor juggler does not go with [ROWS n] of B: it does not count tuples; give another executor"
    )


def test_settings_are_refused_among_each_other() -> None:
    """In either order, and without a query."""
    for settings in ((refusals.GROUP, refusals.PLAN), (refusals.PLAN, refusals.GROUP)):
        assert refusals.objection(None, *settings).startswith("a group of queries does not go with --plan: ")
    assert not refusals.objection(None, refusals.PER_OPERATOR, refusals.PLAN)


def test_aggregates_over_counted_windows() -> None:
    both = QUERIES[Feature.AGGREGATES].replace("b B [RANGE 1 SECOND]", "b B [ROWS 5]")
    assert Feature.ROWS_AGGREGATES in refusals.features(query(both))
    assert refusals.objection(query(both), refusals.SHARED).startswith("a shared operator does not go with aggregates")
    assert not refusals.objection(query(QUERIES[Feature.AGGREGATES]), refusals.SHARED)


def test_its_names_are_those_of_the_engine() -> None:
    """A renamed executor or strategy must not lose its refusals."""
    names = {setting for pair in refusals.REFUSALS for setting in pair}
    executors = {name for name in names if name.startswith("--executor")}
    assert executors == {refusals.executor(name) for name in (*EXECUTORS, JUGGLER)} - {refusals.executor("xjoin")}
    strategies = {name for name in names if name.startswith(refusals.migration(""))}
    assert strategies == {refusals.migration(name) for name in (AUTO, *STRATEGIES)}
    for name in STRATEGIES:
        refused = (refusals.migration(name), refusals.executor(JUGGLER)) in refusals.REFUSALS
        assert refused == (name not in BLACK_BOX)
        endless = (refusals.migration(name), Feature.UNBOUNDED) in refusals.REFUSALS
        assert endless == STRATEGIES[name].outlasts


def test_the_overview_names_what_a_way_of_running_does_not_offer() -> None:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in refusals.overview()]
    lines = {way: rest for way, *rest in cells}
    offers = list(refusals.OFFERS)
    assert set(lines["one task"]) == {"yes"}
    other = [offer for offer, cell in zip(offers, lines["a task per operator"], strict=True) if cell != "yes"]
    assert other == ["plan changes"]
    assert lines["a task per operator"][offers.index("plan changes")].startswith("not by parallel-track")
    no = [offer for offer, cell in zip(offers, lines["a group of queries"], strict=True) if cell == "no"]
    assert no == ["plan changes", "per operator"]
