"""Small errors in what outlives a task of its spilled state, per file: see `tests.mutation.mutants`."""

from __future__ import annotations

SPILL_LOG: dict[str, tuple[tuple[str, str], ...]] = {
    "spill/replay.py": (
        ("events[plans[-1] + 1 :] if plans else events", "events"),
        ("return sorted({event.at for event in self._events if begin < event.at < end})", "return []"),
        ("return event.at - 1", "return event.at"),
    ),
    "spill/plan_spilling.py": (
        ("self.pending_replay = SpillReplay(events, until)", "self.pending_replay = SpillReplay((), until)"),
        ("self.active.delivered_before(self.pending_replay.delivered)", "pass"),
        ("        self.active.clean_groups(dict(event.groups), event.at)\n", ""),
        (
            "self.active.clean_groups(dict(event.groups), event.at)\n        self.active.take()",
            "self.active.clean_groups(dict(event.groups), event.at)",
        ),
        ("            if replayed:\n                self._replay_cleanups(cut)\n", ""),
        ("event.at)\n                self._replay_cleanups(cut)\n", "event.at)\n"),
        ("        if not self._replaying:", "        if not self.pending_replay.covers(event.at):"),
        ("clean=not replayed", "clean=True"),
        ("                self._replay_beginning(cut)\n", ""),
        ("if newest > expired]", "if False]"),
        (
            "return min(self._input_complete, least[0][0]) if least else self._input_complete",
            "return self._input_complete",
        ),
    ),
    "engine/engine.py": (
        ("begin_at(living[name][0] if name in living else before.stores[name].hi)", "begin_at(before.stores[name].hi)"),
        ("            if self.durable:\n                self._durability.retain(self._sources)\n", ""),
        ("expired = min(self.horizon(stream) for stream in self._streams) - 1", "expired = self.cut"),
        ("for stream in self._streams) - 1", "for stream in self._streams)"),
        ("        if self.query.tables():\n", "        if False:\n"),
    ),
    "state/durability.py": (("max(self._exported[name], store.hi)", "store.hi"),),
    "engine/selection.py": (
        ("and not restored and not sources", "and not sources"),
        ("            if VOID in batch.columns:\n", "            if False:\n"),
    ),
}
"""Per file under operators/."""

SPILL_LOG_TESTS: dict[str, list[str]] = {
    "spill/replay.py": ["spill/test_spill_deaths.py", "distributed/test_distributed_spill.py"]
}
"""Of each file, the tests most likely to notice."""
