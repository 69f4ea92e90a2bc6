"""Equalities that follow from others: `A.k = B.k AND A.k = C.k` says `B.k = C.k` too.

The operands of equalities between two aliases fall into classes: all operands of a class are equal in every result.
Where a class lies on both sides of a join, one equality between one operand of each side is enough, whichever
predicates were written: below it the operands of either side are equal already, since every join of a tree asks for
one such equality. So a plan that joins B and C first has a key to join them by, a state has the same key in every plan
(the class's first operand among its aliases), and a clique of equalities costs one comparison, not one each.

This holds only where equality is one relation on one domain: operands of a class are all whole numbers, all doubles,
all strings or all booleans. And an alias has one operand in a class: two (`A.k = B.k AND A.v = B.k`) would have to be
compared at the source already. Classes that break either rule are left as they were written. A null is never equal,
so a tuple with a null in any operand is in no result, and dropping it early or late is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.query import Compare, Expr, Type, aliases_of, type_of

_DOMAINS = {
    Type.BIGINT: "whole",
    Type.TIMESTAMP: "whole",
    Type.DOUBLE: "real",
    Type.STRING: "text",
    Type.BOOLEAN: "truth",
}


@dataclass(frozen=True, slots=True, eq=False)
class EqualityClass:
    """Operands that are equal in every result.

    Attributes:
        operands: by alias, in the order in which the predicates mention them.
        predicates: the equalities as written, and the two aliases of each.
    """

    operands: dict[str, Expr]
    predicates: dict[Expr, frozenset[str]]

    def first(self, aliases: Iterable[str]) -> Expr | None:
        """The first operand of these aliases; None where there is none."""
        side = frozenset(aliases)
        return next((operand for alias, operand in self.operands.items() if alias in side), None)

    def between(self, left: Iterable[str], right: Iterable[str]) -> Compare | None:
        """The equality that makes two sides agree; None where the class lies on one side only."""
        a, b = self.first(left), self.first(right)
        return None if a is None or b is None else Compare("=", a, b)

    def missing(self, aliases: Iterable[str]) -> list[Compare]:
        """The equalities that make these aliases agree, beyond those that are written between them."""
        among = frozenset(aliases)
        agreeing = [{alias} for alias in self.operands if alias in among]
        for ends in self.predicates.values():
            if ends <= among:
                one, *others = [side for side in agreeing if side & ends]
                for other in others:
                    one |= other
                    agreeing.remove(other)
        found = (self.between(agreeing[0], side) for side in agreeing[1:])
        return [equality for equality in found if equality is not None]


def equality_classes(predicates: Sequence[Expr]) -> dict[Expr, EqualityClass]:
    """The class of each predicate that is in one of three operands or more; smaller ones imply nothing."""
    groups: list[tuple[dict[Expr, str], list[Expr]]] = []
    for predicate in predicates:
        ends = _operands(predicate)
        if ends is None:
            continue
        met = [group for group in groups if not ends.keys().isdisjoint(group[0])]
        operands: dict[Expr, str] = {}
        written: list[Expr] = []
        for group in met:
            operands |= group[0]
            written += group[1]
            groups.remove(group)
        groups.append((operands | ends, [*written, predicate]))
    found: dict[Expr, EqualityClass] = {}
    for operands, written in groups:
        if len(operands) > 2 and len(set(operands.values())) == len(operands):
            one = EqualityClass(
                {alias: operand for operand, alias in operands.items()}, {p: aliases_of(p) for p in written}
            )
            found |= dict.fromkeys(written, one)
    return found


def _operands(predicate: Expr) -> dict[Expr, str] | None:
    """The two sides of an equality between two aliases on one domain, each with its alias."""
    if not isinstance(predicate, Compare) or predicate.op != "=":
        return None
    left, right = predicate.left, predicate.right
    a, b = aliases_of(left), aliases_of(right)
    if len(a) != 1 or len(b) != 1 or a == b or _DOMAINS[type_of(left)] != _DOMAINS[type_of(right)]:
        return None
    return {left: next(iter(a)), right: next(iter(b))}
