"""Distributed joins that suspend what they do not demand produce the oracle's results, whatever happens to the requests
between them and to the tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.distributed import edge_writer as route
from operators.distributed.decompose import decompose
from operators.distributed.feedback import payoff, producer
from operators.plan.plan import parse_plan
from operators.state import side_state as state
from schemas.codecs.notice import Notice, decode_notice, encode_notice, is_notice
from schemas.columns import Batch, Column
from schemas.errors import StateError
from schemas.language.program import parse_program
from schemas.query import Field, Query, Type
from tests import oracle
from tests.cases import Case
from tests.chains import Chain, FeedbackRequest, Row, merged
from tests.feeding import canonical, tables_of
from tests.operators.distributed.test_distributed import joins
from tests.profiles import PROPERTY

SPAN = 200
PREDICATES = {
    3: ["B.x = C.x", "A.x = C.x", "A.x = C.x AND B.y = C.y"],
    4: [f"B.x = C.x AND {last}" for last in ("A.y = D.y", "A.y = D.y", "B.y = D.y", "C.y = D.y")],
}
PLANS = {3: ["((A B) C)", "(C (B A))"], 4: ["(((A B) C) D)", "(D ((B A) C))", "((A B) (C D))", "((D C) (A B))"]}


def query_of(lives: list[int], where: str) -> Query:
    """A join of A, B, ... with the given lives."""
    aliases = "ABCD"[: len(lives)]
    streams = "".join(
        f"CREATE STREAM {a} (k BIGINT, x BIGINT, y BIGINT, at TIMESTAMP) WITH (topic = 't{a}', timestamp = 'at');"
        for a in aliases.lower()
    )
    windows = ", ".join(f"{a.lower()} {a} [RANGE {n} MILLISECONDS]" for a, n in zip(aliases, lives, strict=True))
    chosen = ", ".join(f"{a}.x AS {a}x, {a}.at AS {a}at" for a in aliases)
    return parse_program(f"{streams} INSERT INTO 'out' SELECT {chosen} FROM {windows} WHERE {where}").queries[0]


def sparse(rng: random.Random) -> tuple[Query, str, dict[str, list[list[Row]]]]:
    """Many of A and B, which live long; few of the others, which live shortly: most of A and B meet nobody, then some
    of it does."""
    n = rng.choice([3, 4, 4])
    lives = [rng.choice([50, 100]), rng.choice([50, 100]), *(rng.choice([3, 10, 30]) for _ in range(n - 2))]
    if n == 4 and rng.random() < 0.7:
        lives = [100, 100, 100, rng.choice([2, 4])]
    counts = [rng.choice([15, 30])] * 2 + [rng.choice([6, 12, 20])] * (n - 2)
    values = rng.choice([2, 3, 4])

    def row() -> Row:
        x, y = rng.randrange(values), rng.randrange(values)
        return {"k": rng.randrange(3), "x": x, "y": y, "at": rng.randint(0, SPAN)}

    rows = {
        name: [sorted((row() for _ in range(count)), key=lambda found: found["at"])]
        for name, count in zip("abcd", counts, strict=False)
    }
    return query_of(lives, f"A.k = B.k AND {rng.choice(PREDICATES[n])}"), rng.choice(PLANS[n]), rows


@contextmanager
def pressed(rng: random.Random) -> Iterator[None]:
    """All that is there for economy now and then plays no part, or always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "SWEEP_FACTOR", rng.choice([4, 10**9]))
        patch.setattr(producer, "MAX_SUSPENDED", rng.choice([1 << 16, 3]))
        patch.setattr(producer, "FEW", rng.choice([4, 0.1, 10**9]))
        patch.setattr(producer, "SAMPLE", rng.choice([1, 3, 256]))
        patch.setattr(producer, "MOST_REWRITTEN", rng.choice([1 << 14, 2]))
        patch.setattr(producer, "WHOLE_BYTES", rng.choice([10**9, 1, 300]))
        patch.setattr(payoff, "ANSWERS", rng.choice([1024, 1, 5]))
        patch.setattr(payoff, "ANSWER_BYTES", rng.choice([0, 1 << 14]))
        patch.setattr(payoff, "FIRST_REST", rng.choice([1, 4]))
        patch.setattr(route, "BLOCK_BYTES", rng.choice([1 << 18, 1]))
        patch.setattr(state, "FIRST_CAPACITY", rng.choice([1024, 2]))
        yield


