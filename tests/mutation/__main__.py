"""Breaks the engine in small ways and checks that its tests notice.

    python -m tests.mutation               # every mutant; exit code 1 if one survives
    python -m tests.mutation join.py scan  # those whose name contains one of the words

operators/, schemas/ and the engine's tests are copied to a temporary folder. The unbroken copy must pass;
that run also fills the kernel cache from which each mutant starts, so that only the touched file is
compiled again. About five minutes on one idle core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutation.mutants import MUTANTS
from tests.mutation.sandbox import Sandbox


def main(words: list[str]) -> int:
    """Run and print a table; the process's exit code."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    survived = []
    with Sandbox(Path(__file__).parents[2]) as sandbox:
        print(f"unbroken: passes, {sandbox.warm_up():.0f} s", flush=True)
        for mutant in chosen:
            verdict = sandbox.run(mutant)
            print(f"{verdict.shown:9} {verdict.seconds:4.0f} s  {mutant.name}  {verdict.by}", flush=True)
            if not verdict.caught:
                survived.append(mutant)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught")
    for mutant in survived:
        print(f"survived: {mutant.name}")
    return 1 if survived else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Break the engine in small ways.")
    parser.add_argument("words", nargs="*", help="run only the mutants whose name contains one of these; default: all")
    sys.exit(main(parser.parse_args().words))
