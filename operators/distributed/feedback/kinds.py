"""The kinds of an edge: the components by which its reader suspends tuples that it does not demand (JIT III).

`operators.distributed.decompose` assigns kinds to edges. A kind consists of equalities between the reader's two inputs.
It gives every tuple of the edge a *signature*: the hash of the values that the equalities read of it. A matching tuple
of the other side has the same signature. A reader whose other input has no tuple with some signature needs no tuple of
the edge that has it, and suspends it by that one number. The empty kind has one signature for all tuples: it is for a
reader whose other input is empty.

The tuples of a kind are kept back at one input of the producing join, its *home*, before they have made any result. A
producer may pass this on to the producers below it. An edge therefore also has the kinds of readers further up that are
over its own aliases, as far as one partition has all tuples of a signature (JIT III-C, Fig. 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.keys import key_hashes
from operators.kernels.hashing import U64
from operators.plan.plan import Join
from operators.plan.predicates import JoinCondition, Operand
from schemas.columns import Mask
from schemas.query import aliases_of

MAX_KINDS = 1 << 10
"""The most kinds of a plan: the low bits of a signature hold its kind. Kinds beyond are left out."""

_NUMBER = np.uint64(MAX_KINDS - 1)


@dataclass(frozen=True, slots=True)
class EdgeKind:
    """One kind of an edge.

    Attributes:
        number: The kind's number in the plan, the same on every edge.
        own: What its equalities read of the edge's tuples, over the columns of the query; empty for the empty kind.
        opposite: What they read of the reader's other input. None if the reader of the edge only passes on what a
            reader further up suspends.
        home: The input of the producing join at which its tuples are kept back.
    """

    number: int
    own: tuple[Operand, ...]
    opposite: tuple[Operand, ...] | None
    home: int

    def signatures(self, operands: Sequence[Operand], resolve: Resolve, n: int) -> tuple[U64, Mask | None]:
        """Return the signatures of n tuples.

        Args:
            operands: `own` or `opposite`, over the columns that `resolve` knows.
            resolve: Returns the values of a column.
            n: The number of tuples.

        Returns:
            (n,) uint64 signatures, and (n,) bool, False where a null prevents any match (None if there is no null).
        """
        if not operands:
            return np.full(n, self.number, np.uint64), None
        hashes, valid = key_hashes([operand.values(resolve, n) for operand in operands])
        return (hashes & ~_NUMBER) | np.uint64(self.number), valid


def are_of_kinds(signatures: U64, numbers: Sequence[int]) -> Mask:
    """Return (n,) True for those of (n,) signatures whose kind has one of some numbers."""
    return np.isin(signatures & _NUMBER, np.array(numbers, np.uint64))


def of_kinds(signatures: U64, numbers: Sequence[int]) -> U64:
    """Return those of some signatures whose kind has one of some numbers."""
    return signatures[are_of_kinds(signatures, numbers)]


def own_kinds(
    reader: Join,
    side: int,
    condition: JoinCondition,
    whole: tuple[Operand, ...],
    suppressed: Callable[[Join], int],
    first: int,
) -> tuple[EdgeKind, ...]:
    """Return the kinds by which a join suspends tuples of its input on `side`, which is a join's output.

    Args:
        reader: The join.
        side: The input's side.
        condition: The join's predicates.
        whole: The edge's partition key if the edge is repartitioned, else empty. A signature must then determine the
            partition, which only the whole key does.
        suppressed: Returns the home of the empty kind at a join.
        first: The number of the first kind.
    """
    producer = (reader.left, reader.right)[side]
    assert isinstance(producer, Join)
    pairs = [(term.operand(side), term.operand(1 - side)) for term in condition.keys]
    if whole:
        home = _home(producer, frozenset[str]().union(*(aliases_of(own.expr) for own, _ in pairs)))
        return () if home is None else (EdgeKind(first, *_split(pairs), home),)
    # The empty kind comes first: it is the cheapest to check.
    found = [EdgeKind(first, (), (), suppressed(producer))]
    for alias in producer.aliases:
        chosen = [(own, other) for own, other in pairs if aliases_of(own.expr) == {alias}]
        if chosen:
            home = _home(producer, frozenset((alias,)))
            assert home is not None
            found.append(EdgeKind(first + len(found), *_split(chosen), home))
    return tuple(found)


def passed_on(
    kinds: Sequence[EdgeKind], producer: Join, side: int, suppressed: Callable[[Join], int]
) -> tuple[EdgeKind, ...]:
    """Return those of an edge's kinds that its producer passes on to the producer of its input on `side`, which is a
    join."""
    below = (producer.left, producer.right)[side]
    assert isinstance(below, Join)
    found: list[EdgeKind] = []
    for kind in kinds:
        if kind.home != side:
            continue
        aliases = frozenset[str]().union(*(aliases_of(operand.expr) for operand in kind.own))
        home = _home(below, aliases) if kind.own else suppressed(below)
        if home is not None:
            found.append(EdgeKind(kind.number, kind.own, None, home))
    return tuple(found)


def _split(pairs: Sequence[tuple[Operand, Operand]]) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    return tuple(own for own, _ in pairs), tuple(other for _, other in pairs)


def _home(producer: Join, aliases: frozenset[str]) -> int | None:
    """Return the input of a join that has all of some aliases; None if they are on both sides."""
    for side, child in enumerate((producer.left, producer.right)):
        if aliases <= frozenset(child.aliases):
            return side
    return None
