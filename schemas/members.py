"""The members of result objects: outputs with dots in their alias are members of objects in each other.

    SELECT C.id AS "customer.id", O.ts AS ts, C.name AS "customer.name"
    {"customer": {"id": 1, "name": "x"}, "ts": 5}

An object stands where the first of its members does. The encoders of all formats, and the makers of their schemas, lay
results out by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.errors import InvariantError
from schemas.query import HEADERS, OP_KEY, Query


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: a value, or an object itself.

    Attributes:
        column: the number of the column that has the value; -1 for an object.
        members: those of an object, of which it has at least one.
    """

    name: str
    column: int = -1
    members: tuple[Member, ...] = ()


def members_of(paths: Sequence[tuple[str, ...]]) -> tuple[Member, ...]:
    """Return the members of the objects that have values at these paths, each the number of its path.

    Args:
        paths: of which none leads through the value of another, as the language guarantees of outputs.
    """
    return _members([(path, number) for number, path in enumerate(paths)])


def _members(found: Sequence[tuple[tuple[str, ...], int]]) -> tuple[Member, ...]:
    by_name: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for (name, *inside), number in found:
        by_name.setdefault(name, []).append((tuple(inside), number))
    made = []
    for name, below in by_name.items():
        if below[0][0]:
            made.append(Member(name, members=_members(below)))
        elif len(below) == 1:
            made.append(Member(name, below[0][1]))
        else:
            raise InvariantError(f"two values are called {name!r}")
    return tuple(made)


def flat_members(names: Sequence[str]) -> tuple[Member, ...]:
    """Return the members of objects without others in them, in the order of their columns."""
    return tuple(Member(name, number) for number, name in enumerate(names))


def value_members(query: Query) -> tuple[Member, ...]:
    """Return the members of the values of records with a query's results: as `result_members`, without headers."""
    return tuple(member for member in result_members(query) if member.name != HEADERS)


def result_members(query: Query) -> tuple[Member, ...]:
    """Return the members of a query's results, without those that every result has, in the order of its columns."""
    paths = [output.path for output in query.outputs]
    return members_of([*paths, (OP_KEY,)] if query.subtracted else paths)


def columns_in_order(members: Sequence[Member]) -> Iterator[int]:
    """The columns of the values in the members, in the order in which records have them."""
    for member in members:
        if member.members:
            yield from columns_in_order(member.members)
        else:
            yield member.column
