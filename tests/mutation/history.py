"""Breaks the batch answer in small ways and checks that its tests notice.

    python -m tests.mutation.history               # every mutant; exit code 1 if one survives
    python -m tests.mutation.history difference    # those whose file contains one of the words

A Spark takes seconds to start, so all mutants are tried in one process: a module's text is changed in memory, and
what was made of it is made anew. Left out because they change nothing that anyone could see:

- more buckets, or none, of any width: they only spare Spark comparisons.
- `s{n}_end >= begin` away: tuples that are too old join with nothing that is wanted.
- `join_key` away: it follows from the predicate.
- `+ 0D` away: the tests do not tell the zeros apart.
- no groups in the order of aggregates: equal timestamps stay as the window before has sorted them.
"""

from __future__ import annotations

import importlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.cloudpickle import register_pickle_by_value

from ops.spark.session import spark_session
from tests import oracle
from tests.cases import Case, aggregated
from tests.subtractions import busy_subtractions, subtractions

MODULES = ("expressions", "stage", "answer", "difference", "aggregates", "results")
"""In the order of their imports."""

EXAMPLES = {"join": 8, "difference": 24, "aggregate": 8}

MUTANTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "stage": (
        "join",
        (
            ("late: Mask = batch.ts < reached", "late: Mask = batch.ts <= reached"),
            ("return np.maximum(before - stream.disorder_ms, 0)", "return np.maximum(before, 0)"),
            ("np.maximum(before[0], np.maximum.accumulate(ts[:-1]), out=before[1:])", "before[1:] = before[0]"),
            ("kept = ~late if refused", "kept = late | True if refused"),
        ),
    ),
    "answer": (
        "join",
        (
            ('f"s{number}_ts <= dead", ', 'f"s{number}_ts < dead", '),
            ('f"s{number}_ts <= dead", ', ""),
            (', f"hi <= s{number}_end"]', "]"),
            ("at < s{n}_last", "at <= s{n}_last"),
            ("{source.window.size}) OVER", "{source.window.size + 1}) OVER"),
            ("{TS}, {PART}, {OFF}, {element}", "{TS}, {PART} DESC, {OFF}, {element}"),
            ("'stream', {ordinal}, 'part', {PART}", "'stream', 0, 'part', {PART}"),
            ('f"greatest(hi, s{number}_ts) AS hi"', '"hi"'),
            ('f"least(dead, s{number}_end) AS dead"', '"dead"'),
            ('f"greatest(at, s{number}_at) AS at"', '"at"'),
            ("            conditions.append(self._sql(predicate))\n", ""),
            ('orderBy("hi", *order)', "orderBy(*order)"),
        ),
    ),
    "difference": (
        "difference",
        (
            ("coalesce(max(match_end)", "coalesce(lag(match_end)"),
            ("coalesce(max(match_end)", "coalesce(first(match_end)"),
            ('found["op"].desc()', 'found["op"]'),
            ("try_add(s{number}_end, 1L)", "try_add(s{number}_end, 0L)"),
            ("    for predicate in query.predicates:\n", "    for predicate in ():\n"),
            (', f"{begin} < {dead}"', ""),
        ),
    ),
    "aggregates": (
        "aggregate",
        (
            ("NOT alive OR NOT was OR NOT same", "true"),
            ("NOT alive OR NOT was OR NOT same", "NOT was OR NOT same"),
            ("THEN dead + 1L ELSE", "THEN dead ELSE"),
            ("len(values) % 2 == 0", "len(values) % 2 == 1"),
            ("if value is not None:\n                    acc", "if True:\n                    acc"),
            ("return total / self.count if self._average", "return total if self._average"),
            ("self._total += step * value", "self._total += value"),
            ("del self._values[bisect_left(self._values, value)]", "del self._values[0]"),
            ("if -(2**63) <= self._total < 2**63", "if True"),
        ),
    ),
    "expressions": (
        "expression",
        (
            ("THEN {text} END", "THEN {text} ELSE {text} END"),
            ("finite=op in '/%')}", "finite=False)}"),
            ('f"try_subtract(0L, {operand})"', 'f"(- {operand})"'),
            ('"+": "try_add"', '"+": "greatest"'),
            ("{left} = {_MIN} AND {right} = -1L", "false"),
            ("{args[0]} = {_MIN} THEN NULL", "false THEN NULL"),
            ('f"rint({args[0]})"', 'f"CAST(round({args[0]}) AS DOUBLE)"'),
            ("> {text} THEN rint({text}) - 1D", "> {text} THEN rint({text})"),
            ('"<=": f"{whole} <= {floor}"', '"<=": f"{whole} < {floor}"'),
            ('">=": f"{whole} > {floor} OR ({whole} = {floor} AND {integral})"', '">=": f"{whole} >= {floor}"'),
            ("{whole} IS NULL OR {real} IS NULL THEN NULL", "false THEN NULL"),
            (">= {_TWO63} THEN {below}", ">= {_TWO63} THEN {above}"),
            ("greatest({count}, 0L)", "{count}"),
            ('begin = f"greatest({start}, 1L)"', 'begin = f"greatest({start}, 0L)"'),
            ('"(?s)\\\\A', '"\\\\A'),
            ('elif not escaped and char in "%_"', 'elif char in "%_"'),
            ('AND {count} IS NOT NULL"', '"'),
        ),
    ),
}


