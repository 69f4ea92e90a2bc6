"""Runs the contenders of `weir bench drift` over the same events, epoch by epoch in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from multiprocessing import get_context

import numpy as np

from operators.autopilot.autopilot import Autopilot
from operators.autopilot.survey import load_kernels
from operators.engine.engine import Engine
from operators.plan.choose import choose_plan, sample_statistics
from operators.plan.plan import Join, Leaf, Plan
from ops.bench.drift.outcomes import EPOCH_MS, Outcome, Track, shape_of
from ops.bench.drift.scenarios import Phase, Scenario
from ops.bench.measuring.measure import Progress
from schemas.columns import Batch

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
    plans: int = 16
    executors: tuple[str, ...] = ("mjoin", "eddy", "stairs")
    runs: int = 1
    seed: int = 1


@dataclass(slots=True)
class Contender:
    """An engine that takes part.

    Attributes:
        seconds, answers, plans: as in `Track`.
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

    def track(self) -> Track:
        """Return what the run has taken."""
        engine = self.engine
        return Track(
            tuple(self.seconds),
            tuple(self.answers),
            tuple(self.plans),
            tuple(record.longest_silence_s for record in engine.migrations),
            engine.statistics().peak_state_bytes,
            () if self.autopilot is None else tuple(one.line() for one in self.autopilot.adaptations),
        )


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
    tracks = {contender.name: contender.track() for contender in contenders}
    first = warm_ms // EPOCH_MS
    return Outcome(scenario, tracks, tuple(map(str, plans)), first, swaps, phases, settings.window_ms)


def run_all(
    chosen: list[Scenario], settings: DriftSettings, progress: Progress
) -> Iterator[tuple[Scenario, list[Outcome]]]:
    """Run scenarios, each in a process of its own, as many at a time as there are cores."""
    at_once = min(len(os.sched_getaffinity(0)), len(chosen))
    if at_once == 1:
        for scenario in chosen:
            yield scenario, run_repeatedly(scenario, settings, progress.say)
        return
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        outcomes = pool.map(partial(run_repeatedly, settings=settings), chosen)
        for number, scenario in enumerate(chosen):
            progress.say(f"{number} of {len(chosen)} scenarios done")
            yield scenario, next(outcomes)


def run_repeatedly(
    scenario: Scenario, settings: DriftSettings, say: Callable[[str], None] = lambda text: None
) -> list[Outcome]:
    """Run a scenario as often as the settings say, each time with another seed."""
    return [run(scenario, settings, settings.seed + n, say) for n in range(settings.runs)]
