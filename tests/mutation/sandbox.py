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
from tests.mutation.debts import DEBTS_TESTS
from tests.mutation.feedback import FEEDBACK, tests_of
from tests.mutation.groups import GROUPS, GROUPS_TESTS
from tests.mutation.juggler import JUGGLER_TESTS
from tests.mutation.memory import MEMORY_TESTS
from tests.mutation.mutants import Mutant
from tests.mutation.placed import PLACED
from tests.mutation.spill import SPILL_TESTS
from tests.mutation.spill_log import SPILL_LOG_TESTS
from tests.mutation.spilling import SPILLING_TESTS

LONGEST = 5.0
"""A mutant that takes so many times as long as the unbroken engine loops for ever; that too is caught."""

WARM_UP_S = 3600.0
"""The unbroken tests may take so long: all kernels are compiled then, perhaps on a busy machine."""

FIRST = {
    "operators/kernels/hashing.py": ["test_kernels_hash.py"],
    "operators/kernels/index.py": ["test_state.py"],
    "operators/kernels/pages.py": ["test_kernels_pages.py"],
    "operators/kernels/ring.py": ["test_kernels_ring.py"],
    "operators/kernels/order.py": ["test_kernels_ring.py"],
    "operators/kernels/scan.py": ["test_state.py"],
    "operators/kernels/combine.py": ["test_state.py", "test_tuples.py"],
    "operators/state.py": ["test_state.py", "test_state_groups.py"],
    "operators/store.py": ["test_store.py", "test_store_release.py"],
    "operators/sources.py": ["test_engine.py", "test_durability.py"],
    "operators/join.py": ["test_engine.py"],
    "operators/match.py": ["test_engine.py"],
    "operators/kernels/route.py": ["test_eddy.py"],
    "operators/eddy.py": ["test_eddy.py", "test_engine_properties.py"],
    "operators/stairs.py": ["test_stairs.py"],
    "operators/mjoin.py": ["test_engine_properties.py"],
    "operators/migration/migration.py": ["test_migration.py"],
    "operators/migration/moving_state.py": ["test_migration.py"],
    "operators/migration/parallel_track.py": ["test_migration.py"],
    "operators/migration/hybmig.py": ["test_hybmig.py", "test_migration.py"],
    "operators/migration/jisc.py": ["test_jisc.py", "test_demand.py", "test_migration.py"],
    "operators/migration/completion.py": ["test_jisc.py", "test_demand.py", "test_migration.py"],
    "operators/migration/demand.py": ["test_demand.py"],
    "operators/migration/counting.py": ["test_counting.py", "test_jisc.py"],
    "operators/kernels/marks.py": ["test_counting.py"],
    "operators/migration/black_box.py": ["test_migration.py"],
    "operators/migration/schedule.py": ["test_migration.py"],
    "operators/migration/reordering.py": ["test_reordering.py"],
    "operators/intake.py": ["test_intake.py"],
    "operators/watermark.py": ["test_intake.py"],
    "operators/predicates.py": ["test_predicates.py"],
    "operators/equalities.py": ["test_equalities.py"],
    "operators/evaluate.py": ["test_evaluate.py"],
    "operators/keys.py": ["test_kernels_hash.py"],
    "operators/engine.py": ["test_engine.py", "test_durability.py"],
    "operators/entrance.py": ["test_engine.py", "test_tables.py", "test_durability.py"],
    "operators/durability.py": ["test_durability.py", "spill/test_spill_deaths.py"],
    "operators/spilled.py": ["spill/test_spill_deaths.py"],
    "operators/slices.py": ["test_engine.py"],
    "operators/checkpoint.py": ["test_durability.py"],
    "operators/tree.py": ["test_engine.py"],
    "operators/tuples.py": ["test_tuples.py"],
    "operators/plan.py": ["test_plan.py"],
    "operators/choose.py": ["test_choose.py"],
    "operators/kernels/cover.py": ["test_difference.py", "test_difference_properties.py"],
    "operators/covers.py": ["test_difference.py", "test_difference_properties.py"],
    "operators/difference.py": ["test_difference.py", "test_difference_properties.py"],
    "operators/pipeline.py": ["test_difference.py", "test_difference_properties.py"],
    **{f"operators/{file}": ["test_aggregate.py", "test_aggregate_properties.py"] for file in AGGREGATES},
    **{f"operators/{file}": tests_of(file) for file in FEEDBACK},
    **{f"operators/{file}": GROUPS_TESTS for file in GROUPS},
    **{f"operators/{file}": tests for file, tests in JUGGLER_TESTS.items()},
    **{f"operators/{file}": tests for file, tests in MEMORY_TESTS.items()},
    **{f"operators/{file}": ["test_placed_feedback.py", "test_placed_history.py", "test_placed.py"] for file in PLACED},
    "operators/placed/worth.py": ["test_placed_worth.py"],
    **{f"operators/{file}": tests for file, tests in SPILL_TESTS.items()},
    **{f"operators/{file}": tests for file, tests in SPILLING_TESTS.items()},
    **{f"operators/{file}": tests for file, tests in SPILL_LOG_TESTS.items()},
    **{f"operators/{file}": tests for file, tests in DEBTS_TESTS.items()},
    "operators/tables.py": ["test_tables.py"],
    "operators/migration/strategies.py": ["test_tables.py"],
    "operators/migration/sizes.py": ["test_tables.py", "test_cost.py"],
    "operators/migration/cost.py": ["test_tables.py", "test_cost.py"],
    "operators/migration/difference.py": ["test_difference.py", "test_difference_properties.py"],
}
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
        for file in ("cases.py", "subtractions.py", "feeding.py", "group_cases.py", "oracle.py", "chains.py"):
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
        verdict = self._tests([], self._warm)
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
            return self._tests(FIRST[mutant.file], cache, only_first=only_first)
        finally:
            file.write_text(before)
            # Numba's cache goes by the time of the source.
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            shutil.rmtree(cache)

    def _tests(self, first: list[str], cache: Path, *, only_first: bool = False) -> Verdict:
        folder = self.root / "tests/operators"
        found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("test_*.py"))]
        rest = [name for name in found if name not in first]
        # Property tests last: they take longest.
        rest.sort(key=lambda name: name.endswith("_properties.py"))
        chosen = first if only_first else first + rest
        # Bytecode caches go by whole seconds, too coarse for a file that changes twice in one.
        env = os.environ | {
            "NUMBA_CACHE_DIR": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "mutation",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        # A busy machine may take long over one test; the limit here is that of the whole.
        command += ["-o", "faulthandler_timeout=0"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *(str(folder / name) for name in chosen)],
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