def battery(kind: str, spark: Any, number: int, tests: ModuleType) -> Callable[[ModuleType], None]:
    """What a mutant must fail: random cases, the same ones for all mutants of a kind."""

    def folder(name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name))

    if kind == "expression":

        def expressions(tests: ModuleType) -> None:
            random.seed(number)
            for _ in range(2):
                tests.check_expressions(spark, folder("mutant"), 20)

        return expressions
    strategies = {
        "join": tests.busy_joins(),
        "difference": st.one_of(subtractions(), busy_subtractions()),
        "aggregate": aggregated(tests.busy_joins()),
    }

    def answers(tests: ModuleType) -> None:
        if kind == "aggregate":
            tests.check_fold()

        @seed(number)
        @settings(
            max_examples=EXAMPLES[kind],
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(strategies[kind].filter(lambda case: len(oracle.results(case.query, case.given)) > 5))
        def run(case: Case) -> None:
            tests.check(spark, folder, case)

        run()
        if kind == "difference":
            tests.check_unborn(spark, folder)

    return answers


def loaded(changed: str = "", old: str = "", new: str = "") -> ModuleType:
    """The tests, over modules of which one is changed."""
    for name in MODULES:
        module = importlib.import_module(f"ops.spark.{name}")
        text = Path(str(module.__file__)).read_text()
        if name == changed:
            if text.count(old) != 1:
                raise SystemExit(f"{name}: {old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
        exec(compile(text, str(module.__file__), "exec"), module.__dict__)
    return importlib.reload(importlib.import_module("tests.ops.spark.test_spark_history"))


def caught(run: Callable[[ModuleType], None], tests: ModuleType) -> str:
    """The error that a mutant makes; empty if it survives."""
    try:
        run(tests)
    except Exception as error:
        return type(error).__name__
    return ""


def main(words: list[str]) -> int:
    """Run and print a table; the process's exit code."""
    chosen = [name for name in MUTANTS if not words or any(word in name for word in words)]
    survived = 0
    with tempfile.TemporaryDirectory() as temporary:
        tempfile.tempdir = temporary
        tests = loaded()
        with spark_session("local[2]", Path(temporary), **tests.QUICK) as spark:
            tests.register_functions(spark)
            # Else executors would import the unbroken file.
            register_pickle_by_value(importlib.import_module("ops.spark.aggregates"))
            tests.split_for(spark, 0)
            for name in chosen:
                kind, changes = MUTANTS[name]
                run = battery(kind, spark, 20, tests)
                if error := caught(run, loaded()):
                    raise SystemExit(f"{name}: the unbroken code fails: {error}")
                for old, new in changes:
                    began = time.monotonic()
                    error = caught(run, loaded(name, old, new))
                    survived += not error
                    shown = " ".join(f"{old} -> {new or 'nothing'}".split())
                    took = time.monotonic() - began
                    print(f"{'caught' if error else 'SURVIVED':9} {took:4.0f} s  {name}: {shown}  {error}", flush=True)
    print(f"{survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
