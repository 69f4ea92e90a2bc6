"""Small errors in backlogs and their cleanup: see `tests.mutation.mutants`.

    python -m tests.mutation.backlog             # those outside of the engine too; exit code 1 if one survives
    python -m tests.mutation.backlog delivery    # those whose file contains one of the words

Left out because no test could see them: blocks of an earlier cleanup that are not deleted, since they are written over;
the expiry of results from joins below, which no cleanup reads; another `since` of tuples that were in memory at the
end, since all later parts are late, and cleanup does not read `since` for those.
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

BACKLOG: dict[str, tuple[tuple[str, str], ...]] = {
    "spill/backlog.py": (
        ("            return list(range(partitions))\n", "            pass\n"),
        ("self.covers[k] < self.covers[join]", "self.covers[k] > self.covers[join]"),
        ("_backlog_part(part) for part in own", "_backlog_part(part) for part in own[1:]"),
        ("BacklogPart(left, right, part.since, part.late)", "BacklogPart(left, right, part.since, True)"),
        ("SpilledPart((left, right), self.since, self.late)", "SpilledPart((left, right), 0, self.late)"),
        ("SpilledPart((left, right), self.since, self.late)", "SpilledPart((right, left), self.since, self.late)"),
    ),
    "spill/cleanup/offline.py": (
        ("            found = found.take(found.ts >= self._delivered)\n", ""),
        ("found.take(found.ts >= self._delivered)", "found.take(found.ts > self._delivered)"),
        ("blocks, [parts]).missing_results():", "blocks, [parts[:-1]]).missing_results():"),
        ("NEVER, late=True))", "NEVER))"),
        ("    for side in (LEFT, RIGHT):\n        pieces", "    for side in (LEFT,):\n        pieces"),
        (" | set(late_inputs.pieces[join]))", ")"),
        ("        late_inputs.write()\n", ""),
        ("groups_of(prepared.hashes, self._partitions)", "groups_of(prepared.hashes, self._partitions + 1)"),
        ("        if len(late) == 0:\n            return\n", ""),
        ("elif group not in known:", "else:"),
        ("own = with_late(parts.get((join, group), ()), ", "own = with_late((), "),
    ),
}  # fmt: skip
"""Per file under operators/. Those of `spill/spilling.py` are in `SPILLING_BACKLOG`, since others have some too."""

SPILLING_BACKLOG: tuple[tuple[str, str], ...] = (
    ("            delivered=self._cleanup.delivered,\n", "            delivered=NEVER,\n"),
    ("        self._ledger.clear()\n        return backlog", "        return backlog"),
    ("                    self._ledger.add((j, g), SpilledPart((left, right), cut))\n", "                    pass\n"),
)

BACKLOG_TESTS: dict[str, list[str]] = {
    file: ["spill/test_offline_cleanup.py", "spill/test_backlog.py"] for file in BACKLOG
}
"""Of each file, the tests most likely to notice."""

OUTSIDE: dict[str, tuple[tuple[str, str], ...]] = {
    "services/spill/backlog.py": (
        ("    if found != head.sha256:", "    if False:"),
        ('    check_format(head.format, FORMAT, f"backlog {path}")', "    pass"),
        ("    if not is_cleaned_up(folder):\n        raise", "    if False:\n        raise"),
        ("    if fingerprint(query) != manifest.fingerprint:", "    if False:"),
        ("    if own != manifest.fingerprint:", "    if False:"),
        ("    if before and before != destination:", "    if False:"),
        ("    if not backlog.manifest.destination:\n        write", "    if False:\n        write"),
        ("            check_block(raw,", "            str("),
        (", destination=destination, results=results))", ", destination=destination))"),
    ),
    "services/spill/destinations.py": (
        ("            self._beside.unlink(missing_ok=True)", "            pass"),
        ("            rename_durably(self._beside, self._path)", "            pass"),
        ("    mark_cleaned_up(backlog, name, results)\n", ""),
        ("CLEANUP_PHASE, self._members).data)\n            e", "None, self._members).data)\n            e"),
        ("        if group not in delivered:", "        if True:"),
    ),
    "ops/spark/delivery.py": (
        ("            if record.debt == self._backlog:", "            if record.debt != self._backlog:"),
        ("read_to_end(self._clients, lane, end)", "read_to_end(self._clients, lane)"),
        ("Delivery(encoded, [commit], {})", "Delivery(encoded, [], {})"),
        ("            self._begin()\n", "            pass\n"),
    ),
    "ops/spark/cleanup_task.py": (
        ("            late = pieces",
         "            parts.append(SpilledPart((tuple(pieces[0]), tuple(pieces[1])), since))"),
        ("        since = own[0][5]", "        since = NEVER"),
        ("pieces[side].append(", "pieces[0].append("),
        ("{found.side}/{join}/{group}", "{found.side}/{join}"),
        ("(cleanup.joins, group, 0, 0)", "(cleanup.joins, 0, 0, 0)"),
    ),
}  # fmt: skip
"""Per file; tried by this module."""

OUTSIDE_TESTS = {
    "services/spill/backlog.py": ["tests/services/spill/test_cleanup.py", "-m", "not kafka"],
    "services/spill/destinations.py": ["tests/services/spill/test_cleanup.py", "-m", "not kafka"],
    "ops/spark/delivery.py": [
        "tests/services/spill/test_cleanup.py",
        "tests/ops/spark/test_open_transactions.py",
        "-m",
        "kafka",
    ],
    "ops/spark/cleanup_task.py": ["tests/ops/spark/test_cleanup_task.py"],
}


def main(words: list[str]) -> int:
    """Break a copy of the project in one way after the other; the process's exit code."""
    engine = {f"operators/{file}": changes for file, changes in BACKLOG.items()}
    engine["operators/spill/spilling.py"] = SPILLING_BACKLOG
    likely = [f"tests/operators/{name}" for name in ("spill/test_offline_cleanup.py", "spill/test_backlog.py")]
    tests = dict.fromkeys(engine, likely) | OUTSIDE_TESTS
    return 1 if survivors(engine | OUTSIDE, tests, words) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
