"""Runs the contenders of `weir bench drift` over the same events, epoch by epoch in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from operators.autopilot.autopilot import Autopilot
from operators.autopilot.survey import load_kernels
from operators.engine.engine import Engine
from operators.kernels.hashing import F64
from operators.plan.choose import choose_plan, sample_statistics
from operators.plan.plan import Join, Leaf, Plan
from ops.bench.drift.scenarios import Phase, Scenario
from schemas.columns import Batch

EPOCH_MS = 100
"""Event time between two calls of `advance`."""

GRADUAL = ("ramp", "bursts")
"""Scenarios without phases that last: the clairvoyant may change in each of PARTS equal parts."""

PARTS = 20


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Sizes of `weir bench drift`.

    Attributes:
        seconds: event time of each scenario, beside the first window.
        window_ms: the length of all windows.
        rate: events per second and stream.
        phases: of scenarios that recur.
        plans: static plans, at most; all where a query has no more.
        executors: other executors that run.
    """

    seconds: int = 480
    window_ms: int = 1_000
    rate: float = 4_000.0
    phases: int = 4
    plans: int = 24
    executors: tuple[str, ...] = ("mjoin", "eddy", "stairs")
    runs: int = 1
    seed: int = 1


@dataclass(slots=True)
class Contender:
    """An engine that takes part.

    Attributes:
        seconds: processor time by epoch.
        answers: by epoch, how much of it passed until the results were there; the rest is for measuring and deciding.
        plans: the plan by epoch.
        results: all results so far.
    """

    name: str
    engine: Engine
    autopilot: Autopilot | None = None
    seconds: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    results: int = 0

    def epoch(self, batches: dict[str, Batch], cut: int) -> None:
        """Process one epoch."""
        began = time.process_time()
        for name, batch in batches.items():
            self.engine.push(name, 0, batch)
        self.results += len(self.engine.advance(cut))
        self.answers.append(time.process_time() - began)
        if self.autopilot is not None:
            self.autopilot.observe()
        self.seconds.append(time.process_time() - began)
        self.plans.append(str(self.engine.plan))

    def delays_ms(self) -> F64:
        """Return (epochs,) the time from the end of each epoch until its results, if events come as fast as they are
        dated: what is not done before the next epoch ends, that one waits for."""
        found, behind_s = np.zeros(len(self.seconds)), 0.0
        for number, (answer_s, whole_s) in enumerate(zip(self.answers, self.seconds, strict=True)):
            found[number] = (behind_s + answer_s) * 1000
            behind_s = max(behind_s + whole_s - EPOCH_MS / 1000, 0.0)
        return found


@dataclass(slots=True)
class Outcome:
    """One run of one scenario.

    Attributes:
        contenders: by name; static plans by their text.
        static: the names of the static plans.
        first: epochs before what is compared.
        swaps: epochs at which a phase began, from the second phase on.
        phases: by epoch.
    """

    scenario: Scenario
    contenders: dict[str, Contender]
    static: tuple[str, ...]
    first: int
    swaps: list[int]
    phases: list[Phase]

    def total(self, name: str, begin: int | None = None, end: int | None = None) -> float:
        """Return the processor seconds of a contender between two epochs."""
        return sum(self.contenders[name].seconds[self.first if begin is None else begin : end])

    def clairvoyant_epochs(self) -> list[float]:
        """Return the seconds, from epoch `first` on, of the best static plan of each phase, changed for free."""
        bounds = [self.first, *self.swaps, len(self.contenders["adapt"].seconds)]
        found: list[float] = []
        for begin, end in pairwise(bounds):
            best = min(self.static, key=lambda name: self.total(name, begin, end))
            found += self.contenders[best].seconds[begin:end]
        return found

    def clairvoyant(self) -> float:
        """Return the seconds of the best static plan of each phase, changed for free."""
        return sum(self.clairvoyant_epochs())

    def regret_s(self, name: str) -> F64:
        """Return what a contender has taken beyond the clairvoyant, from epoch `first` on, added up by epoch."""
        own = np.array(self.contenders[name].seconds[self.first :])
        return np.asarray(np.cumsum(own - np.array(self.clairvoyant_epochs())))

    def until_right(self) -> list[float]:
        """Return the windows from each swap until the plan is within 5% of the phase's best, by their own times."""
        adapt = self.contenders["adapt"]
        bounds = [*self.swaps, len(adapt.seconds)]
        found = []
        for begin, end in pairwise(bounds):
            later = begin + (end - begin) // 2
            costs = {name: self.total(name, later, end) for name in self.static}
            right = {name for name in self.static if costs[name] <= 1.05 * min(costs.values())}
            reached = next((e for e in range(begin, end) if same_in(adapt.plans[e], right)), end)
            found.append((reached - begin) * EPOCH_MS)
        return found


def same_in(plan: str, names: set[str]) -> bool:
    """Return whether a plan makes the sub-plans of one of some plans, whichever inputs are left."""
    return shape_of(plan) in {shape_of(name) for name in names}


