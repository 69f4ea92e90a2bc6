"""A copy of the engine and its tests in which one file at a time is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.mutation.aggregates import AGGREGATES
from tests.mutation.autopilot import AUTOPILOT_TESTS
from tests.mutation.backlog import BACKLOG_TESTS
from tests.mutation.distributed import PLACED
from tests.mutation.feedback import FEEDBACK, tests_of
from tests.mutation.groups import GROUPS, GROUPS_TESTS
from tests.mutation.juggler import JUGGLER_TESTS
from tests.mutation.lookups import LOOKUPS_TESTS
from tests.mutation.memory import MEMORY_TESTS
from tests.mutation.mutants import Mutant
from tests.mutation.repeats import REPEATS_TESTS
from tests.mutation.spill import SPILL_TESTS
from tests.mutation.spill_log import SPILL_LOG_TESTS
from tests.mutation.spilling import SPILLING_TESTS

LONGEST = 5.0
"""A mutant that takes so many times as long as the unbroken engine loops for ever; that too is caught."""

WARM_UP_S = 3600.0
"""The unbroken tests may take so long: all kernels are compiled then, perhaps on a busy machine."""

FIRST = {
    "operators/kernels/hashing.py": ["kernels/test_kernels_hash.py"],
    "operators/kernels/index.py": ["state/test_state.py"],
    "operators/kernels/pages.py": ["kernels/test_kernels_pages.py"],
    "operators/kernels/ring.py": ["kernels/test_kernels_ring.py"],
    "operators/kernels/order.py": ["kernels/test_kernels_ring.py"],
    "operators/kernels/scan.py": ["state/test_state.py"],
    "operators/kernels/combine.py": ["state/test_state.py", "data/test_tuples.py"],
    "operators/state/side_state.py": ["state/test_state.py", "state/test_state_groups.py"],
    "operators/state/store.py": ["state/test_store.py", "state/test_store_release.py"],
    "operators/state/sources.py": ["engine/test_engine.py", "state/test_durability.py"],
    "operators/join/binary_join.py": ["engine/test_engine.py"],
    "operators/state/match.py": ["engine/test_engine.py"],
    "operators/kernels/route.py": ["join/test_eddy.py"],
    "operators/join/eddy.py": ["join/test_eddy.py", "engine/test_engine_properties.py"],
    "operators/join/stairs.py": ["join/test_stairs.py"],
    "operators/join/mjoin.py": ["engine/test_engine_properties.py"],
    "operators/migration/migration.py": ["migration/test_migration.py"],
    "operators/migration/moving_state.py": ["migration/test_migration.py"],
    "operators/migration/parallel_track.py": ["migration/test_migration.py"],
    "operators/migration/hybmig.py": ["migration/test_hybmig.py", "migration/test_migration.py"],
    "operators/migration/jisc/strategy.py": [
        "migration/test_jisc.py",
        "migration/test_demand.py",
        "migration/test_migration.py",
    ],
    "operators/migration/jisc/completion.py": [
        "migration/test_jisc.py",
        "migration/test_demand.py",
        "migration/test_migration.py",
    ],
    "operators/migration/jisc/demand.py": ["migration/test_demand.py"],
    "operators/migration/jisc/counting.py": ["migration/test_counting.py", "migration/test_jisc.py"],
    "operators/kernels/marks.py": ["migration/test_counting.py"],
    "operators/migration/black_box.py": ["migration/test_migration.py"],
    "operators/migration/schedule.py": ["migration/test_migration.py"],
    "operators/migration/reordering.py": ["migration/test_reordering.py"],
    "operators/engine/intake.py": ["engine/test_intake.py", "engine/test_repeats.py"],
    "operators/data/watermark.py": ["engine/test_intake.py"],
    "operators/plan/predicates.py": ["plan/test_predicates.py"],
    "operators/plan/equalities.py": ["plan/test_equalities.py"],
    "operators/data/evaluate.py": ["data/test_evaluate.py"],
    "operators/data/keys.py": ["kernels/test_kernels_hash.py"],
    "operators/engine/engine.py": [
        "engine/test_engine.py",
        "state/test_durability.py",
        "spill/test_spill_deaths.py",
    ],
    "operators/engine/selection.py": ["engine/test_engine.py", "join/test_tables.py", "state/test_durability.py"],
    "operators/state/durability.py": ["state/test_durability.py", "spill/test_spill_deaths.py"],
    "operators/data/slices.py": ["engine/test_engine.py"],
    "operators/state/checkpoint.py": ["state/test_durability.py"],
    "operators/join/tree.py": ["engine/test_engine.py"],
    "operators/data/tuples.py": ["data/test_tuples.py"],
    "operators/plan/plan.py": ["plan/test_plan.py"],
    "operators/plan/choose.py": ["plan/test_choose.py"],
    "operators/kernels/cover.py": ["difference/test_difference.py", "difference/test_difference_properties.py"],
    "operators/difference/longest_match.py": [
        "difference/test_difference.py",
        "difference/test_difference_properties.py",
    ],
    "operators/difference/difference.py": ["difference/test_difference.py", "difference/test_difference_properties.py"],
    "operators/difference/pipeline.py": ["difference/test_difference.py", "difference/test_difference_properties.py"],
    "operators/join/tables.py": ["join/test_tables.py"],
    "operators/migration/strategies.py": ["join/test_tables.py"],
    "operators/migration/sizes.py": ["join/test_tables.py", "migration/test_cost.py"],
    "operators/migration/cost.py": ["join/test_tables.py", "migration/test_cost.py"],
    "operators/migration/difference.py": [
        "difference/test_difference.py",
        "difference/test_difference_properties.py",
    ],
}
_AGGREGATES = ["aggregate/test_aggregate.py", "aggregate/test_aggregate_properties.py"]
_DISTRIBUTED = [
    "distributed/test_distributed_feedback.py",
    "distributed/test_on_demand.py",
    "distributed/test_replay_history.py",
    "distributed/test_distributed.py",
    "distributed/test_distributed_unnest.py",
]
for _tests_of_files in (
    dict.fromkeys(AGGREGATES, _AGGREGATES),
    {file: tests_of(file) for file in FEEDBACK},
    dict.fromkeys(GROUPS, GROUPS_TESTS),
    JUGGLER_TESTS,
    AUTOPILOT_TESTS,
    MEMORY_TESTS,
    dict.fromkeys(PLACED, _DISTRIBUTED)
    | {"distributed/feedback/payoff.py": ["distributed/test_payoff.py"]}
    | {file: ["state/test_numbered.py", *_DISTRIBUTED] for file in ("engine/numbered.py", "state/numbered.py")},
    LOOKUPS_TESTS,
    REPEATS_TESTS,
    SPILL_TESTS,
    SPILLING_TESTS,
    SPILL_LOG_TESTS,
    BACKLOG_TESTS,
):
    FIRST |= {f"operators/{file}": tests for file, tests in _tests_of_files.items()}
"""The tests most likely to notice, run first; the others follow."""

_SURE = '''"""The tests here must run the copy beside them, whatever is installed."""
from pathlib import Path
import operators
assert Path(operators.__file__).parent.parent == Path(__file__).parent, operators.__file__
'''


@dataclass(frozen=True)
class Verdict:
    """How the tests took a mutant; `by` is the test that failed first."""

    caught: bool
    seconds: float
    by: str

    @property
    def shown(self) -> str:
        """One word."""
        return "caught" if self.caught else "SURVIVED"


def mutated(root: Path, mutant: Mutant) -> str:
    """The text of the mutant's file with the change made.

    Raises:
        ValueError: the text to change does not occur exactly once: the source has moved on.
    """
    text = (root / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: the text occurs {count} times, not once")
    return text.replace(mutant.old, mutant.new)


class Sandbox:
    """A temporary folder with the copy; use as a context."""

    def __init__(self, root: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="weir-mutants-")
        self.root = Path(self._folder.name) / "copy"
        self._warm = Path(self._folder.name) / "warm"
        skip = shutil.ignore_patterns("__pycache__")
        for package in ("operators", "schemas", "tests/operators"):
            shutil.copytree(root / package, self.root / package, ignore=skip)
        shutil.copy2(root / "pyproject.toml", self.root / "pyproject.toml")
        shared = ("cases", "subtractions", "feeding", "group_cases", "oracle", "chains", "profiles", "hasty")
        for file in (f"{name}.py" for name in shared):
            shutil.copy2(root / "tests" / file, self.root / "tests" / file)
        # The copy has no services, and its tests no broker.
        (self.root / "conftest.py").write_text(_SURE)
        (self.root / "tests/operators/test_mutation.py").unlink(missing_ok=True)
        self._warm.mkdir()
        self._seconds = WARM_UP_S / LONGEST

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def warm_up(self) -> float:
        """Run the unbroken tests, filling the kernel cache; the seconds it took.

        Raises:
            RuntimeError: they fail, so no mutant could be judged.
        """
        verdict = self._tests(self._others([]), self._warm)
        if verdict.caught:
            raise RuntimeError(f"the unbroken tests fail: {verdict.by}")
        self._seconds = verdict.seconds
        return verdict.seconds

    def run(self, mutant: Mutant, *, only_first: bool = False) -> Verdict:
        """Judge one mutant, by the likely tests alone when `only_first`."""
        file = self.root / mutant.file
        before, stamp = file.read_text(), file.stat()
        cache = Path(self._folder.name) / "cache"
        shutil.copytree(self._warm, cache)
        try:
            file.write_text(mutated(self.root, mutant))
            likely = FIRST[mutant.file]
            verdict = self._tests(likely, cache)
            # Most mutants end here. Collecting all tests at once takes longer than the likely ones.
            return verdict if verdict.caught or only_first else self._tests(self._others(likely), cache)
        finally:
            file.write_text(before)
            # Numba's cache goes by the time of the source.
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            shutil.rmtree(cache)

    def _others(self, likely: list[str]) -> list[str]:
        """All other test files; property tests come last, since they take longest."""
        folder = self.root / "tests/operators"
        found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("test_*.py"))]
        return sorted(set(found) - set(likely), key=lambda name: (name.endswith("_properties.py"), name))

    def _tests(self, files: list[str], cache: Path) -> Verdict:
        """Run the tests of some files, until the first that fails."""
        env = os.environ | {"NUMBA_CACHE_DIR": str(cache), "HYPOTHESIS_PROFILE": "mutation"}
        if cache != self._warm:
            # The unbroken run has left the bytecode of all files. It goes by whole seconds, which is too coarse for a
            # file that changes twice in one, so a mutant leaves none.
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        # A busy machine may take long over one test; the limit here is that of the whole.
        command += ["-o", "faulthandler_timeout=0"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *(str(self.root / "tests/operators" / name) for name in files)],
                cwd=self.root,
                env=env,
                capture_output=True,
                text=True,
                timeout=LONGEST * self._seconds,
            )
        except subprocess.TimeoutExpired:
            return Verdict(True, time.monotonic() - began, "runs for ever")
        seconds = time.monotonic() - began
        if done.returncode == 0:
            return Verdict(False, seconds, "")
        failed = re.search(r"^(?:FAILED|ERROR) (?:tests/operators/)?(.+?)(?: - |$)", done.stdout, re.MULTILINE)
        if failed is None and done.returncode >= 0:
            raise RuntimeError(f"no test failed, but pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return Verdict(True, seconds, failed[1] if failed else f"signal {-done.returncode}")
