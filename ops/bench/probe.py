"""Measurements in a process of their own: `python -m ops.bench.probe memory|first ...`; one line of JSON.

- `memory SHARE SECONDS SEED`: the engine's memory over a run of the three-way join at a share of its rate.
- `first`: imports the engine and takes the first results from it; the caller times the whole process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from ops.bench.engine_runs import run_engine, run_for_memory
from ops.bench.workloads import three_way


def main(arguments: list[str]) -> None:
    """Run one probe."""
    match arguments:
        case ["memory", share, seconds, seed]:
            workload = three_way().scaled(float(share))
            print(json.dumps(asdict(run_for_memory(workload, int(seconds), int(seed)))))
        case ["first"]:
            outcome = run_engine(three_way().scaled(0.01), 1, 1)
            print(json.dumps({"results": outcome.results}))
        case _:
            sys.exit(f"unknown probe {arguments}; see {__file__}")


if __name__ == "__main__":
    main(sys.argv[1:])
