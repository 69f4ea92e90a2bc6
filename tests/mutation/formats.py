"""Small errors in how records are read and results written: arrays, changes of databases, headers; and in lookups and
repeats that tasks and queries share. See `tests.mutation.mutants`.

python -m tests.mutation.formats    # exit code 1 if one survives
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

FORMATS: dict[str, tuple[tuple[str, str], ...]] = {
    "schemas/shared_lookups.py": (
        ("over_columns(expr, lambda column: replace(column, alias=ANY_SOURCE))", "expr"),
        ("    while any(", "    while False and any("),
        ("lookups=tuple({(one.of, one.alias): one for one in lookups}.values())", "lookups=tuple(lookups)"),
        ("if len(plain) == len(key) else", "if plain else"),
        ("key = tuple(over_columns(expr, over) for expr in lookup.key)", "key = lookup.key"),
        ("one if one.argument is None else replace", "one if True else replace"),
        ("on=tuple(map(expr, part.on))", "on=part.on"),
        (' and re.fullmatch(r"\\w+", expr.name)]', "]"),
    ),
    "operators/groups/engine.py": (
        ("        if stream in self._lookups:\n            return 0\n", ""),
        (
            "self._lookups.change([query for runner in self.runners for",
            "self._lookups.change([query for runner in self.runners[:1] for",
        ),
        ("lookup_bytes=self._lookups.size_bytes()", "lookup_bytes=0"),
    ),
    "operators/engine/lookups.py": (
        ("        if self._queries == tuple(queries):\n", "        if self._queries:\n"),
        ("                names |= {name: None", "                names = {name: None"),
    ),
    "schemas/codecs/kernels/avro_records.py": (
        ("items_found[found, 2] = p\n", "items_found[found, 2] = p + 1\n"),
        ("                    while items_found[last, 0] != a:\n                        last -= 1\n", ""),
        ("                found += 1\n", "                found = min(found + 1, room)\n"),
        ("            found = first\n", "            pass\n"),
        ("                if some:\n                    break\n", ""),
    ),
    "schemas/codecs/kernels/protobuf_records.py": (
        ("    return found + 1", "    return min(found + 1, len(items_found))"),
        ("            found = first\n", "            pass\n"),
        (
            "                    if wire == LENGTH:\n                        begin = p\n",
            "                    begin = p\n",
        ),
        ("                if p != stop:\n                    break\n", ""),
        ("p += 8 if own == FIXED_64 else 4", "p += 4"),
    ),
    "schemas/codecs/schema_decoder.py": (
        ("                    own |= (keys == key) & (", "                    own |= (keys >= 0) & ("),
        ("found.decoded.rows].astype(np.int64)", "np.sort(found.decoded.rows)][:0].astype(np.int64)"),
        ('elements[np.argsort(elements[:, 1], kind="stable")]', "elements"),
    ),
    "schemas/nested/elements.py": (
        ('side="right"', 'side="left"'),
        ("    fine[list(why)] = False\n", ""),
        ("        picks = [pick[owners] for pick in picks]\n", ""),
        ("Column(Type.BIGINT, ordinals + 1)", "Column(Type.BIGINT, ordinals)"),
        ("found.rows[chosen], dead", "found.rows[: len(chosen)], dead"),
    ),
    "schemas/codecs/results.py": (
        ("        if self.headers:\n", "        if self.headers and phase is None:\n"),
        ("TextKeys().encode([batch.columns[column]]", "TextKeys().encode([batch.columns[self.headers[0][1]]]"),
        ("phase, self.refused).texts()", "phase).texts()"),
        ("replace(self.encode(batch.take(fits), phase)", "replace(self.values.encode(batch.take(fits), phase)"),
        ("missing = None if column.valid is None else ~column.valid", "missing = None"),
    ),
    "services/formats/changelogs.py": (
        ('(*outside, "after", *field.place)', '(*outside, "before", *field.place)'),
        ('("c", "u", "r", _ENDS_ROW_OF_DEBEZIUM)', '("c", "u", _ENDS_ROW_OF_DEBEZIUM)'),
        ("raw, ended=_ENDS_ROW_OF_DEBEZIUM)", "raw)"),
        ('order = np.argsort(places, kind="stable").astype(np.int64)', "order = np.arange(len(places))"),
        ("[replace(d, row=int(own[d.row]))", "[d"),
        ("& (wrapped_key == key)", "& (not key)"),
        ("keyed &= columns", "keyed |= columns"),
        ("if field.type is Type.STRING and not field.key:", "if field.key:"),
    ),
    "services/delivery/repeats_log.py": (("            self._inherited = None\n", ""),),
}
"""Per file."""

_ARRAYS = ["tests/schemas/avro/test_avro_arrays.py", "tests/schemas/protobuf/test_protobuf_arrays.py"]
_GROUP_LOOKUPS = ["tests/operators/groups/test_query_groups.py", "-k", "all_rows_of_a_table"]
TESTS = {
    "schemas/shared_lookups.py": ["tests/schemas/test_shared_lookups.py"],
    "operators/groups/engine.py": _GROUP_LOOKUPS,
    "operators/engine/lookups.py": _GROUP_LOOKUPS,
    "schemas/codecs/kernels/avro_records.py": _ARRAYS[:1],
    "schemas/codecs/kernels/protobuf_records.py": _ARRAYS[1:],
    "schemas/codecs/schema_decoder.py": _ARRAYS,
    "schemas/nested/elements.py": ["tests/schemas/test_unnest.py"],
    "schemas/codecs/results.py": [
        *("tests/schemas/codecs/test_results.py", "tests/schemas/test_given_schemas.py"),
        *("-k", "headers or late_results or one_column"),
    ],
    "services/formats/changelogs.py": ["tests/services/formats/test_changelogs.py"],
    "services/delivery/repeats_log.py": ["tests/services/delivery/test_repeats_log.py"],
}

if __name__ == "__main__":
    sys.exit(1 if survivors(FORMATS, TESTS, sys.argv[1:]) else 0)