def drive(chain: Chain, rng: random.Random, *, deaths: bool, repeats: bool = True) -> None:
    """Tasks in turn, mostly; some die. Letters come late, twice, or not at all.

    Args:
        repeats: whether records of internal topics come twice, too. Not for tasks with a budget: their transactions
            write each once, also with `--guarantee at-least-once`.
    """
    slow = rng.random() < 0.5
    for step in range(rng.randint(0, 120)):
        in_turn = list(reversed(chain.tasks))[step % len(chain.tasks)]
        task = rng.choice(chain.tasks) if rng.random() < 0.2 else in_turn
        if deaths and rng.random() < 0.1:
            task.die()
        else:
            chain.turn(task, rng.randint(1, 4))
        while chain.undelivered and rng.random() < (0.5 if slow else 0.9):
            at = rng.randrange(len(chain.undelivered)) if slow else 0
            request = chain.undelivered[at]
            if rng.random() < 0.8:
                del chain.undelivered[at]
            for receiver in chain.tasks:
                if rng.random() < 0.9:
                    receiver.deliver(request)
        logs = [log for log in chain.topics.logs.values() if log and isinstance(log[0], bytes)]
        if repeats and logs and rng.random() < 0.005:
            log = rng.choice(logs)
            log.append(rng.choice(log))
    chain.finish()


def check(chain: Chain, query: Query, rows: dict[str, list[list[Row]]]) -> None:
    """All results, each once, and in order where one task gives them."""
    assert canonical(merged(chain.results())) == canonical(oracle.results(query, rows))
    for part in chain.results():
        times = [row["_ts"] for row in part]
        assert times == sorted(times)


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
@example(2814549849, 1, True)  # The successor did not read again what had come late.
def test_what_is_kept_back_comes_when_it_is_demanded(seed: int, split: int, deaths: bool) -> None:
    rng = random.Random(seed)
    query, plan, rows = sparse(rng)
    with pressed(rng):
        chain = Chain(query, parse_plan(plan, query), rows, split, feedback=True)
        drive(chain, rng, deaths=deaths)
    check(chain, query, rows)


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 2), st.integers(1, SPAN))
def test_a_plan_ends_with_nothing_kept_back(seed: int, split: int, end: int) -> None:
    """Where another plan takes over: every task ends when it has come there, and those that read it still get all."""
    rng = random.Random(seed)
    query, plan, rows = sparse(rng)
    with pressed(rng):
        chain = Chain(query, parse_plan(plan, query), rows, split, end, feedback=True, ends=True)
        drive(chain, rng, deaths=False)
    assert all(task.over for task in chain.tasks if task.feedback is not None)
    expected = [row for row in oracle.results(query, rows) if row["_ts"] < end]
    assert canonical(merged(chain.results())) == canonical(expected)


@PROPERTY
@given(joins(), st.integers(0, 2**32), st.integers(1, 3))
def test_any_query_gives_the_oracles_results(case: Case, seed: int, split: int) -> None:
    rng = random.Random(seed)
    with pressed(rng):
        chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case), feedback=True)
        drive(chain, rng, deaths=True)
    check(chain, case.query, case.given)


def tuples(**columns: list[int]) -> list[list[Row]]:
    """One partition; `at` and the other columns, 0 where not given."""
    n = len(columns["at"])
    return [[{name: columns.get(name, [0] * n)[i] for name in ("k", "x", "y", "at")} for i in range(n)]]


