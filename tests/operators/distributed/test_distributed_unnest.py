"""Distributed joins of elements of arrays: several tuples have one position, and many results one instant."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.plan.plan import Plan, parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.language.program import parse_program
from schemas.query import Query
from tests import oracle
from tests.chains import Chain, Row, merged
from tests.feeding import canonical, feed
from tests.operators.distributed import test_on_demand
from tests.operators.distributed.test_distributed_feedback import PLANS, drive, pressed
from tests.operators.spill.small_parts import small_parts
from tests.profiles import PROPERTY

SPAN = 60
STREAM = (
    "CREATE STREAM {0} (id BIGINT, items ARRAY<ROW(x BIGINT, y BIGINT)>, tags ARRAY<BIGINT>, at TIMESTAMP) "
    "WITH (topic = 't{0}', timestamp = 'at', disorder = '3 MILLISECONDS'{1});"
)
WITHOUT_REPEATS = ", deduplicate = 'id', deduplicate_within = '4 MILLISECONDS'"
WHERE = {2: "IA.x = IB.x", 3: "IA.x = IB.x AND IB.y = IC.y", 4: "IA.x = IB.x AND IB.y = IC.y AND IA.y = ID.y"}
ORDERS = {**PLANS, 2: ["(A B)", "(B A)"]}

Rows = dict[str, list[list[Row]]]


def elements(rng: random.Random) -> tuple[Query, Plan, Rows]:
    """Records of few instants with several elements each, of few values; perhaps a stream is joined with itself."""
    n = rng.choice([2, 3, 3, 4])
    names = list("abcd"[:n])
    if rng.random() < 0.3:
        names[1] = names[0]
    more = WITHOUT_REPEATS if rng.random() < 0.3 else ""
    # All aliases of a stream unnest the same arrays of it.
    tagged = {name for name in names if rng.random() < 0.4}
    window = rng.choice(["[RANGE {} MILLISECONDS]", "[RANGE {} MILLISECONDS]", "[ROWS {}]"])
    listed, chosen = [], []
    for alias, name in zip("ABCD", names, strict=False):
        listed.append(
            f"{name} {alias} {window.format(rng.choice([2, 6, 12]))} CROSS JOIN UNNEST({alias}.items) AS I{alias}"
        )
        chosen += [f"{alias}.id AS {alias}id", f"I{alias}._ordinal AS {alias}place"]
        if name in tagged:
            listed[-1] += f" CROSS JOIN UNNEST({alias}.tags) AS T{alias}"
            chosen += [f"T{alias}.value AS {alias}tag", f"T{alias}._ordinal AS {alias}tag_place"]
    declared = "".join(STREAM.format(name, more) for name in sorted(set(names)))
    text = f"{declared} INSERT INTO 'out' SELECT {', '.join(chosen)} FROM {', '.join(listed)} WHERE {WHERE[n]}"
    query = parse_program(text).queries[0]
    values = rng.choice([2, 3])

    def row() -> Row:
        items = [{"x": rng.randrange(values), "y": rng.randrange(values)} for _ in range(rng.choice([0, 1, 2, 2, 3]))]
        tags = [rng.randrange(3) for _ in range(rng.choice([0, 1, 1, 2]))]
        return {"id": rng.randrange(30), "items": items, "tags": tags, "at": 2 * rng.randint(0, SPAN // 2)}

    def part() -> list[Row]:
        found = sorted((row() for _ in range(rng.choice([6, 12]))), key=lambda one: one["at"])
        return [{**one, "at": max(0, one["at"] - rng.choice([0, 0, 0, 2, 8]))} for one in found]

    rows = {name: [part() for _ in range(rng.choice([1, 2]))] for name in sorted(set(names))}
    return query, parse_plan(rng.choice(ORDERS[n]), query), rows


def fused(query: Query, plan: Plan, rows: Rows) -> list[Row]:
    """The fused engine's results."""
    engine = Engine(query, plan=plan, partitions={name: range(len(parts)) for name, parts in rows.items()})
    return feed(engine, rows, [2, 3], 5)


@PROPERTY
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_results_have_the_order_of_elements(seed: int, feedback: bool, deaths: bool) -> None:
    """Those of one instant, too, though elements of one record have one position, and some results are made late."""
    rng = random.Random(seed)
    query, plan, rows = elements(rng)
    with pressed(rng):
        chain = Chain(query, plan, rows, 1, feedback=feedback)
        drive(chain, rng, deaths=deaths)
    (got,) = chain.results()
    assert got == fused(query, plan, rows)
    assert canonical(got) == canonical(oracle.results(query, rows))


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_spilled_elements_meet_their_partners(seed: int, split: int, deaths: bool) -> None:
    rng = random.Random(seed)
    query, plan, rows = elements(rng)
    budget = MemoryBudget(rng.choice([1, 2_000]), "bottom-up", 4)
    with pressed(rng), small_parts():
        chain = Chain(query, plan, rows, split, budget=budget)
        drive(chain, rng, deaths=deaths, repeats=False)
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(oracle.results(query, rows))


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans(), st.booleans())
def test_earlier_results_of_elements_come_on_demand(seed: int, split: int, suspends: bool, deaths: bool) -> None:
    """A plan takes over from another; JISC makes what was before when it is demanded."""
    rng = random.Random(seed)
    query, plan, rows = elements(rng)
    begins = rng.randint(1, SPAN)
    with pressed(rng):
        chain = Chain(query, plan, rows, split, feedback=suspends, begins=begins)
        test_on_demand.prepare(chain, rng, begins, deaths=deaths)
        drive(chain, rng, deaths=deaths)
    test_on_demand.check(chain, query, rows, begins)


def test_what_orders_the_elements_of_a_record_travels() -> None:
    text = STREAM.format("a", "") + STREAM.format("b", "") + STREAM.format("c", "")
    unnested = "a A [RANGE 1 SECOND] CROSS JOIN UNNEST(A.items) AS I CROSS JOIN UNNEST(A.tags) AS T"
    (query,) = parse_program(
        f"{text} INSERT INTO 'out' SELECT C.id FROM {unnested}, b B [RANGE 1 SECOND], c C [RANGE 1 SECOND] "
        "WHERE I.x = B.id AND B.id = C.id"
    ).queries
    chain = Chain(query, parse_plan("((A B) C)", query), {name: [[]] for name in "abc"}, 1)
    top, low = chain.operators
    names = [(column.alias, column.name) for column in low.outputs[0].columns]
    assert names[:6] == [
        ("A", "_ts"), ("A", "@position"), ("A", "items._ordinal"), ("A", "tags._ordinal"),
        ("B", "_ts"), ("B", "@position"),
    ]  # fmt: skip
    assert top.ranks == 8
