"""Plans as text: which are accepted, and where the caret points in the others."""

from __future__ import annotations

import pytest

from operators.plan.plan import Join, Leaf, left_deep, parse_plan, postorder
from schemas.errors import QueryError
from tests.operators.tiny import chain, query

THREE = query("SELECT A.k FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1]")
A, B, C = Leaf("A"), Leaf("B"), Leaf("C")


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("((A B) C)", Join(Join(A, B), C)),
        ("(A (B C))", Join(A, Join(B, C))),
        ("  ( C\t(\n B A ) )  ", Join(C, Join(B, A))),
        ('(("A" B) "C")', Join(Join(A, B), C)),
        ("((A B)C)", Join(Join(A, B), C)),
    ],
)
def test_accepted(text: str, plan: Join) -> None:
    """Any tree; white space and quotes do not matter."""
    assert parse_plan(text, THREE) == plan
    assert parse_plan(str(plan), THREE) == plan


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "",
            """plan: a plan is one join of all aliases, like ((A B) C) (line 1, column 1)""",
        ),
        (
            "((A B) C",
            """plan: '(' is never closed (line 1, column 1)
  ((A B) C
  ^""",
        ),
        (
            "((A B) C))",
            """plan: ')' without '(' (line 1, column 10)
  ((A B) C))
           ^""",
        ),
        (
            "(A B C)",
            "plan: a join has two inputs, got 3, and more only with --executor juggler; "
            """a plan looks like ((A B) C) (line 1, column 1)
  (A B C)
  ^^^^^^^""",
        ),
        (
            "((A) (B C))",
            """plan: a join has two inputs, got 1; a plan looks like ((A B) C) (line 1, column 2)
  ((A) (B C))
   ^^^""",
        ),
        (
            "(() A)",
            """plan: a join has two inputs, got 0; a plan looks like ((A B) C) (line 1, column 2)
  (() A)
   ^^""",
        ),
        (
            "A B",
            """plan: a plan is one join of all aliases, like ((A B) C) (line 1, column 1)
  A B
  ^^^""",
        ),
        (
            "(A B)",
            """plan: missing C (line 1, column 1)
  (A B)
  ^^^^^""",
        ),
        (
            "A",
            """plan: missing B, C (line 1, column 1)
  A
  ^""",
        ),
        (
            "((A Bee) C)",
            """plan: unknown alias 'Bee'; the query has A, B, C (line 1, column 5)
  ((A Bee) C)
      ^^^""",
        ),
        (
            "((A a) C)",
            """plan: unknown alias 'a'; the query has A, B, C (line 1, column 5)
  ((A a) C)
      ^""",
        ),
        (
            '((A "b B") C)',
            """plan: unknown alias 'b B'; the query has A, B, C (line 1, column 5)
  ((A "b B") C)
      ^^^^^""",
        ),
        (
            "((A B) A)",
            """plan: alias 'A' appears twice (line 1, column 8)
  ((A B) A)
         ^""",
        ),
        (
            '((A   "B) C)',
            """plan: unexpected '"'; a plan looks like ((A B) C) (line 1, column 7)
  ((A   "B) C)
        ^""",
        ),
        (
            '((A "") C)',
            """plan: unexpected '"'; a plan looks like ((A B) C) (line 1, column 5)
  ((A "") C)
      ^""",
        ),
        (
            "((A B)\n  D)",
            """plan: unknown alias 'D'; the query has A, B, C (line 1, column 10)
  ((A B)   D)
           ^""",
        ),
    ],
)
def test_refused(text: str, shown: str) -> None:
    """The error of each malformed plan states the fault, with a caret under its position.

    Regressions: the caret pointed to the white space before an unclosed quote, and beyond the first line of a plan
    written on several lines.
    """
    with pytest.raises(QueryError) as error:
        parse_plan(text, THREE)
    assert str(error.value) == shown
    assert error.value.exit_code == 2


def test_quoted_aliases_are_written_so_that_they_can_be_parsed() -> None:
    """Regression: the plan of a query with the alias "my a" was printed as `(my a B)`."""
    odd = query('SELECT B.k FROM a AS "my a" [ROWS 1], b B [ROWS 1], c AS "(c" [ROWS 1]')
    plan = left_deep([source.alias for source in odd.sources])
    assert str(plan) == '(("my a" B) "(c")'
    assert parse_plan(str(plan), odd) == plan
    assert str(Leaf('say "hi"')) == '"say ""hi"""'


def test_postorder_yields_children_before_parents() -> None:
    """Left before right."""
    plan = parse_plan("((A B) C)", THREE)
    assert [str(node) for node in postorder(plan)] == ["A", "B", "(A B)", "C", "((A B) C)"]


def test_equality_is_of_trees_with_sides() -> None:
    """`(A B)` and `(B A)` are different plans; plans are hashable."""
    assert Join(A, B) != Join(B, A)
    assert len({Join(A, B), Join(A, B), Join(B, A)}) == 2


def test_101_aliases_round_trip() -> None:
    """A deep plan is no obstacle."""
    long = chain(101)
    plan = left_deep([source.alias for source in long.sources])
    assert parse_plan(str(plan), long) == plan
    assert plan.aliases == tuple(f"A{i}" for i in range(101))
