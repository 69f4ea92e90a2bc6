"""By which parts of an edge's tuples its reader says what it does not demand (JIT III): the kinds of an edge.

A kind is made of equalities between the reader's two inputs. It has a *signature* for every tuple of the edge: the hash
of what the equalities read of it, which is also the hash of what they read of each tuple on the other side that it
matches. So a reader that has nothing with some signature needs no tuple that has it, and says so by that one number.
The empty kind has one signature for all tuples: it is for a reader whose other input is empty.

The tuples of a kind are kept back at one input of the producing join, its *home*, before they have made anything. A
producer may have that done by those below it in turn, so an edge also has the kinds of readers further up that are over
its own aliases, as far as one partition has all tuples of a signature (JIT 3.3, Fig. 6).
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

MOST_KINDS = 1 << 10
"""Kinds of a plan: the low bits of a signature say which it is of. Those beyond are left out."""

_NUMBER = np.uint64(MOST_KINDS - 1)


@dataclass(frozen=True, slots=True)
class EdgeKind:
    """One kind of an edge.

    Attributes:
        number: of the kind in the plan, the same on every edge.
        own: what its equalities read of the edge's tuples, over the columns of the query; none of the empty kind.
        opposite: what they read of the reader's other input; None where the reader of the edge only passes on what
            another one further up says.
        home: the input of the producing join at which its tuples are kept back.
    """

    number: int
    own: tuple[Operand, ...]
    opposite: tuple[Operand, ...] | None
    home: int

    def signatures(self, operands: Sequence[Operand], resolve: Resolve, n: int) -> tuple[U64, Mask | None]:
        """Signatures of n tuples.

        Args:
            operands: `own` or `opposite`, over the columns that `resolve` knows.

        Returns:
            (n,) uint64, and (n,) bool False where a null keeps the tuple from ever matching (None: nowhere).
        """
        if not operands:
            return np.full(n, self.number, np.uint64), None
        hashes, valid = key_hashes([operand.values(resolve, n) for operand in operands])
        return (hashes & ~_NUMBER) | np.uint64(self.number), valid


def of_kinds(signatures: U64, numbers: Sequence[int]) -> U64:
    """Those signatures that are of kinds with some numbers."""
    return signatures[np.isin(signatures & _NUMBER, np.array(numbers, np.uint64))]


def own_kinds(
    reader: Join,
    side: int,
    condition: JoinCondition,
    whole: tuple[Operand, ...],
    suppressed: Callable[[Join], int],
    first: int,
) -> tuple[EdgeKind, ...]:
    """The kinds by which a join speaks of its input on `side`, itself a join's output, numbered from `first` on.

    Args:
        whole: the edge's partition key, where it has several partitions that are not the producers' own: then a
            signature must tell the partition, and only the whole key does.
        suppressed: the home of what is of no particular alias at a join.
    """
    producer = (reader.left, reader.right)[side]
    assert isinstance(producer, Join)
    pairs = [(term.operand(side), term.operand(1 - side)) for term in condition.keys]
    if whole:
        home = _home(producer, frozenset[str]().union(*(aliases_of(own.expr) for own, _ in pairs)))
        return () if home is None else (EdgeKind(first, *_split(pairs), home),)
    # Whoever has nothing at all says so first.
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
    """Those of the kinds of an edge that its producer passes on to what feeds its input on `side`, itself a join."""
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
    """The input of a join that has all of some aliases; None where they are of both."""
    for side, child in enumerate((producer.left, producer.right)):
        if aliases <= frozenset(child.aliases):
            return side
    return None
