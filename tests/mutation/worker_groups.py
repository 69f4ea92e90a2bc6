"""Small errors in how a worker runs a group of queries: see `tests.mutation.mutants`.

python -m tests.mutation.worker_groups    # exit code 1 if one survives
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

WORKER_GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "services/program/group_members.py": (
        ("ended=self._engine.cut, slot=slot))", "ended=self._engine.cut + 1, slot=slot))"),
        ("began=cut, since=since)", "began=cut, since={})"),
        ("began=cut, since=since)", "began=cut + 1, since=since)"),
        ("        self._engine.drop(name)\n", ""),
        ("from_now=message.from_now", "from_now=False"),
        ("unwritten, self._unwritten = self._unwritten, []", "unwritten = self._unwritten"),
        (
            "        if wanted is self._seen:\n            return\n",
            "        if self._seen is not None:\n            return\n",
        ),
        ("                if member.ended is None:\n", "                if True:\n"),
        ("                elif member.ended > delivered_before:\n", "                else:\n"),
        ("                        self.slots.add(member.slot)\n", "                        pass\n"),
        ("            self._slots.add(slot)\n", ""),
        ("        if self._transactional:\n            slot", "        if True:\n            slot"),
        ("        self.unwritten += resumed\n", "        pass\n"),
        (" or (registered.query is not None and registered.message.id != running.member.id):", ":"),
        ("(registered.query is not None and registered.message.id", "(registered.message.id"),
        ("                self.refused.add(member.id)\n", "                pass\n"),
        ("self._engine.cut if self._reread_for else watermark", "watermark"),
        ("        if not message.from_now:\n", "        if False:\n"),
        ("        self._reread_for = query.name\n        return most", "        return most"),
        (" or not self._readable(self._replay_offsets(query)):", ":"),
        ("member = _begun(task, wanted.message, 0, {})", "member = _begun(task, wanted.message, 1, {})"),
    ),
    "services/program/group_program.py": (
        ("found, self._found = self._found, {}", "found = self._found"),
        ("encoded, self._members.records()", "encoded, []"),
        ("return self._members.must_commit", "return False"),
        ("return any(len(found)", "return all(len(found)"),
        ("metrics.member(topic).inc(results)", "metrics.member(topic).inc()"),
    ),
    "services/worker/group_tasks.py": (
        ("            since=queries.since,\n", ""),
        ("            began=queries.began,\n", ""),
        ("recovery.cut, lambda", "0, lambda"),
        ("END if start.spill is None else start.spill.delivered_before", "END"),
    ),
    "operators/groups/engine.py": (
        ("self.cut - source.window.size if source.window.kind == \"RANGE\" else NEVER", "self.cut"),
        ("return self._first_read(query) | counted", "return self._not_read(query)"),
        ("            floors = self._first_read(query)\n", "            floors: dict[str, int] = {}\n"),
        ("cut - max(REACH_MS, REACH_WINDOWS * (cut - self.replay_horizon(stream.name)))", "self.horizon(stream.name)"),
    ),
    "operators/engine/intake.py": (("before if before == NEVER else before + 1", "NEVER"),),
    "schemas/groups.py": (
        ("if alias not in subtracted_aliases)", ")"),
        ("            replace(subtraction, on=(*subtraction.on, floors[subtraction.alias]))\n"
         "            if subtraction.alias in floors\n"
         "            else subtraction\n",
         "            subtraction\n"),
    ),
}
"""Per file."""

TESTS = {name: ["tests/services/program/test_group_members.py"] for name in WORKER_GROUPS}
TESTS["services/worker/group_tasks.py"] = ["tests/services/worker/test_group_workers.py"]

if __name__ == "__main__":
    sys.exit(1 if survivors(WORKER_GROUPS, TESTS, sys.argv[1:]) else 0)
