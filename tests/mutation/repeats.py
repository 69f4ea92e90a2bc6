"""Small errors in what finds repeats, per file: see `tests.mutation.mutants`."""

from __future__ import annotations

REPEATS: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/repeats.py": (
        ("ts[i] <= first_ts[entry] + within", "ts[i] < first_ts[entry] + within"),
        ("elif ts[i] > first_ts[entry]:", "else:"),
        ("elif known[i] == UNKNOWN and ts", "elif ts"),
        ("if first_ts[e] < before:", "if first_ts[e] <= before:"),
        ("                    if first_data[first_starts[e] + b] != data[begin + b]:", "                    if False:"),
        ("            out[i] = True\n        if known", "            out[i] = False\n        if known"),
        ("data[at[i] + b] = np.uint8((length", "data[at[i] + b] = np.uint8((0"),
        ("at[i] += 8 + length", "at[i] += length"),
        ("words[i] >> np.uint64(8 * b)", "words[i] >> np.uint64(b)"),
    ),
    "engine/repeats.py": (
        ("known[decided & np.isin(records.columns[POSITION].values, self._resumed)] = REPEAT", "pass"),
        ("            known[decided] = FIRST\n", "            pass\n"),
        ("(column.values.astype(np.float64) + 0.0)", "column.values.astype(np.float64)"),
        ("self._firsts.forget(cut - self._within_ms)", "self._firsts.forget(cut)"),
        ("        fresh &= repeats\n", "        fresh = repeats\n"),
        ("known[~column.valid] = NO_KEY", "pass"),
        ("batch.columns[name].values == 1", "batch.columns[name].values >= 1"),
        ("repeats = repeats[np.cumsum(heads) - 1]", "repeats = heads & repeats[np.cumsum(heads) - 1]"),
        ("            found &= batch", "            found = batch"),
        ("self._forget_from = max(2 * self._count, FIRST_CAPACITY)", "self._forget_from = 1 << 62"),
        ("found, self._found = self._found, []", "found = self._found"),
    ),
}

REPEATS_TESTS = {file: ["engine/test_repeats.py"] for file in REPEATS}
