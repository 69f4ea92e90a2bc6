"""Errors in lookups in tables whose rows change, by file; see `tests.mutation.mutants`."""

from __future__ import annotations

LOOKUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/as_of.py": (
        ("known_ts[version] <= ts[i]", "known_ts[version] < ts[i]"),
        ("if lo > 0 and known[lo - 1] == keys[i]", "if lo > 0"),
        ("out[i] = order[lo - 1]", "out[i] = lo - 1"),
    ),
    "engine/lookups.py": (
        ("self._newest[known] = rows  #", "pass  #"),
        ("found = np.where(newer == NONE, found, rows[newer])", "found = rows[newer]"),
        ("self._keys.forget_unused(keys)", "pass"),
        ("self._keys.uses[keys] = self._newest[keys] != NONE", "pass"),
    ),
}

LOOKUPS_TESTS = {file: ["engine/test_lookups.py"] for file in LOOKUPS}
