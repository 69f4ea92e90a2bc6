"""Runs random trials of every feature with every fault, each judged by an oracle: `python -m tests.torture --minutes
60`.

Trial i of a run is drawn from seed + i, and is the same whenever it is drawn with the same seed and options. Outcomes
are lines of `DIR/trials.jsonl`; a run with `--resume DIR` continues after the last of them. Each violation leaves a
folder in `DIR/violations`.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.cluster import Cluster
from tests.torture.report import table
from tests.torture.scenario import KINDS, Scenario, draw
from tests.torture.trial import loaded, run, summary

FRESH = 12
"""After how many trials the broker is replaced by a new one: old topics and groups slow its starts down."""


def main() -> int:
    """Run trials; returns exit code 1 when some guarantee was violated."""
    options = _options()
    # After SIGTERM too, a long run leaves no process, mount or namespace of it behind, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.report is not None:
        print(table(loaded(options.report / "trials.jsonl")))
        return 0
    target: Path = options.resume or options.out or Path(tempfile.mkdtemp(prefix="weir-torture-"))
    target.mkdir(parents=True, exist_ok=True)
    lines = target / "trials.jsonl"
    brokers = 3 if options.cluster else 1
    done = {line["seed"] for line in loaded(lines) if line["brokers"] == brokers} if options.resume else set()
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    seeds = iter(range(options.seed, options.seed + (options.trials or sys.maxsize)))
    if options.scenario is not None:
        seeds = iter([Scenario.from_json(options.scenario.read_text()).seed])
    wrong, number, cluster = 0, 0, None
    print(f"outcomes go to {target}", flush=True)
    try:
        for seed in seeds:
            if seed in done:
                continue
            if time.monotonic() > until:
                break
            scenario = draw(seed, only=options.only, brokers=brokers)
            if options.scenario is not None:
                scenario = Scenario.from_json(options.scenario.read_text())
            if cluster is None or number % FRESH == 0:
                if cluster is not None:
                    cluster.discard()
                folder = Path(tempfile.mkdtemp(prefix="weir-torture-broker-")) / "cluster"
                cluster = Cluster(folder, scenario.brokers, "400m" if scenario.brokers > 1 else "512m", own_disk=True)
            number += 1
            place = Path(tempfile.mkdtemp(prefix="weir-torture-trial-")) / str(seed)
            outcome = run(scenario, cluster, place, target / "violations", _again(options, seed))
            with lines.open("a") as out:
                out.write(outcome.to_json() + "\n")
            print(summary(outcome), flush=True)
            if outcome.violations:
                wrong += 1
                print(f"  again: {_again(options, seed)}", flush=True)
                cluster.discard()
                cluster, number = None, 0
    finally:
        if cluster is not None:
            cluster.discard()
    print(table(loaded(lines)))
    return 1 if wrong else 0


def _again(options: argparse.Namespace, seed: int) -> str:
    words = ["python", "-m", "tests.torture", "--trials", "1", "--seed", str(seed)]
    words += ["--only", options.only] if options.only else []
    words += ["--cluster"] if options.cluster else []
    return shlex.join(words)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, help="begin no trial after so many minutes; default: no limit")
    parser.add_argument("--trials", type=int, help="run so many trials; default: no limit")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; default 1")
    parser.add_argument("--only", default="", choices=["", *KINDS], metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("--cluster", action="store_true", help="three brokers, which fail one by one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where outcomes go; default: a new temporary folder")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run whose outcomes are there")
    parser.add_argument("--report", type=Path, metavar="DIR", help="print the table of a run, and run nothing")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="run this scenario.json, whatever a seed draws")
    options = parser.parse_args()
    if options.minutes is None and options.trials is None and options.scenario is None:
        options.minutes = 30.0
    return options


if __name__ == "__main__":
    sys.exit(main())
