"""Fixtures of all tests, and where coverage is not measured.

Coverage on Python 3.11 looks at every line that runs, of Weir or not: what is measured takes 1.7 times as long. So
nothing is measured, in the test and in the processes that it starts, where much repeats what quicker tests cover:

- random tests (`@given`), whose hundreds of examples take the paths that examples worked out by hand take;
- `tests/faults`, whose workers are those of `tests/services`;
- the tests of benchmarks;
- tests that are marked `unmeasured`, as any other is to be that computes for more than a few seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from tests.broker_fixture import broker, restartable_broker, topics

__all__ = ["broker", "restartable_broker", "topics"]

FAULTS = Path(__file__).parent / "faults"
PROCESSES = "COVERAGE_PROCESS_CONFIG"
"""Tells the processes of a measured one that they are measured too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not measured."""
    for item in items:
        benchmark = item.path.name.startswith("test_bench_")
        if benchmark or item.path.parent == FAULTS or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("unmeasured")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run what is not measured, its fixtures too, without tracing.

    pytest-cov's own `no_cover` is no use: where it stops one measurement in a process of xdist, another goes on that
    this process began at its start, being one of a measured process.
    """
    if item.get_closest_marker("unmeasured") is None:
        return (yield)
    trace, processes = sys.gettrace(), os.environ.pop(PROCESSES, None)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
        if processes is not None:
            os.environ[PROCESSES] = processes
