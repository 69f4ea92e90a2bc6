"""Every pair of features and settings gives the oracle's results, with random further ones beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from operators.engine import numbered
from tests import oracle
from tests.combinations.runs import results
from tests.combinations.traits import FEATURES, SETTINGS, case_with, further, pairs
from tests.feeding import canonical
from tests.operators.spill.small_parts import small_parts
from tests.operators.state.small_rings import small_rings
from tests.profiles import examples

PAIRS = pairs()


def named(pair: frozenset[str]) -> str:
    """A pair in the order of the traits."""
    return " + ".join(trait for trait in (*FEATURES, *SETTINGS) if trait in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=named)
@examples(5, quick=1)
@given(st.data())
def test_a_pair_gives_the_oracles_results(pair: frozenset[str], data: st.DataObject) -> None:
    traits = data.draw(further(pair))
    note(named(traits))
    case = data.draw(case_with(traits))
    with small_parts(), small_rings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "SWEEP_TUPLES", 1)
        got = results(traits, case, data)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


def test_most_pairs_can_be_combined() -> None:
    """A change of the table of refusals changes these numbers, which the manual mentions."""
    assert len(PAIRS) > 100
