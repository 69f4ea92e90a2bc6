"""Small errors in how a worker keeps what its tasks spill: see `tests.mutation.mutants`.

    python -m tests.mutation.worker_spill    # exit code 1 if one survives
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

WORKER_SPILL: dict[str, tuple[tuple[str, str], ...]] = {
    "services/task/spill.py": (
        ("self._log.events, until", "[], until"),
        ("self._log.events, until", "self._log.events[:-1], until"),
        ("self._log.events, until", "self._log.events, 0"),
        ("        return late, records", "        return late, []"),
        ("        return late, records", "        return [], records"),
        ("self._log.forget(self._engine.spills_needed_from())", "self._log.forget(self._engine.cut)"),
        ("self._log.forget(self._engine.spills_needed_from())", "pass"),
        ("folder / uuid.uuid4().hex[:12]", "folder"),
        ("            shutil.rmtree(own, ignore_errors=True)\n", ""),
        ("        shutil.rmtree(self.blocks.path, ignore_errors=True)", "        pass"),
        ("late, self._late = [*self._late, *self._found()], []", "late, self._late = self._late, []"),
        ("min((ended - now) / CLEANUP_SHARE, MAX_REST_S)", "(ended - now) / CLEANUP_SHARE"),
        ("events[-1].settled if events else END", "END"),
        ("self._plan())", '"")'),
    ),
    "services/spill/spill_log.py": (
        ("all(event.at <= until", "any(event.at <= until"),
        ("            self._adopted = True\n", ""),
        ("range(0, len(events), RECORD_EVENTS)", "range(0, len(events[:1]), RECORD_EVENTS)"),
        ("self._records[-1].plan", "self._records[0].plan"),
    ),
    "services/delivery/numbered_records.py": (
        ("self._records[0].number if self._records", "self._records[-1].number if self._records"),
        ("        self._following += 1\n", ""),
        ("offset, self._deletable = self._deletable, None", "offset = self._deletable"),
        ("        del self._records[: len(dropped)]\n", ""),
        ("itertools.takewhile(needless, self._records)", "filter(needless, self._records)"),
        ("            if record.offset != UNKNOWN:\n", "            if True:\n"),
        ("self._deletable = record.offset + 1", "self._deletable = record.offset"),
        ("    if missing:", "    if False:"),
        ('if record.writer in ("", former):', "if True:"),
    ),
    "services/delivery/repeats_log.py": (
        ("last < needed.get(place, last + 1)", "last <= needed.get(place, last + 1)"),
        ("lambda kept: all(last", "lambda kept: any(last"),
        ("            self._drop_while(lambda _: True)\n", ""),
        ("            records += self._write(self._inherited)\n", ""),
        ("max(a.last.get(place, 0), b.last.get(place, 0))", "a.last.get(place, 0)"),
        ("range(0, len(positions), RECORD_POSITIONS)", "range(0, len(positions[:1]), RECORD_POSITIONS)"),
    ),
}
"""Per file."""

TESTS = {
    "services/task/spill.py": ["tests/services/task/test_task_spill.py"],
    "services/spill/spill_log.py": ["tests/services/spill/test_spill_log.py", "tests/services/task/test_task_spill.py"],
    "services/delivery/numbered_records.py": [
        "tests/services/spill/test_spill_log.py",
        "tests/services/delivery/test_repeats_log.py",
    ],
    "services/delivery/repeats_log.py": [
        "tests/services/delivery/test_repeats_log.py",
        "tests/services/recovery/test_replay_properties.py",
    ],
}

if __name__ == "__main__":
    sys.exit(1 if survivors(WORKER_SPILL, TESTS, sys.argv[1:]) else 0)
