"""Finds equalities that follow from others: `A.k = B.k AND A.k = C.k` implies `B.k = C.k`.

`equality_classes` groups the operands of equalities between two aliases into classes; all operands of a class are equal
in every result. Where a join has operands of a class on both sides, one equality between one operand of each side is
enough, whichever predicates were written. Below that join the operands of either side are equal already, since every
join of a tree tests one such equality. So a plan that joins B and C first has a key for that join. A state has the same
key in every plan: the class's first operand among its aliases. And a clique of equalities costs one comparison per
join, not one per predicate.

This holds only where equality is one relation on one domain: the operands of a class are all whole numbers, all
doubles, all strings or all booleans. It also needs an alias to have only one operand in a class: two (`A.k = B.k AND
A.v = B.k`) would have to be compared at the source already. Equalities that break either rule are used as written. A
null is never equal, so a tuple with a null in any operand is in no result, and it may be dropped early or late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
        operands: the operand of each alias, in the order in which the predicates mention them.
        predicates: the equalities as written, with the two aliases of each.
    """

    operands: dict[str, Expr]
    predicates: dict[Expr, frozenset[str]]

    def first(self, aliases: Iterable[str]) -> Expr | None:
        """Return the first operand of these aliases; None where there is none."""
        side = frozenset(aliases)
        return next((operand for alias, operand in self.operands.items() if alias in side), None)

    def between(self, left: Iterable[str], right: Iterable[str]) -> Compare | None:
        """Return the equality that makes two sides agree; None where only one side has operands of the class."""
        a, b = self.first(left), self.first(right)
        return None if a is None or b is None else Compare("=", a, b)

    def missing(self, aliases: Iterable[str]) -> list[Compare]:
        """Return the equalities that make these aliases agree, without those that are written between them."""
        among = frozenset(aliases)
        agreeing = [{alias} for alias in self.operands if alias in among]
        for ends in self.predicates.values():
            if ends <= among:
                merged, *rest = [side for side in agreeing if side & ends]
                for side in rest:
                    merged |= side
                    agreeing.remove(side)
        found = (self.between(agreeing[0], side) for side in agreeing[1:])
        return [equality for equality in found if equality is not None]


@lru_cache(maxsize=16)
def equality_classes(predicates: tuple[Expr, ...]) -> Mapping[Expr, EqualityClass]:
    """Return the class of each predicate that belongs to one of at least three operands; smaller ones imply nothing."""
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
            equality_class = EqualityClass(
                {alias: operand for operand, alias in operands.items()}, {p: aliases_of(p) for p in written}
            )
            found |= dict.fromkeys(written, equality_class)
    return found


def _operands(predicate: Expr) -> dict[Expr, str] | None:
    """Return both sides of an equality between two aliases on one domain, each with its alias; None for others."""
    if not isinstance(predicate, Compare) or predicate.op != "=":
        return None
    left, right = predicate.left, predicate.right
    a, b = aliases_of(left), aliases_of(right)
    if len(a) != 1 or len(b) != 1 or a == b or _DOMAINS[type_of(left)] != _DOMAINS[type_of(right)]:
        return None
    return {left: next(iter(a)), right: next(iter(b))}