class Three:
    """((A B) C), where A.x = C.x, step by step."""

    def __init__(self, **rows: list[list[Row]]) -> None:
        query = query_of([100, 100, 10], "A.k = B.k AND A.x = C.x")
        self.chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, feedback=True)
        self.query, self.rows = query, rows
        self.top, self.low = self.chain.tasks

    def turn(self, task: Any, records: int) -> list[FeedbackRequest]:
        """A task's turn, and what it asks for."""
        self.chain.undelivered.clear()
        self.chain.turn(task, records)
        return list(self.chain.undelivered)

    def sent(self) -> list[int]:
        """Rows of each block and notice so far."""
        ((_, log),) = [(lane, log) for lane, log in self.chain.topics.logs.items() if log and isinstance(log[0], bytes)]
        channels = next(iter(self.top.channels.values()))
        found = [channels.decode(raw, "a record") for raw in log]
        return [len(one.late if isinstance(one, Notice) else one.batch) for one in found]


def test_a_value_without_partner_is_suspended_and_resumed() -> None:
    """A's x = 1 meets no C at first; when a C with x = 1 has been read all that is made of it comes anew."""
    run = Three(
        a=tuples(x=[1, 2, 1, 2, 1, 1], at=[1, 2, 3, 12, 22, 70]),
        b=tuples(at=[1, 5, 9, 15, 23, 70]),
        c=tuples(x=[2, 2, 1, 2, 1], at=[0, 10, 20, 24, 70]),
    )
    low, top = run.low, run.top
    assert low.feedback is not None
    assert top.feedback is not None
    asked: list[tuple[int, int]] = []
    for _ in range(3):
        run.turn(low, 1)
        (request,) = run.turn(top, 1)
        asked.append((len(request.suspend), len(request.resume)))
        low.deliver(request)
    assert asked == [(0, 0), (1, 0), (0, 0)], "A at 1 with B at 1 meets no C"
    assert run.sent() == [0, 1, 1, 0], "two results, then the notice that no more of x = 1 will come"
    assert low.feedback.kept_back() == 1
    run.turn(low, 1)
    (request,) = run.turn(top, 1)
    assert (len(request.suspend), len(request.resume)) == (0, 1), "C at 20 has been read, and the notice"
    assert low.engine.cut > top.feedback.limit == top.engine.cut == 3, "it is asked for in advance, and waited for"
    low.deliver(request)
    run.turn(low, 1)
    assert low.feedback.kept_back() == 0
    assert run.sent()[4:] == [2, 5, 8], "two epochs of A's x = 2, and 8 results of x = 1: the first is among them anew"
    ((_, log),) = [(lane, log) for lane, log in run.chain.topics.logs.items() if isinstance(log[0], bytes)]
    log.append(log[-1])
    run.chain.finish()
    check(run.chain, run.query, run.rows)
    assert top.repeated == 1, "a notice that is there twice changes nothing"


def passing_on(times: list[int], demanded: set[int]) -> tuple[Chain, Query, dict[str, list[list[Row]]]]:
    """(((A B) C) D), where D wants A's y = 1, which all of A has, at few times."""
    query = query_of([100, 100, 100, 4], "A.k = B.k AND B.x = C.x AND A.y = D.y")
    rows = {name: tuples(at=times, y=[1] * len(times)) for name in "ab"}
    rows |= {"c": tuples(at=times[::5]), "d": tuples(at=times, y=[1 if at in demanded else 0 for at in times])}
    return Chain(query, parse_plan("(((A B) C) D)", query), rows, 1, feedback=True), query, rows


def rounds(chain: Chain, count: int) -> Iterator[list[FeedbackRequest]]:
    """Each task takes a record of each partition, then all requests are delivered; these requests."""
    for _ in range(count):
        for task in reversed(chain.tasks):
            chain.turn(task, 1)
        mail, chain.undelivered = chain.undelivered, []
        yield mail
        for request in mail:
            chain.deliver(request)


def test_what_is_passed_on_is_kept_back_at_one_place() -> None:
    """Of A's y = 1 no D is there: C's join keeps back what has come of it, then A's own join does, and C's lets go of
    it; when a D comes all of it comes once."""
    chain, query, rows = passing_on(list(range(1, 60, 2)), {51})
    _, middle, bottom = (task.feedback for task in chain.tasks)
    assert middle is not None
    assert bottom is not None
    kept = [(middle.kept_back(), bottom.kept_back()) for _ in rounds(chain, 40)]
    at_middle = [i for i, (mine, below) in enumerate(kept) if mine and not below]
    at_bottom = [i for i, (mine, below) in enumerate(kept) if below and not mine]
    assert at_middle
    assert at_bottom
    assert at_middle[0] < at_bottom[0]
    chain.finish()
    check(chain, query, rows)


