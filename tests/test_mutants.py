"""Mutants outside of the engine follow the source; `tests/operators/test_mutation.py` checks those of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.mutation import history
from tests.mutation.backlog import OUTSIDE
from tests.mutation.compiled import COMPILED
from tests.mutation.formats import FORMATS
from tests.mutation.worker_groups import WORKER_GROUPS
from tests.mutation.worker_spill import WORKER_SPILL

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("changes", [OUTSIDE, COMPILED, FORMATS, WORKER_GROUPS, WORKER_SPILL])
def test_texts_occur_once(changes: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    found = {file: (ROOT / file).read_text() for file in changes}
    assert [(file, old) for file in changes for old, _ in changes[file] if found[file].count(old) != 1] == []


def test_texts_of_the_historys_mutants_occur_once() -> None:
    for name, (_, changes) in history.MUTANTS.items():
        text = (ROOT / "ops" / "spark" / f"{name}.py").read_text()
        assert [old for old, _ in changes if text.count(old) != 1] == [], name
