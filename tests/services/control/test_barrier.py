"""The barrier's protocol: one log, tasks and coordinators that lose, repeat and reorder messages, die and return."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from schemas.messages.control import Answer, BarrierMessage, Cut, Done, Opened, Propose, Request, Withdraw
from services.control.barrier import KEPT_REPORTS, Barrier, Change, View
from services.control.coordination import PREPARATION_S, Coordination
from services.control.participant import GRACE_S, Participant

TIMEOUT_MS = 4_000
PATIENCE_S = TIMEOUT_MS / 1000 + GRACE_S


def request(id_: str, at: int | None = None) -> Request:
    return Request(id=id_, plan="(A B)", strategy="jisc", fingerprint="f", asked_ms=0, at=at, timeout_ms=TIMEOUT_MS)


def propose(id_: str, tasks: int) -> Propose:
    return Propose(id=id_, plan="(A B)", strategy="jisc", fingerprint="f", tasks=tasks, timeout_ms=TIMEOUT_MS)


def answer(id_: str, task: int, bound: int, incarnation: str | None = None, error: str = "") -> Answer:
    own = incarnation or f"t{task}"
    return Answer(id=id_, task=task, incarnation=own, watermark=bound - 1, bound=bound, error=error)


def folded(*messages: BarrierMessage) -> View:
    barrier = Barrier()
    for message in messages:
        barrier.apply(message)
    return barrier.view()


OPENED = (Opened(task=0, incarnation="t0"), Opened(task=1, incarnation="t1"))
ASKED = (*OPENED, request("a"), propose("a", 2))
ANSWERED = (*ASKED, answer("a", 0, 50), answer("a", 1, 70))


# --- What counts --------------------------------------------------------------------------------------


def test_a_cut_beyond_all_bounds_makes_a_version() -> None:
    view = folded(*ANSWERED, Cut(id="a", cut=70))
    assert view.changes == (Change(1, "a", "(A B)", "jisc", 70, 2, "work"),)
    assert view.open is None
    assert view.waiting == ()
    assert [view.version_at(t) for t in (0, 69, 70, 71)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "messages",
    [
        (*ASKED, Cut(id="a", cut=70)),
        (*ASKED, answer("a", 0, 50), Cut(id="a", cut=70)),
        (*ANSWERED, Cut(id="a", cut=69)),
        (*ANSWERED, Cut(id="b", cut=70)),
        (*ANSWERED, Opened(task=1, incarnation="new"), Cut(id="a", cut=70)),
        (*ASKED, answer("a", 0, 50), answer("a", 1, 70, incarnation="old"), Cut(id="a", cut=70)),
        (*ASKED, answer("a", 0, 50), answer("a", 1, 70, error="no"), Cut(id="a", cut=70)),
        (*ANSWERED, Withdraw(id="a", reason="", by="task 1"), Cut(id="a", cut=70)),
    ],
    ids=["no answer", "one answer", "too low", "another id", "reopened", "old incarnation", "refused", "withdrawn"],
)
def test_a_cut_that_does_not_count(messages: tuple[BarrierMessage, ...]) -> None:
    assert folded(*messages).changes == ()


def test_the_first_decision_counts() -> None:
    decided = (*ANSWERED, Cut(id="a", cut=70))
    view = folded(*decided, Cut(id="a", cut=90), Withdraw(id="a", reason="", by="x"), propose("a", 2), request("a"))
    assert view == folded(*decided)


def test_every_message_may_come_twice() -> None:
    messages = (*ANSWERED, Cut(id="a", cut=70), Done(id="a", task=0, version=1))
    assert folded(*(m for m in messages for _ in range(2))) == folded(*messages)


def test_one_proposal_at_a_time() -> None:
    """The second waits, and a cut is above the one before."""
    first = (*ANSWERED, request("b"), propose("b", 2))
    assert [r.id for r in folded(*first).waiting] == ["b"]
    second = (*first, Cut(id="a", cut=70), propose("b", 2), answer("b", 0, 60), answer("b", 1, 60))
    assert folded(*second).least_cut == 71
    assert len(folded(*second, Cut(id="b", cut=70)).changes) == 1
    assert [c.cut for c in folded(*second, Cut(id="b", cut=71)).changes] == [70, 71]


def test_reports_of_old_changes_are_forgotten() -> None:
    messages: list[BarrierMessage] = [Opened(task=0, incarnation="t0")]
    for i in range(KEPT_REPORTS + 2):
        messages += [propose(f"{i}", 1), answer(f"{i}", 0, i), Cut(id=f"{i}", cut=i)]
        messages.append(Done(id=f"{i}", task=0, version=i + 1))
    view = folded(*messages)
    assert len(view.changes) == KEPT_REPORTS + 2
    assert set(view.done) == {(f"{i}", 0) for i in range(2, KEPT_REPORTS + 2)}


# --- The coordinator ----------------------------------------------------------------------------------


def test_the_coordinator_follows_the_log() -> None:
    coordination = Coordination(2, lambda request: "")
    assert coordination.decide(folded(*OPENED), 0.0) == []
    assert coordination.decide(folded(*OPENED, request("a")), 0.0) == [propose("a", 2)]
    assert coordination.decide(folded(*OPENED, request("a")), 0.5) == []  # sent, not yet in the log
    assert coordination.decide(folded(*OPENED, request("a")), 1.5) == [propose("a", 2)]
    assert coordination.decide(folded(*ASKED), 2.0) == []
    assert coordination.decide(folded(*ANSWERED), 3.0) == [Cut(id="a", cut=70)]


def test_a_successor_goes_on_from_the_log() -> None:
    assert Coordination(2, lambda request: "").decide(folded(*ANSWERED), 0.0) == [Cut(id="a", cut=70)]


def test_the_cut_is_where_it_was_asked_for() -> None:
    messages = (*OPENED, request("a", at=500))
    coordination = Coordination(2, lambda request: "")
    (proposal,) = coordination.decide(folded(*messages), 0.0)
    view = folded(*messages, proposal, answer("a", 0, 50), answer("a", 1, 70))
    assert coordination.decide(view, 0.0) == [Cut(id="a", cut=500)]


def test_auto_of_a_distributed_query() -> None:
    """Its tasks say how many they are, and may take longer to answer while the next version is prepared."""
    coordination = Coordination(1, lambda request: "", "hybmig-bsc")
    asked = structs.replace(request("a"), strategy="auto")
    (alone,) = coordination.decide(folded(Opened(task=0, incarnation="t0"), asked), 0.0)
    assert isinstance(alone, Propose)
    assert alone.strategy == "auto"
    opened = (Opened(task=0, incarnation="t0", tasks=2), Opened(task=1, incarnation="t1", tasks=2))
    (proposal,) = coordination.decide(folded(*opened, asked), 0.0)
    assert isinstance(proposal, Propose)
    assert (proposal.strategy, proposal.tasks) == ("hybmig-bsc", 2)
    view = folded(*opened, proposal, answer("a", 0, 50))
    assert coordination.decide(view, 0.0) == []
    assert coordination.decide(view, TIMEOUT_MS / 1000 + PREPARATION_S - 0.1) == []
    (withdrawal,) = coordination.decide(view, TIMEOUT_MS / 1000 + PREPARATION_S)
    assert isinstance(withdrawal, Withdraw)


def test_the_coordinator_withdraws() -> None:
    coordination = Coordination(3, lambda request: "")
    view = folded(*OPENED, propose("a", 3), answer("a", 0, 50))
    assert coordination.decide(view, 10.0) == []
    (withdrawal,) = coordination.decide(view, 10.0 + TIMEOUT_MS / 1000)
    assert isinstance(withdrawal, Withdraw)
    assert withdrawal.reason.startswith("2 of 3 tasks did not answer within 4 s (task 1, 2)")
    refused = folded(*ASKED, answer("a", 1, 70, error="no such plan"))
    (withdrawal,) = Coordination(2, lambda request: "").decide(refused, 0.0)
    assert withdrawal == Withdraw(id="a", reason="task 1 refused: no such plan", by="coordinator")
    (withdrawal,) = Coordination(2, lambda request: "bad").decide(folded(request("a")), 0.0)
    assert withdrawal == Withdraw(id="a", reason="bad", by="coordinator")


# --- The task -----------------------------------------------------------------------------------------


def look(participant: Participant, view: View, now: float, reached: int = 40, committed: float = -1.0) -> list[object]:
    return [*participant.look(view, reached=reached, speed=20.0, committed=committed, now=now)]


def test_a_task_answers_and_keeps_its_promise_until_the_decision() -> None:
    participant = Participant(0, "t0", lambda proposal: "", 0)
    assert look(participant, folded(*OPENED), 0.0) == []
    assert participant.bound is None
    given = Answer(id="a", task=0, incarnation="t0", watermark=40, bound=50)
    assert look(participant, folded(*ASKED), 0.0) == [given]
    assert participant.bound == 50
    assert look(participant, folded(*ASKED), 0.5, reached=45) == []
    assert look(participant, folded(*ASKED), 1.5, reached=50) == [given]  # it is not in the log
    view = folded(*ASKED, given)
    assert look(participant, view, 3.0) == []
    (withdrawal,) = look(participant, view, PATIENCE_S)
    assert isinstance(withdrawal, Withdraw)
    assert participant.bound == 50  # until it is in the log
    assert look(participant, folded(*ASKED, given, withdrawal), 9.0) == []
    assert participant.bound is None


def test_a_task_that_cannot_says_so_and_promises_nothing() -> None:
    participant = Participant(0, "t0", lambda proposal: "never heard of it", 0)
    (given,) = look(participant, folded(*ASKED), 0.0)
    assert isinstance(given, Answer)
    assert given.error == "never heard of it"
    assert participant.bound is None


def test_a_task_learns_of_each_change_once() -> None:
    participant = Participant(0, "t0", lambda proposal: "", 0)
    view = folded(*ANSWERED, Cut(id="a", cut=70))
    assert [c.id for c in participant.changes(view)] == ["a"]
    assert participant.changes(view) == ()
    assert Participant(0, "t0", lambda proposal: "", 1).changes(view) == ()


def test_a_living_task_that_was_outdone_by_a_fenced_one_says_that_it_lives() -> None:
    """Two lives began at once; the `Opened` of the one that was fenced came last."""
    participant = Participant(0, "t0", lambda proposal: "", 0)
    view = folded(*OPENED, Opened(task=0, incarnation="fenced"))
    assert look(participant, view, 10.0, committed=9.0) == []
    assert participant.superseded == 10.0
    assert look(participant, view, 11.0, committed=10.5) == [Opened(task=0, incarnation="t0")]
    assert look(participant, view, 11.1, committed=10.5) == []
    assert look(participant, folded(*OPENED), 12.0) == []
    assert participant.superseded is None


def test_how_long_a_promise_held_the_task_up_is_told() -> None:
    participant = Participant(0, "t0", lambda proposal: "", 0)
    look(participant, folded(*ASKED), 0.0)
    participant.hold(1.0)
    participant.hold(1.2)
    look(participant, folded(*ANSWERED, Cut(id="a", cut=70)), 1.5)
    assert participant.take_waited("a") == 0.5
    assert participant.take_waited("a") == 0.0


# --- All together -------------------------------------------------------------------------------------


@dataclass
class Reader:
    """A fold of the log up to some place."""

    barrier: Barrier = field(default_factory=Barrier)
    place: int = 0

    def read(self, log: list[BarrierMessage], stop: int) -> View:
        for message in log[self.place : stop]:
            self.barrier.apply(message)
        self.place = max(self.place, stop)
        return self.barrier.view()


@dataclass
class Life:
    """A task as the worker runs it, its engine reduced to how far it is and where it changed plans."""

    number: int
    name: str
    participant: Participant
    reader: Reader
    reached: int
    version: int
    committed_s: float = -1.0
    due: list[Change] = field(default_factory=list)
    promised_s: float | None = None

    def look(self, log: list[BarrierMessage], stop: int, now: float) -> list[BarrierMessage]:
        view = self.reader.read(log, stop)
        for change in self.participant.changes(view):
            assert self.reached <= change.cut, f"task {self.number} at {self.reached} learns of {change}"
            self.due.append(change)
        return self.participant.look(view, reached=self.reached, speed=100.0, committed=self.committed_s, now=now)

    def go_on(self, to: int) -> None:
        bound = self.participant.bound
        self.reached = max(self.reached, to if bound is None else min(to, bound))
        while self.due and self.due[0].cut <= self.reached:
            self.version = self.due.pop(0).version


class World(RuleBasedStateMachine):
    """Tasks, zombies, coordinators and a network in which messages wait, get lost and come again.

    `Opened` alone is written and read back before a life begins, as the worker does it.
    """

    @initialize(tasks=st.integers(1, 3))
    def begin(self, tasks: int) -> None:
        self.log: list[BarrierMessage] = []
        self.flying: list[BarrierMessage] = []
        self.now = 0.0
        self.asked = 0
        self.born = 0
        self.committed = dict.fromkeys(range(tasks), (0, 0))
        self.zombies: list[Life] = []
        self.lives = [self.open(number) for number in range(tasks)]
        self.coordinators = [(self.coordination(), Reader()) for _ in range(2)]

    def coordination(self) -> Coordination:
        return Coordination(len(self.committed), lambda request: "")

    def open(self, number: int) -> Life:
        self.born += 1
        name = f"life-{self.born}"
        self.log.append(Opened(task=number, incarnation=name))
        reached, version = self.committed[number]
        reader = Reader()
        view = reader.read(self.log, len(self.log))
        life = Life(number, name, Participant(number, name, lambda proposal: "", version), reader, reached, version)
        # What was decided before it began it may have to take late, but never below what it has committed.
        life.due = list(life.participant.changes(view))
        assert all(change.cut >= reached for change in life.due)
        return life

    def pick(self, which: int, lives: list[Life]) -> Life:
        return lives[which % len(lives)]

    @rule()
    def ask(self) -> None:
        if self.asked < 6:
            self.asked += 1
            self.log.append(request(f"r{self.asked}"))

    @rule(which=st.integers(0, 9), stop=st.integers(0, 9))
    def task_looks(self, which: int, stop: int) -> None:
        """It reads a part of what is new, and sends."""
        life = self.pick(which, self.lives)
        self.flying += life.look(self.log, min(life.reader.place + stop, len(self.log)), self.now)

    @rule(which=st.integers(0, 9))
    def zombie_looks(self, which: int) -> None:
        if self.zombies:
            life = self.pick(which, self.zombies)
            sent = life.participant.look(
                life.reader.read(self.log, len(self.log)),
                reached=life.reached,
                speed=0.0,
                committed=life.committed_s,
                now=self.now,
            )
            assert not any(isinstance(message, Opened) for message in sent), "a zombie claims to live"
            self.flying += sent

    @rule(which=st.integers(0, 9), by=st.integers(1, 200))
    def task_goes_on(self, which: int, by: int) -> None:
        life = self.pick(which, self.lives)
        life.go_on(life.reached + by)

    @rule(which=st.integers(0, 9))
    def task_commits(self, which: int) -> None:
        life = self.pick(which, self.lives)
        self.committed[life.number] = (life.reached, life.version)
        life.committed_s = self.now

    @rule(which=st.integers(0, 9))
    def task_dies(self, which: int) -> None:
        """It is taken over elsewhere; its former life goes on sending."""
        index = which % len(self.lives)
        self.zombies.append(self.lives[index])
        self.lives[index] = self.open(self.lives[index].number)

    @rule(which=st.integers(0, 1), stop=st.integers(0, 9))
    def coordinator_looks(self, which: int, stop: int) -> None:
        coordination, reader = self.coordinators[which]
        self.flying += coordination.decide(reader.read(self.log, min(reader.place + stop, len(self.log))), self.now)

    @rule(which=st.integers(0, 1))
    def coordinator_dies(self, which: int) -> None:
        self.coordinators[which] = self.coordination(), Reader()

    @rule(which=st.integers(0, 99), how=st.sampled_from(["arrives", "twice", "lost"]))
    def message(self, which: int, how: str) -> None:
        if self.flying:
            sent = self.flying[which % len(self.flying)]
            if how != "lost":
                self.log.append(sent)
            if how != "twice":
                self.flying.remove(sent)

    @rule(coordinator=st.integers(0, 1), order=st.permutations(range(3)), keep=st.integers(0, 2))
    def all_goes_well(self, coordinator: int, order: list[int], keep: int) -> None:
        """Everybody reads all and sends; some of it stays on its way."""
        coordination, reader = self.coordinators[coordinator]
        self.flying += coordination.decide(reader.read(self.log, len(self.log)), self.now)
        for which in order:
            life = self.pick(which, self.lives)
            self.flying += life.look(self.log, len(self.log), self.now)
            life.go_on(life.reached + 20)
        stop = max(0, len(self.flying) - keep)
        self.log += self.flying[:stop]
        self.flying = self.flying[stop:]

    @rule(cut=st.integers(0, 400))
    def somebody_announces_a_cut(self, cut: int) -> None:
        """A coordinator that has not read everything."""
        open_ = folded(*self.log).open
        self.log.append(Cut(id="r1" if open_ is None else open_.id, cut=cut))

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def cuts_ascend(self) -> None:
        cuts = [change.cut for change in folded(*self.log).changes] if hasattr(self, "log") else []
        assert cuts == sorted(set(cuts))

    def teardown(self) -> None:
        """The faults end: within the timeout everything is decided, and all tasks are free and at one version."""
        if not hasattr(self, "log"):
            return
        self.log += self.flying
        self.flying = []
        deadline = self.now + (self.asked + 1) * (PATIENCE_S + 2)
        while self.now < deadline:
            self.now += 0.25
            for coordination, reader in self.coordinators:
                self.log += coordination.decide(reader.read(self.log, len(self.log)), self.now)
            for life in self.lives:
                self.log += life.look(self.log, len(self.log), self.now)
                life.go_on(life.reached + 50)
        view = folded(*self.log)
        assert view.open is None
        assert view.waiting == ()
        assert len(view.changes) + len(view.withdrawn) == self.asked
        for life in self.lives:
            life.look(self.log, len(self.log), self.now)
            assert life.participant.bound is None
            life.go_on(10**9)
            assert life.version == len(view.changes)


TestWorld = World.TestCase
TestWorld.settings = settings(TestWorld.settings, stateful_step_count=60, deadline=None)


def test_without_faults_a_request_becomes_a_change() -> None:
    world = World()
    world.begin(3)
    world.ask()
    world.teardown()
    assert len(folded(*world.log).changes) == 1
    assert folded(*world.log).withdrawn == {}


def test_without_coordinator_tasks_end_their_promise_themselves() -> None:
    world = World()
    world.begin(2)
    world.log += [request("r1"), propose("r1", 2)]
    world.asked = 1
    world.coordinators = []
    world.teardown()
    assert folded(*world.log).withdrawn["r1"].by.startswith("task")
