"""Errors in the engine of query groups, by file; see `tests.mutation.mutants`. Left out because nobody could see them:

- a part that is shared when there is one query to share it: it gives the same.
- `waiting >= WAITING_TUPLES` away: SELECT lists are computed at the end of the epoch, of more stored tuples.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "groups/engine.py": (
        ("if query.name in self.names:", "if False:"),
        ("if known.get(stream.name) != stream:", "if False:"),
        ("        begun.process({}, self.cut)\n", ""),
        ("if len(self._shared.names) == 1:", "if False:"),
        ("self._apart.pop(name, None) is not None", "name in self._apart"),
        ("        self._input_tuples += len(batch)\n", ""),
        ("return self._shared.add(query, from_now=from_now)", "return self._shared.add(query, from_now=False)"),
    ),
    "groups/apart.py": (
        ("return {self.name: self.engine.advance(cut)}", "return {self.name: self.engine.advance(cut - 1)}"),
        ("            if stream in epoch:\n", "            if stream in epoch and stream == self._streams[0]:\n"),
    ),
    "groups/shared.py": (
        (" or at == cut:", ":"),
        ("                found, waiting = {}, 0\n", "                waiting = 0\n"),
        ("self._sources.purge(at)", "pass"),
        ("        self._executor.purge(cut)\n", ""),
        ("now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)", "now = cut"),
        ("np.full(len(rows), TABLE_TS)", "np.zeros(len(rows), np.int64)"),
        ("{name: self._results.get(name, 0) for name in self.names}", "dict.fromkeys(self.names, 0)"),
        ("            if table.name not in self._inputs:\n", "            if False:\n"),
        ("        self._cut = cut\n        return found", "        return found"),
    ),
    "groups/parts.py": (
        ("return executor == JUGGLER", "return True"),
        ("    except UsageError:\n        return False", "    except UsageError:\n        return True"),
    ),
}

GROUPS_TESTS = ["test_query_groups.py"]
