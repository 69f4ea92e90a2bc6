"""Runs one trial: data flow, faults happen, all faults end, the input is closed, and the outcome is judged."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import threading
import time
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.trial import read_topic
from tests.torture import verdict
from tests.torture.cluster import Attached, Cluster
from tests.torture.expected import Content, Truth
from tests.torture.faults import inject
from tests.torture.scenario import Fault, Scenario
from tests.torture.verdict import Violation
from tests.torture.world import Stalled, World

SETTLE_S = 30.0
"""Missing results are reported after so long without progress, with all input committed: distributed joins may have
input of each other in an open transaction, which may take its timeout, of 20 s at most."""


@dataclass
class Outcome:
    """The outcome of a trial, as it is stored.

    Attributes:
        silences: by kind of fault, the longest time without a commit or a result from its beginning to the next one's.
        expected: how many records were expected.
    """

    seed: int
    kind: str
    brokers: int
    seconds: float = 0.0
    expected: int = 0
    faults: list[str] = field(default_factory=list)
    silences: list[tuple[str, float]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evidence: str = ""

    def to_json(self) -> str:
        """The outcome as one line of JSON."""
        return json.dumps(asdict(self))


def run(scenario: Scenario, cluster: Cluster | Attached, folder: Path, evidence: Path, repeat: str) -> Outcome:
    """Run one trial.

    Args:
        folder: for its processes' logs and states; removed when there are no violations.
        evidence: where violations are stored.
        repeat: the command that runs this trial again.
    """
    folder.mkdir(parents=True)
    (folder / "scenario.json").write_text(scenario.to_json())
    began = time.monotonic()
    outcome = Outcome(scenario.seed, scenario.kind, scenario.brokers)
    world = World(scenario, cluster, folder)
    judged = verdict.Judge(world)
    try:
        _play(world, judged, outcome)
    except Stalled as stalled:
        judged.violate("stalled", str(stalled))
    except Exception:
        judged.violate("harness", traceback.format_exc())
    finally:
        world.stopping.set()
        judged.look_at_logs()
        world.close()
    outcome.seconds = round(time.monotonic() - began, 1)
    outcome.violations = judged.found
    outcome.notes = list(dict.fromkeys([*cluster.notes, *world.notes, *judged.notes]))[:20]
    (folder / "happened.json").write_text("\n".join(map(json.dumps, world.log)) + "\n")
    (folder / "repeat.txt").write_text(repeat + "\n")
    if outcome.violations:
        outcome.evidence = str(_keep(world, judged, evidence / f"{scenario.seed}-{scenario.kind}"))
    world.clean()
    return outcome


def _play(world: World, judged: verdict.Judge, outcome: Outcome) -> None:
    scenario = world.scenario
    for slot in world.slots:
        world.start(slot)
    if scenario.coordinator:
        world.coordinate()
    world.watch.start()
    world.until(lambda: any(worker.running_tasks() for worker in world.running()), "a task runs")
    for worker in world.running():
        judged.ended_early(worker)
    world.began = time.monotonic()
    supervisor = threading.Thread(target=world.supervise)
    supervisor.start()
    feeder = threading.Thread(target=world.feed)
    feeder.start()
    wishes = _schedule(world, judged)
    feeder.join()
    for thread in wishes:
        thread.join()
    world.say("healing")
    world.cluster.heal()
    for slot in list(world.slots):
        if slot.wanted:
            with slot.lock:
                world.start(slot)
    world.until(world.written, "the trial's records are written")
    if scenario.group:
        world.until(lambda: judged.begun(), "the group runs what is registered")
    world.say("closing")
    world.close_input()
    world.until(world.written, "the closing records are written")
    truth = Truth(scenario, world.prefix, world.known, _log(world))
    world.until(world.watch.caught_up, "everything is committed")
    world.say("caught up")
    expected = truth.judge_by(judged.stays() if scenario.group else [])
    outcome.expected = expected.total()
    # Results that a memory budget has postponed arrive after the input has ended.
    _until_quiet(world, expected.total())
    judged.health()
    world.stopping.set()
    supervisor.join()
    for slot in world.slots:
        with slot.lock:
            if slot.worker is not None and slot.worker.process.poll() is None:
                judged.stopped(slot.worker)
    world.say("stopped")
    judged.outputs(expected)
    judged.transactions()
    _silences(world, outcome)


def _schedule(world: World, judged: verdict.Judge) -> list[threading.Thread]:
    """Start a thread per fault, which waits until the fault is due; returns the threads to wait for."""

    def at_its_time(fault: Fault) -> None:
        world.stopping.wait(max(0.0, world.began + fault.at - time.monotonic()))
        if world.stopping.is_set():
            return
        try:
            inject(world, fault)
        except Exception:
            if not world.stopping.is_set():
                judged.violate("harness", f"{fault.kind}: {traceback.format_exc()}")

    threads = []
    for fault in world.scenario.faults:
        thread = threading.Thread(target=at_its_time, args=(fault,), daemon=True)
        thread.start()
        if fault.kind != "migrate":  # a migration may need the closing records to end
            threads.append(thread)
    return threads


def _until_quiet(world: World, count: int) -> None:
    """Wait until so many records have arrived, or until no more arrive and no results are pending."""
    begin = time.monotonic()

    def quiet() -> bool:
        if world.watch.seen >= count:
            return True
        if time.monotonic() - max(begin, world.watch.moved_s) < SETTLE_S:
            return False
        return sum(worker.metric("owed_pairs") for worker in world.running()) == 0 and world.watch.caught_up()

    world.until(quiet, "no results are pending")


def _log(world: World) -> dict[tuple[str, int], list[tuple[int, Content]]]:
    """The contents of the input topics, with the records that retention has deleted."""
    held: dict[tuple[str, int], dict[int, Content]] = defaultdict(dict)

    def read() -> bool:
        for alias in world.scenario.inputs:
            topic = f"{world.prefix}.{alias}"
            for record in read_topic(world.client, topic, "read_uncommitted"):
                held[world.stream(topic), record.partition][record.offset] = (record.key, record.value)
        # A broker that its peers had isolated may still believe that it leads a partition, and report an earlier end.
        written = {place: max(entries) for place, entries in world.delivered.items() if entries}
        return all(max(held[place], default=-1) >= last for place, last in written.items())

    world.until(read, "the input is read to its end")
    for place, entries in world.delivered.items():
        first = min(held[place], default=2**62)
        held[place].update({offset: value for offset, value in entries.items() if offset < first})
    # An empty value and no value are equal for Kafka's readers here, and for Weir: neither is a tuple.
    return {place: sorted(entries.items()) for place, entries in held.items()}


def _silences(world: World, outcome: Outcome) -> None:
    """For each fault the longest time without progress, from its beginning to that of the next fault or the end.

    The time between the last record and the closing records does not count: there may be nothing to do in it. Nor does
    that between the last commit or result and the moment at which the trial, which reads all input meanwhile, sees it.
    """
    named = [(world.began + entry["at"], entry["what"]) for entry in world.log]

    def when(what: str) -> float:
        return next((at for at, said in named if said == what), time.monotonic())

    healing, closing = when("healing"), when("closing")

    def busy(at: float) -> float:
        return at - max(0.0, min(at, closing) - healing)

    begins = [(busy(at), what.removesuffix(" begins")) for at, what in named if what.endswith(" begins")]
    moves = [busy(move) for move in world.watch.moves]
    caught_up = busy(when("caught up"))
    ends = [at for at, _ in begins[1:]] + [max((move for move in moves if move < caught_up), default=caught_up)]
    outcome.faults = [kind for _, kind in begins]
    for (begin, kind), end in zip(begins, ends, strict=False):
        marks = [begin, *(move for move in moves if begin < move < end), max(end, begin)]
        outcome.silences.append((kind, round(max(b - a for a, b in itertools.pairwise(marks)), 2)))


def _keep(world: World, judged: verdict.Judge, target: Path) -> Path:
    """Copy everything about a violation. Brokers are frozen meanwhile, so that their files are consistent."""
    number = 0
    base = target
    while target.exists():
        number += 1
        target = base.with_name(f"{base.name}-{number}")
    shutil.copytree(world.folder, target, ignore=shutil.ignore_patterns("state*", "disk-*"))
    (target / "violations.json").write_text(json.dumps([asdict(v) for v in judged.found], indent=1))
    for name, what in judged.shown.items():
        (target / name).write_text(json.dumps(what, indent=1))
    for node in world.cluster.nodes:
        node.signal(signal.SIGSTOP)
        kept = target / f"segments-{node.number}"
        for folder in (node.folder / "log").glob("*"):
            ours = world.prefix in folder.name and not any(
                folder.name.startswith(f"{world.prefix}.{alias}-") for alias in world.scenario.inputs
            )
            if folder.is_dir() and (ours or folder.name.startswith(("__consumer_offsets-", "__transaction_state-"))):
                (kept / folder.name).mkdir(parents=True)
                for file in folder.glob("*.log"):
                    shutil.copy(file, kept / folder.name / file.name)
        shutil.copy(node.folder / "broker.log", target / f"broker-{node.number}.log")
        node.signal(signal.SIGCONT)
    return target


def summary(outcome: Outcome) -> str:
    """One line for a terminal."""
    said = "ok" if not outcome.violations else "; ".join(f"{v.kind}: {v.text[:160]}" for v in outcome.violations)
    return (
        f"seed {outcome.seed} {outcome.kind} x{outcome.brokers} {outcome.seconds:.0f} s, {outcome.expected} records, "
        f"{', '.join(outcome.faults)}: {said}" + (f" -> {outcome.evidence}" if outcome.evidence else "")
    )


def loaded(path: Path) -> list[dict[str, Any]]:
    """The outcomes in a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