@pytest.mark.deep
def test_what_is_kept_back_for_long_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices that say all leave out what has become pointless; this has not, there or further up: nobody asks for it
    before it is demanded, for fear that it were forgotten."""
    monkeypatch.setattr(producer, "WHOLE_BYTES", 1)
    chain, query, rows = passing_on(list(range(1, 420, 4)), {353})
    bottom = chain.tasks[-1].feedback
    assert bottom is not None
    seen = [(any(len(request.resume) for request in mail), bottom.kept_back()) for mail in rounds(chain, 130)]
    assert [asked for asked, _ in seen].index(True) == 88, "when D's 89th, at 353, has been read"
    assert all(kept for _, kept in seen[10:88])
    chain.finish()
    check(chain, query, rows)


@pytest.mark.deep
@pytest.mark.unmeasured
@pytest.mark.parametrize("dies", [False, True])
def test_an_old_letter_withholds_nothing(dies: bool) -> None:
    """A's join is told again what it was told long ago: C's join, which now passes on all, asks for it at once."""
    chain, query, rows = passing_on(list(range(1, 160, 2)), {51, *range(71, 160, 20)})
    _, middle, bottom = chain.tasks
    old: list[FeedbackRequest] = []
    for at, mail in enumerate(rounds(chain, 90)):
        old += [request for request in mail if request.lane[0] == "1.A-B" and len(request.suspend)]
        if at in (45, 55):
            for request in old:
                bottom.deliver(request)
            chain.turn(bottom, 1)
        if dies and at in (46, 56):
            middle.die()
    assert old
    chain.finish()
    check(chain, query, rows)


def test_what_nobody_above_was_told_of_is_missed_after_a_death() -> None:
    """A's join keeps back, by an old request, what C's has told nobody of: C's, which has read so and committed, comes
    back and asks for it."""
    chain, query, rows = passing_on(list(range(1, 110, 5)), {51, *range(61, 110, 5)})
    _, middle, bottom = chain.tasks
    old: list[FeedbackRequest] = []
    for mail in rounds(chain, 20):
        old += [request for request in mail if request.lane[0] == "1.A-B" and len(request.suspend)]
    for request in old:
        bottom.deliver(request)
    chain.turn(bottom, 1)
    chain.turn(middle, 100)
    middle.commit()
    middle.die()
    chain.undelivered.clear()
    assert middle.feedback is not None
    (demand,) = middle.feedback.consumer_ends.values()
    assert demand.waiting
    assert demand.limit == middle.engine.cut, "it goes no further without"
    chain.finish()
    check(chain, query, rows)


def kept_back_below(demanded: set[int]) -> tuple[Chain, Query, dict[str, list[list[Row]]]]:
    """`passing_on`, until A's join keeps back what D does not demand, and all have read so."""
    chain, query, rows = passing_on(list(range(1, 120, 5)), demanded)
    parts = [task.feedback for task in chain.tasks[:-1] if task.feedback is not None]
    for _ in rounds(chain, 30):
        if all(demand.suspended for part in parts for demand in part.consumer_ends.values()):
            return chain, query, rows
    pytest.fail("nothing is kept back")


def read_up_to(chain: Chain, task: Any, topic: str, at: int) -> None:
    """A task reads a source up to a time, and does nothing."""
    for source, p in task.lanes:
        if source.stream.topic == topic:
            log = chain.topics.log((topic, p))
            task.read(source, p, 1 + next(i for i, row in enumerate(log) if row["at"] == at))


