"""How many examples property tests run: HYPOTHESIS_PROFILE=quick (default), deep, thorough, or mutation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

_ALWAYS = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
}
settings.register_profile("quick", max_examples=12, **_ALWAYS)
settings.register_profile("deep", max_examples=100, **_ALWAYS)
settings.register_profile("thorough", max_examples=2000, **_ALWAYS)
# A mutant must be caught by the same examples in every run; its failures are not worth shrinking or keeping.
settings.register_profile(
    "mutation", max_examples=60, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], **_ALWAYS
)

_NAME = os.environ.get("HYPOTHESIS_PROFILE", "quick")
_SHARES = {"quick": 0.12, "deep": 1.0, "thorough": 20.0, "mutation": 1.0}

PROPERTY = settings.get_profile(_NAME)
"""The settings of every property test of the engine."""


def examples(count: int, quick: int | None = None) -> settings:
    """The settings of a property test that runs `count` examples in the deep profile.

    Args:
        quick: how many it runs in the quick profile; default: an eighth, about.
    """
    if quick is not None and _NAME == "quick":
        return settings(PROPERTY, max_examples=quick)
    return settings(PROPERTY, max_examples=round(count * _SHARES[_NAME]))


def mostly_deep(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Parameters for a test, all but the first `quick` of them for `make test-deep` only."""
    return [value if n < quick else pytest.param(value, marks=pytest.mark.deep) for n, value in enumerate(values)]
