"""The scalar functions of the language and their type rules. For what they compute see `schemas.query.Call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.query import Type

NUMBERS = frozenset({Type.BIGINT, Type.DOUBLE})

JSON_VALUE = "JSON_VALUE"
JSON_TYPES = (Type.STRING, Type.BIGINT, Type.DOUBLE, Type.BOOLEAN)
"""What JSON_VALUE may be RETURNING; the first is the default."""

AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG", "MEDIAN")
"""Function names that are aggregates; no scalar function has one of these names."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function: how many arguments it takes, how it is written, and its type rule.

    `most` None means any number. `result` returns the type of a call with arguments of these types, or None
    when they do not fit.
    """

    least: int
    most: int | None
    form: str
    result: Callable[[Sequence[Type]], Type | None]


def _same_number(types: Sequence[Type]) -> Type | None:
    return types[0] if types[0] in NUMBERS else None


def _string_to(result: Type) -> Callable[[Sequence[Type]], Type | None]:
    return lambda types: result if all(t is Type.STRING for t in types) else None


def _common(types: Sequence[Type]) -> Type | None:
    """The common type of all, where BIGINT and DOUBLE together are DOUBLE."""
    distinct = set(types)
    if len(distinct) == 1:
        return types[0]
    return Type.DOUBLE if distinct == NUMBERS else None


FUNCTIONS: Mapping[str, Signature] = {
    "ABS": Signature(1, 1, "ABS(number)", _same_number),
    "FLOOR": Signature(1, 1, "FLOOR(number)", _same_number),
    "CEIL": Signature(1, 1, "CEIL(number)", _same_number),
    "ROUND": Signature(1, 1, "ROUND(number)", _same_number),
    "SQRT": Signature(1, 1, "SQRT(number)", lambda types: Type.DOUBLE if types[0] in NUMBERS else None),
    "SIGN": Signature(1, 1, "SIGN(number)", lambda types: Type.BIGINT if types[0] in NUMBERS else None),
    "LOWER": Signature(1, 1, "LOWER(string)", _string_to(Type.STRING)),
    "UPPER": Signature(1, 1, "UPPER(string)", _string_to(Type.STRING)),
    "LENGTH": Signature(1, 1, "LENGTH(string)", _string_to(Type.BIGINT)),
    "COALESCE": Signature(1, None, "COALESCE(value, ...) with values of one type", _common),
    "CONCAT": Signature(1, None, "CONCAT(string, ...)", _string_to(Type.STRING)),
    "SUBSTRING": Signature(
        2,
        3,
        "SUBSTRING(string, start [, count])",
        lambda types: Type.STRING if types[0] is Type.STRING and set(types[1:]) == {Type.BIGINT} else None,
    ),
    JSON_VALUE: Signature(2, 2, "JSON_VALUE(string, '$.path' [RETURNING type])", _string_to(Type.STRING)),
}