def test_a_request_is_passed_on_at_once_and_answered_when_it_can_be() -> None:
    """Without an epoch: C's join asks A's as soon as it has heard D's, and has something to do when that has answered,
    once."""
    chain, query, rows = kept_back_below({71})
    top, middle, bottom = chain.tasks
    assert middle.feedback is not None
    assert bottom.feedback is not None
    read_up_to(chain, top, "td", 71)
    (request,) = top.requests()
    assert len(request.resume) == 1
    middle.deliver(request)
    assert not middle.feedback.can_resume(), "it lacks it itself"
    (passed,) = middle.requests()
    assert passed.resume.tolist() == request.resume.tolist()
    bottom.deliver(passed)
    assert bottom.feedback.can_resume()
    chain.turn(bottom, 0)
    assert not bottom.feedback.can_resume()
    for source, p in middle.lanes:
        if source.edge is not None:
            middle.read(source, p, len(chain.topics.log((source.stream.topic, p))))
    assert middle.feedback.can_resume(), "the answer has come"
    chain.undelivered.clear()
    chain.turn(middle, 0)
    assert not any(len(request.suspend) for request in chain.undelivered), "kept back for a moment, not requested again"
    middle.deliver(request)
    bottom.deliver(passed)
    for task in (middle, bottom):
        assert task.feedback is not None
        assert not task.feedback.can_resume(), "all is answered"
        assert not task.feedback.has_answers()
    chain.finish()
    check(chain, query, rows)


def test_who_is_further_down_hears_it_from_the_top() -> None:
    """D's request is heard by A's join, though C's has not heard it."""
    chain, query, rows = kept_back_below({71})
    top, _, bottom = chain.tasks
    assert [edge.above for task in chain.tasks for edge in task.operator.outputs] == [(), ("2.A-B-C",)]
    assert bottom.feedback is not None
    assert bottom.feedback.producer_end is not None
    need = bottom.feedback.hold
    read_up_to(chain, top, "td", 71)
    (request,) = top.requests()
    bottom.deliver(request)
    assert bottom.feedback.can_resume()
    assert bottom.feedback.hold == need, "how far D's has come says nothing of C's"
    chain.turn(bottom, 0)
    assert bottom.feedback.kept_back() == 0
    chain.finish()
    check(chain, query, rows)


def test_what_has_a_partner_in_the_meantime_is_not_spoken_of() -> None:
    """C at 20 is read after A at 1 has met nobody, and before that has been said."""
    run = Three(
        a=tuples(x=[1, 2, 1, 70], at=[1, 2, 3, 70]),
        b=tuples(at=[1, 5, 9, 70]),
        c=tuples(x=[2, 2, 1, 1], at=[0, 10, 20, 70]),
    )
    for _ in range(2):
        run.turn(run.low, 1)
    for source, p in run.top.lanes:
        run.top.read(source, p, 2)
    run.top.epoch(100)
    assert run.top.feedback is not None
    (demand,) = run.top.feedback.consumer_ends.values()
    assert demand.has_requests
    read_up_to(run.chain, run.top, "tc", 20)
    (request,) = run.top.requests()
    assert len(request.suspend) == 0
    run.chain.finish()
    check(run.chain, run.query, run.rows)


def test_what_is_wanted_is_not_spoken_of_either() -> None:
    """What would have been said to be useless is asked for: it may be said again, but is not said now."""
    run = Three(a=tuples(at=[1]), b=tuples(at=[1]), c=tuples(at=[1]))
    assert run.top.feedback is not None
    (demand,) = run.top.feedback.consumer_ends.values()
    words = np.array([1 << 10, 2 << 10], np.uint64)
    demand.suspend(words, 50)
    demand.request_resume(words[:1], 5)
    assert demand.take_suspends().tolist() == words[1:].tolist()
    demand.suspend(words, 50)
    assert demand.take_suspends().tolist() == words[:1].tolist(), "the other one has been said"


