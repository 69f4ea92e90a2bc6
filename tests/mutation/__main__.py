"""Breaks the engine in small ways and checks that its tests notice.

    python -m tests.mutation               # every mutant; exit code 1 if one survives
    python -m tests.mutation join.py scan  # those whose name contains one of the words
    python -m tests.mutation --resume FILE # those that FILE does not name yet; verdicts are added to it

operators/, schemas/ and the engine's tests are copied to a temporary folder per job. The unbroken copy must pass; that
run also fills the kernel cache from which each mutant starts, so that only the touched file is compiled again.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.mutation.mutants import MUTANTS, Mutant
from tests.mutation.sandbox import Sandbox

ROOT = Path(__file__).parents[2]


def main(words: Sequence[str], jobs: int = 1, file: Path | None = None) -> int:
    """Judge mutants side by side, print a line for each, and return the process's exit code."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    judged = {line.split("\t")[1] for line in lines}
    queue: SimpleQueue[Mutant] = SimpleQueue()
    # In random order, a part of a run says something of all files.
    for mutant in random.Random(len(MUTANTS)).sample(chosen, len(chosen)):
        if mutant.name not in judged:
            queue.put(mutant)

    def show(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if file is not None:
            with file.open("a") as out:
                out.write(line + "\n")

    with ThreadPoolExecutor(jobs) as side_by_side:
        for job in [side_by_side.submit(_judge, queue, show) for _ in range(jobs)]:
            job.result()
    survivors = [line for line in lines if line.startswith("SURVIVED")]
    print(f"{len(lines) - len(survivors)} of {len(lines)} caught", *survivors, sep="\n")
    return 1 if survivors else 0


def _judge(queue: SimpleQueue[Mutant], show: Callable[[str], None]) -> None:
    """Judge mutants until none is left."""
    with Sandbox(ROOT) as sandbox:
        print(f"unbroken: passes, {sandbox.warm_up():.0f} s", flush=True)
        while True:
            try:
                mutant = queue.get_nowait()
            except Empty:
                return
            verdict = sandbox.run(mutant)
            show(f"{verdict.shown}\t{mutant.name}\t{verdict.seconds:.0f} s\t{verdict.by}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Break the engine in small ways.")
    parser.add_argument("words", nargs="*", help="run only the mutants whose name contains one of these; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are judged at a time; default 1")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="skip what FILE names, and add verdicts to it")
    options = parser.parse_args()
    sys.exit(main(options.words, options.jobs, options.resume))