def shape_of(plan: str) -> frozenset[frozenset[str]]:
    """Return the sets of one-letter aliases that a plan joins."""
    found, stack = set(), []
    for letter in plan:
        if letter == "(":
            stack.append(set[str]())
        elif letter == ")":
            done = frozenset(stack.pop())
            found.add(done)
            if stack:
                stack[-1] |= done
        elif letter != " " and stack:
            stack[-1].add(letter)
    return frozenset(found)


def connected_plans(scenario: Scenario) -> list[Plan]:
    """Return every tree without cross products, up to which input is left."""
    edges = {frozenset((scenario.names[a], scenario.names[b])) for a, b in scenario.edges}

    def trees(aliases: tuple[str, ...]) -> list[Plan]:
        if len(aliases) == 1:
            return [Leaf(aliases[0])]
        found: list[Plan] = []
        for count in range(len(aliases) - 1):
            for others in combinations(aliases[1:], count):
                left = (aliases[0], *others)
                right = tuple(alias for alias in aliases if alias not in left)
                if any(frozenset((a, b)) in edges for a in left for b in right):
                    found += [Join(a, b) for a in trees(left) for b in trees(right)]
        return found

    return trees(scenario.names)


def plan_of(scenario: Scenario, phase: Phase, settings: DriftSettings, seed: int) -> Plan:
    """Return the plan that `weir run` chooses from a window's events of a phase."""
    query = scenario.query(settings.window_ms)
    sample = scenario.events(phase, 0, settings.window_ms, settings.window_ms, seed)
    return choose_plan(query, sample_statistics(query, sample))


def add_chosen(scenario: Scenario, settings: DriftSettings, seed: int, plans: list[Plan]) -> list[Plan]:
    """Return plans with those that `weir run` chooses for each phase, so that the clairvoyant has good ones."""
    by_shape = {shape_of(str(plan)): plan for plan in plans}
    for phase in dict.fromkeys(scenario.at((part + 0.5) / PARTS) for part in range(PARTS)):
        plan = plan_of(scenario, phase, settings, seed)
        by_shape.setdefault(shape_of(str(plan)), plan)
    return list(by_shape.values())


def run(scenario: Scenario, settings: DriftSettings, seed: int, say: Callable[[str], None]) -> Outcome:
    """Run one scenario; every contender gets the same events.

    Raises:
        AssertionError: results differ.
    """
    query = scenario.query(settings.window_ms)
    plans = connected_plans(scenario)
    rng = np.random.default_rng(seed)
    if len(plans) > settings.plans:
        plans = [plans[n] for n in sorted(rng.choice(len(plans), settings.plans, replace=False))]
        plans = add_chosen(scenario, settings, seed, plans)
    contenders = [Contender(str(plan), Engine(query, plan=plan)) for plan in plans]
    warm_ms = settings.window_ms + settings.window_ms // 2
    chosen = plan_of(scenario, scenario.at(0.0), settings, seed)
    adaptive = Engine(query, plan=chosen, clock=time.perf_counter)
    load_kernels(query, chosen)  # as a worker does at its start
    contenders.append(Contender("adapt", adaptive, Autopilot(adaptive)))
    contenders.append(Contender("off", Engine(query, plan=chosen)))
    contenders += [Contender(name, Engine(query, executor=name)) for name in settings.executors]
    whole_ms = warm_ms + settings.seconds * 1000
    swaps: list[int] = []
    phases: list[Phase] = []
    last, flipped, changes = scenario.at(0.0), False, 0
    for number, begin in enumerate(range(0, whole_ms, EPOCH_MS)):
        share = max(begin - warm_ms, 0) / (whole_ms - warm_ms)
        if scenario.adversary:
            made = len(adaptive.migrations)
            flipped, changes = flipped ^ (made > changes or (begin >= warm_ms and not swaps)), made
            phase: Phase = scenario.at(0.75 if flipped else 0.25)
        else:
            phase = scenario.at(share)
        if phase != last and scenario.name not in GRADUAL:
            swaps.append(number)
        last = phase
        phases.append(phase)
        batches = scenario.events(phase, begin, EPOCH_MS, settings.window_ms, seed)
        for place in rng.permutation(len(contenders)):
            contenders[place].epoch(batches, begin + EPOCH_MS)
        if number % 50 == 0:
            say(f"{scenario.name}: {begin // 1000} of {whole_ms // 1000} s")
    counts = {contender.results for contender in contenders}
    if len(counts) > 1:
        raise AssertionError(f"{scenario.name}: results differ: {[(c.name, c.results) for c in contenders]}")
    if scenario.name in GRADUAL:
        first, length = warm_ms // EPOCH_MS, settings.seconds * 1000 // EPOCH_MS
        swaps = [first + length * n // PARTS for n in range(1, PARTS)]
    by_name = {contender.name: contender for contender in contenders}
    return Outcome(scenario, by_name, tuple(map(str, plans)), warm_ms // EPOCH_MS, swaps, phases)