@pytest.mark.parametrize("answers", [4, 1_000])
def test_what_is_asked_for_too_often_rests(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """C wants again and again what is kept back: after 4 answers all comes back, and no more is said for 4 windows;
    1,000 there are not."""
    monkeypatch.setattr(payoff, "ANSWERS", answers)
    times = list(range(0, 400, 2))
    rows = {name: tuples(at=times, x=[at // 2 % 5 for at in times], k=[at // 2 % 5 for at in times]) for name in "ab"}
    rows["c"] = tuples(at=times, x=[at // 12 % 4 for at in times])
    query = query_of([40, 40, 10], "A.k = B.k AND A.x = C.x")
    chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, feedback=True)
    top, _ = chain.tasks
    assert top.feedback is not None
    (demand,) = top.feedback.consumer_ends.values()
    rested = range(90, 180)
    said = {True: 0, False: 0}
    for mail in rounds(chain, 200):
        now = top.engine.cut
        said[now in rested] += sum(len(request.suspend) for request in mail)
        assert answers > 4 or now not in rested or not demand.suspended
    assert said[False] > 1
    assert (said[True] == 0) == (answers == 4)
    chain.finish()
    check(chain, query, rows)


def test_what_nobody_waited_for_may_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """x = 2 is waited for when the answer about x = 1 tells that asking does not pay: x = 3 is asked for too, by nobody
    in particular. Then C has it, while x = 2 is waited for from earlier on. The task took x = 3 for one that may come
    whenever it will, went past C's when x = 2 had come, and what A and B had for it was lost."""
    run = Three(
        a=tuples(x=[1, 2, 3, 0, 0], at=[1, 2, 3, 40, 200]),
        b=tuples(at=[1, 2, 3, 40, 200]),
        c=tuples(x=[0, 0, 1, 2, 3, 4], at=[0, 30, 41, 42, 43, 200]),
    )
    top, low = run.top, run.low
    (given,) = (source for source, _ in top.lanes if source.edge is not None)

    def answered(*requests: FeedbackRequest) -> None:
        for request in requests:
            low.deliver(request)
        low.epoch(run.chain.end)
        top.read(given, 0, len(run.chain.topics.log((given.stream.topic, 0))))

    for topic in ("ta", "tb"):
        read_up_to(run.chain, low, topic, 40)
    read_up_to(run.chain, top, "tc", 30)
    answered()
    top.epoch(run.chain.end)
    answered(*top.requests())
    assert top.feedback is not None
    (demand,) = top.feedback.consumer_ends.values()
    assert demand.suspended == 3
    monkeypatch.setattr(payoff, "ANSWERS", 1)
    monkeypatch.setattr(payoff, "ANSWER_BYTES", 1 << 30)
    asked: list[FeedbackRequest] = []
    for at in (41, 42):
        read_up_to(run.chain, top, "tc", at)
        asked += top.requests()
    answered(asked[0])
    assert (len(demand.wanted), demand.limit) == (2, 42)
    read_up_to(run.chain, top, "tc", 43)
    answered(asked[1])
    assert (len(demand.wanted), demand.limit) == (1, 43)
    run.chain.finish()
    check(run.chain, run.query, run.rows)


def test_a_task_recalls_its_own_notices_only() -> None:
    """Of two that write to the same partition one hears what is not demanded, the other does not, and dies."""
    times = list(range(1, 100, 2))
    values = [at % 8 for at in times]
    rows = {name: tuples(at=times, x=values, k=values) for name in "ab"} | {"c": tuples(at=times, x=[99] * len(times))}
    query = query_of([100, 100, 10], "A.k = B.k AND A.x = C.x")
    chain = Chain(query, parse_plan("((A B) C)", query), rows, 2, feedback=True)
    first, second = (task for task in chain.tasks if task.operator.name == "(A B)")
    for _ in range(60):
        for task in reversed(chain.tasks):
            chain.turn(task, 1)
        for request in chain.undelivered:
            first.deliver(request)
        chain.undelivered.clear()
    assert first.feedback is not None
    assert first.feedback.kept_back() > 0
    second.die()
    assert second.feedback is not None
    assert second.feedback.kept_back() == 0
    chain.finish()
    check(chain, query, rows)


def test_nothing_is_made_while_the_other_input_is_empty() -> None:
    """C with D makes nothing: then A is kept back before it meets B, whatever its values, by one signature in all."""
    query = query_of([100, 100, 100, 100], "A.k = B.k AND C.k = D.k AND A.x = C.x")
    plan = parse_plan("((A B) (C D))", query)
    times = [1, 2, 3, 4, 5, 6, 80]
    rows = {name: tuples(at=times, x=times) for name in "ab"}
    rows |= {"c": tuples(at=times, x=[0, 0, 0, 0, 2, 0, 0]), "d": tuples(at=times, k=[1, 1, 1, 1, 1, 0, 2])}
    chain = Chain(query, plan, rows, 1, feedback=True)
    left = next(task for task in chain.tasks if task.operator.name == "(A B)")
    assert left.feedback is not None
    asked = 0
    for _ in range(5):
        for task in reversed(chain.tasks):
            chain.turn(task, 1)
        for request in chain.undelivered:
            asked += len(request.suspend)
            chain.deliver(request)
        chain.undelivered.clear()
    assert asked == 1
    assert left.feedback.kept_back() == 4, "all that have come"
    chain.finish()
    check(chain, query, rows)


def test_kinds_are_those_of_the_readers_above() -> None:
    """(A B) is told by C of B's x, and passed on by C what D says of A's y; the empty kind goes all the way."""
    query = query_of([100, 100, 100, 100], "A.k = B.k AND B.x = C.x AND A.y = D.y")
    operators = decompose(query, parse_plan("(((A B) C) D)", query), {f"t{a}": 1 for a in "abcd"}, 1, feedback=True)
    kinds = {edge.producer: [(k.number, len(k.own), k.opposite is None, k.home) for k in edge.kinds]
             for operator in operators for edge in operator.outputs}  # fmt: skip
    assert kinds == {
        "(A B)": [(2, 0, False, 0), (3, 1, False, 1), (0, 0, True, 0), (1, 1, True, 0)],
        "((A B) C)": [(0, 0, False, 0), (1, 1, False, 0)],
    }
    silent = decompose(query, parse_plan("(((A B) C) D)", query), {f"t{a}": 1 for a in "abcd"}, 1)
    assert not any(edge.kinds for operator in silent for edge in operator.outputs)


def test_of_a_split_reader_only_the_whole_key_is_a_kind() -> None:
    """Of another part of its key the other partitions may have what this one has not."""
    query = query_of([100, 100, 100], "A.k = B.k AND A.x = C.x AND B.y = C.y")
    plan = parse_plan("((A B) C)", query)
    for split, expected in ((1, [0, 1, 1]), (2, [])):
        found = decompose(query, plan, {f"t{a}": 1 for a in "abc"}, split, feedback=True)
        assert [len(kind.own) for kind in found[1].outputs[0].kinds] == expected
    query = query_of([100, 100, 100], "A.k = B.k AND A.x = C.x")
    found = decompose(query, parse_plan("((A B) C)", query), {f"t{a}": 1 for a in "abc"}, 2, feedback=True)
    assert [len(kind.own) for kind in found[1].outputs[0].kinds] == [1]
    assert found[1].outputs[0].marks_channels


FIELDS = (Field("c0", Type.BIGINT), Field("c1", Type.STRING))


def test_a_notice_is_read_as_it_was_written() -> None:
    columns = {"c0": Column.from_values([1, None], Type.BIGINT), "c1": Column.from_values(["ä", ""], Type.STRING)}
    late = Batch(np.array([3, 4], np.int64), columns)
    words = np.array([1, 2**64 - 1], np.uint64)
    raw = encode_notice(FIELDS, Notice(2, 7, True, words, words[:1], late))
    assert is_notice(raw)
    found = decode_notice(FIELDS, raw, "here")
    assert (found.channel, found.number, found.whole) == (2, 7, True)
    assert found.suspended.tolist() == words.tolist()
    assert found.resumed.tolist() == [1]
    assert found.late.columns["c1"].to_values() == ["ä", ""]
    assert found.late.columns["c0"].to_values() == [1, None]
    for cut in (3, 20, len(raw) - 1):
        with pytest.raises(StateError, match="here"):
            decode_notice(FIELDS, raw[:cut], "here")
    with pytest.raises(StateError, match="another query or plan has written it"):
        decode_notice(FIELDS[:1], raw, "here")
