"""The tests are tested: small errors in the engine must make one of them fail (see `tests/mutation`)."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import MUTANTS
from tests.mutation.sandbox import FIRST, Sandbox, mutated

ROOT = Path(__file__).parents[2]


def test_every_mutant_still_applies() -> None:
    """The text that a mutant changes occurs exactly once: the catalogue follows the source."""
    for mutant in MUTANTS:
        assert mutated(ROOT, mutant) != (ROOT / mutant.file).read_text()
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_kernel_has_a_mutant() -> None:
    """And so has every file of the engine that the catalogue says it covers."""
    kernels = {f"operators/kernels/{path.name}" for path in (ROOT / "operators/kernels").glob("[!_]*.py")}
    assert kernels <= {mutant.file for mutant in MUTANTS}
    assert {mutant.file for mutant in MUTANTS} <= set(FIRST)


def test_a_sample_is_caught() -> None:
    """Two that need no kernel compiled again; `make mutation` runs them all."""
    chosen = [m for m in MUTANTS if m.old in ("low = min(marks)", "if len(inputs) != 2:")]
    assert len(chosen) == 2
    with Sandbox(ROOT) as sandbox:
        for mutant in chosen:
            verdict = sandbox.run(mutant, only_first=True)
            assert verdict.caught, mutant.name
