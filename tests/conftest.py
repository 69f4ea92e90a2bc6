"""Fixtures of all tests, and the rule for which tests coverage is not measured.

Coverage on Python 3.11 traces every line that runs, of Weir or not: a measured test takes 1.7 times as long. So
coverage is not measured, in the test and in the processes that it starts, where a test mostly repeats what quicker
tests cover:

- random tests (`@given`), whose hundreds of examples take the same paths as examples worked out by hand;
- `tests/faults`, whose workers are those of `tests/services`;
- the tests of benchmarks;
- tests that are marked `unmeasured`, as every other test should be that computes for more than a few seconds.
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
"""Tells child processes of a measured process that they are measured too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that are not measured."""
    for item in items:
        benchmark = item.path.name.startswith("test_bench_")
        if benchmark or item.path.parent == FAULTS or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("unmeasured")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run unmeasured tests, and their fixtures, without tracing.

    pytest-cov's own `no_cover` does not help: it stops one measurement in a process of xdist, but another one continues
    that the process began at its start, as a child of a measured process.
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
