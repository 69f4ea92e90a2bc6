"""Fixtures of all tests, and the rules for which tests are deep, random, or run without coverage.

`make test` runs what is neither slow nor deep. `tests/faults` and the tests of benchmarks are deep, as is what carries
the mark `deep`. A random test (`@given`) runs both in `make test` and, with more examples, in `make test-deep`.

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
from hypothesis import is_hypothesis_test, settings

from tests.broker_fixture import broker, restartable_broker, topics
from tests.registry_fixture import registry, restartable_registry
from tests.time_budget import pytest_configure, pytest_runtest_setup, pytest_terminal_summary

__all__ = [
    "broker",
    "pytest_configure",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "registry",
    "restartable_broker",
    "restartable_registry",
    "topics",
]

TESTS = Path(__file__).parent
FAULTS = TESTS / "faults"
WAITING = {TESTS, TESTS / "ops", TESTS / "ops" / "spark", TESTS / "torture"}
"""Folders whose tests start processes, with or without Kafka."""
PROCESSES = "COVERAGE_PROCESS_CONFIG"
"""Tells child processes of a measured process that they are measured too."""

# On a busy machine an example may take any time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

RELEASE = os.environ.get("WEIR_RELEASE")
"""The checkout of another release whose command line tests are to start, or None."""
if RELEASE is not None:
    os.environ |= {"PYTHONPATH": RELEASE, "PYTHONSAFEPATH": "1"}
    sys.executable = str(Path(RELEASE, ".venv", "bin", "python"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark the tests that are deep, random, or not measured; mix the files of those that are selected (`_mixed`)."""
    for item in items:
        deep = item.path.name.startswith("test_bench_") or item.path.parent == FAULTS
        random = is_hypothesis_test(getattr(item, "obj", None))
        if deep:
            item.add_marker("deep")
        if random:
            item.add_marker("random")
        if deep or random or item.get_closest_marker("deep"):
            item.add_marker("unmeasured")
    yield
    items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Mix the files whose tests wait for other processes evenly among those that compute.

    So at any time some test uses the processors while another one waits, to the end of the run.
    """
    waiting = {item.path for item in items if item.get_closest_marker("kafka") or item.path.parent in WAITING}
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds = [path for path in files if path in waiting], [path for path in files if path not in waiting]
    place = {path: (n + 0.5) / len(kind) for kind in kinds for n, path in enumerate(kind)}
    return [item for path in sorted(files, key=lambda path: place[path]) for item in files[path]]


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
