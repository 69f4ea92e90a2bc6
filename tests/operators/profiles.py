"""How many examples property tests run: HYPOTHESIS_PROFILE=quick (default), deep, thorough, or mutation."""

from __future__ import annotations

import os

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
settings.register_profile("quick", max_examples=30, **_ALWAYS)
settings.register_profile("deep", max_examples=100, **_ALWAYS)
settings.register_profile("thorough", max_examples=2000, **_ALWAYS)
# A mutant must be caught by the same examples in every run; its failures are not worth shrinking or keeping.
settings.register_profile(
    "mutation", max_examples=60, derandomize=True, database=None, phases=[Phase.generate], **_ALWAYS
)

PROPERTY = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
"""The settings of every property test of the engine."""
