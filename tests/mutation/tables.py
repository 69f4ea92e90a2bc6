"""Errors in how tables are treated, by file; see `tests.mutation.mutants`. Left out because nobody could see them:

- a table's life of FOREVER: its rows then expire one instant before what never does.
- a table that is loaded twice into the operators of a set difference: the same rows cover the same tuples.
"""

from __future__ import annotations

TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "join/tables.py": (
        ("executor.process(rows, TABLE_TS)", "executor.process(rows, 0)"),
        ("if alias in sources.tables}", "if alias in sources.tables and alias > 'R'}"),
        ("if sources.shared(alias):", "if False:"),
    ),
    "engine/engine.py": (
        ("        load_tables(self._executor)\n", ""),
        ("lambda plan: load_tables(executor_of(", "lambda plan: (executor_of("),
    ),
    "engine/selection.py": (("            per_second = 0.0\n", "            pass\n"),),
    "difference/pipeline.py": (
        ("TABLE_TS + 1 if now == TABLE_TS else min(self.sources.cut, FOREVER)", "min(self.sources.cut, FOREVER)"),
        ("self._from = TABLE_TS if sources.tables else 0", "self._from = 0"),
    ),
    "plan/choose.py": (
        ("return Estimate(0.0, self.statistics.rows.get(", "return Estimate(1.0, self.statistics.rows.get("),
        ("self.statistics.rows.get(alias, DEFAULT_TABLE_ROWS)", "DEFAULT_TABLE_ROWS"),
    ),
    "migration/migration.py": (
        ("0 if a in tables else self.sources.store(a).hi", "self.sources.store(a).hi"),
        ("            if alias not in sources.tables\n", ""),
        ("return load_tables((Stairs", "return ((Stairs"),
    ),
    "migration/jisc/strategy.py": ((" or aliases <= self.sources.tables", ""),),
    "migration/hybmig.py": (
        ("            if frozenset(top.aliases) in static:\n                continue\n", ""),
        ("for a in top.aliases if a not in tables}", "for a in top.aliases}"),
        ("in inside - static for c", "in inside for c"),
    ),
    "migration/black_box.py": (("in sources.query.sources if not s.is_static}", "in sources.query.sources}"),),
    "migration/sizes.py": (("self.window_s[source.alias] = math.inf", "self.window_s[source.alias] = ENDLESS_S"),),
    "migration/cost.py": ((" and not aliases <= tables]", "]"),),
}
