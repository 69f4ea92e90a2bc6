"""Kinds of sub-tuples that a consumer may find without a partner: the candidate non-demanded sub-tuples (JIT IV-A).

A kind is a set of aliases of one input of a join, together with the join's predicates that read no other alias of that
input. If a tuple's values for these predicates have no partner in the opposite state, the consumer cannot use the
tuple, whatever its other components are: its sub-tuple over the kind's aliases is a non-demanded sub-tuple. With fewer
predicates a kind only detects fewer of them, so a kind may leave predicates out. It consists of the equalities if there
are any, since a hash look-up finds their matches. Otherwise it consists of the order comparisons, if all of them read
the same operand; one value then stands for them all.

Two tuples of one kind with equal values have the same *signature*, a hash. With equalities, a tuple of the opposite
side that matches them has that signature too. A null matches nothing, so a tuple with a null is never demanded and has
no signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from operators.data.keys import key_hashes
from operators.data.tuples import Tuples
from operators.kernels.hashing import U64
from operators.kernels.scan import MIRRORED
from operators.plan.predicates import JoinCondition, Operand, Term
from operators.state.match import LEFT, Match
from operators.state.sources import Sources
from schemas.columns import I64, Column, Mask
from schemas.errors import InvariantError
from schemas.query import aliases_of


@dataclass(frozen=True, slots=True)
class Kind:
    """The candidate sub-tuples of one input of a join over one set of aliases.

    Attributes:
        side: The input's side.
        aliases: The aliases that a sub-tuple consists of.
        terms: The predicates that decide which sub-tuples have partners; at least one.
    """

    side: int
    aliases: tuple[str, ...]
    terms: tuple[Term, ...]
    _condition: JoinCondition = field(repr=False, compare=False)

    @staticmethod
    def of(match: Match, side: int, aliases: Sequence[str]) -> Kind | None:
        """Return the kind over some aliases of a join's input. None if no predicate, or no usable one, reads only those
        of the input."""
        condition = match.condition
        return Kind._over(condition, side, tuple(a for a in match.sides[side] if a in aliases))

    @staticmethod
    def _over(condition: JoinCondition, side: int, aliases: tuple[str, ...]) -> Kind | None:
        terms = [t for t in all_terms(condition) if aliases_of(t.operand(side).expr) <= set(aliases)]
        equalities = [t for t in terms if t.op == "="]
        terms = equalities or terms
        if not terms or (not equalities and len({t.operand(side) for t in terms}) > 1):
            return None
        return Kind(side, aliases, tuple(terms), condition)

    def joined(self, others: Sequence[Kind]) -> Kind | None:
        """Return the kind over all aliases of this kind and others of the same input. None unless all are equality
        kinds, since order comparisons would read more than one operand."""
        if not all(kind.equal for kind in (self, *others)):
            return None
        aliases = tuple(dict.fromkeys(alias for kind in (self, *others) for alias in kind.aliases))
        return Kind._over(self._condition, self.side, aliases)

    @property
    def equal(self) -> bool:
        """True when the predicates are equalities, so that matching tuples have equal signatures."""
        return self.terms[0].op == "="

    @property
    def own(self) -> tuple[Operand, ...]:
        """The operand of each term on the kind's input."""
        return tuple(term.operand(self.side) for term in self.terms)

    @property
    def opposite(self) -> tuple[Operand, ...]:
        """The operand of each term on the opposite input."""
        return tuple(term.operand(1 - self.side) for term in self.terms)

    @property
    def ops(self) -> tuple[str, ...]:
        """Each term's operator, as in `own op opposite`."""
        return tuple(term.op if self.side == LEFT else MIRRORED[term.op] for term in self.terms)

    def own_hashes(self, sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
        """Return the signatures of tuples that have the kind's aliases.

        Returns:
            (n,) uint64 signatures, and (n,) bool, False where a null prevents any match (None if there is no null).
        """
        # All order comparisons read the same operand.
        return _hashes(self.own if self.equal else self.own[:1], sources, tuples)

    def opposite_hashes(self, sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
        """Return the signatures that tuples of the opposite input match, in the form of `own_hashes`.

        Raises:
            InvariantError: The kind is not an equality kind.
        """
        if not self.equal:
            raise InvariantError(f"{' '.join(self.aliases)} {self.ops[0]} has no signatures on the opposite side")
        return _hashes(self.opposite, sources, tuples)


def all_terms(condition: JoinCondition) -> tuple[Term, ...]:
    """Return the predicates by which a join finds pairs: the components of its key, or its nested-loop terms."""
    return condition.keys or condition.int_terms + condition.float_terms


def level_one(match: Match, side: int) -> tuple[Kind, ...]:
    """Return the kinds over single aliases of a join's input, in the input's order."""
    found = (Kind.of(match, side, (alias,)) for alias in match.sides[side])
    return tuple(kind for kind in found if kind is not None)


def lattice(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return the kinds over two or more of the aliases of some kinds of one input, by level (Fig. 7): 2**n - n - 1
    kinds for n equality kinds."""
    unions = (
        first.joined(others) for size in range(2, len(kinds) + 1) for first, *others in combinations(kinds, size)
    )
    return tuple(kind for kind in unions if kind is not None)


def term_nodes(match: Match, kinds: Sequence[Kind]) -> tuple[I64, I64]:
    """For a nested-loop join, return the index in `kinds` of the kind that has each whole-number term and each
    real-number term; -1 where none has it. The kinds share no alias. `operators.kernels.lattice` takes the result."""

    def places(terms: tuple[Term, ...]) -> I64:
        return np.array([next((k for k, kind in enumerate(kinds) if t in kind.terms), -1) for t in terms], np.int64)

    return places(match.condition.int_terms), places(match.condition.float_terms)


def _hashes(operands: tuple[Operand, ...], sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
    resolve = sources.resolver(tuples.aliases, tuples.rows)
    columns: list[Column] = [operand.values(resolve, len(tuples)) for operand in operands]
    return key_hashes(columns)
