"""Kinds of sub-tuples that a consumer may find without a partner: its candidate non-demanded sub-tuples (JIT IV-A).

A kind is a set of aliases of one input of a join, with those predicates of the join that read nothing else of that
input. A tuple whose values of these have no partner in the opposite state is of no use there, whatever else it is
made of: its part over the kind's aliases is a non-demanded sub-tuple. Fewer predicates only find fewer of them, so a
kind may leave some out: it is made of equalities where it has any, which are found by hash, and otherwise of order
comparisons, if they are all of one operand, which one value then stands for.

Two tuples of one kind with equal values have the same *signature*, a hash, and so has a tuple of the opposite side
that matches them. A null matches nothing: a tuple with one is never demanded, and has no signature.
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
    """Candidate sub-tuples of one input of a join.

    Attributes:
        side: the input's side.
        aliases: what a sub-tuple is made of.
        terms: the predicates that tell which of them have partners; at least one.
    """

    side: int
    aliases: tuple[str, ...]
    terms: tuple[Term, ...]
    _condition: JoinCondition = field(repr=False, compare=False)

    @staticmethod
    def of(match: Match, side: int, aliases: Sequence[str]) -> Kind | None:
        """The kind over some aliases of a join's input; None where no predicate, or none that will do, reads only
        those of it."""
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
        """The kind over all aliases of this one and others of the same input; None unless all are of equalities: order
        comparisons would be of more than one operand."""
        if not all(kind.equal for kind in (self, *others)):
            return None
        aliases = tuple(dict.fromkeys(alias for kind in (self, *others) for alias in kind.aliases))
        return Kind._over(self._condition, self.side, aliases)

    @property
    def equal(self) -> bool:
        """True when its predicates are equalities, so that signatures match by being equal."""
        return self.terms[0].op == "="

    @property
    def own(self) -> tuple[Operand, ...]:
        """What each term reads of the kind's input."""
        return tuple(term.operand(self.side) for term in self.terms)

    @property
    def opposite(self) -> tuple[Operand, ...]:
        """What each term reads of the opposite input."""
        return tuple(term.operand(1 - self.side) for term in self.terms)

    @property
    def ops(self) -> tuple[str, ...]:
        """Each term's operator, as in `own op opposite`."""
        return tuple(term.op if self.side == LEFT else MIRRORED[term.op] for term in self.terms)

    def own_hashes(self, sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
        """Signatures of tuples that have the kind's aliases.

        Returns:
            (n,) uint64, and (n,) bool False where a null keeps the tuple from ever matching (None: nowhere).
        """
        # All order comparisons are of one operand.
        return _hashes(self.own if self.equal else self.own[:1], sources, tuples)

    def opposite_hashes(self, sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
        """The signatures that tuples of the opposite input match; as `own_hashes`.

        Raises:
            InvariantError: the kind is not one of equalities.
        """
        if not self.equal:
            raise InvariantError(f"{' '.join(self.aliases)} {self.ops[0]} has no signatures on the opposite side")
        return _hashes(self.opposite, sources, tuples)


def all_terms(condition: JoinCondition) -> tuple[Term, ...]:
    """What a join finds pairs by: the components of its key, or its nested-loop terms."""
    return condition.keys or condition.int_terms + condition.float_terms


def level_one(match: Match, side: int) -> tuple[Kind, ...]:
    """The kinds over single aliases of a join's input, in the input's order."""
    found = (Kind.of(match, side, (alias,)) for alias in match.sides[side])
    return tuple(kind for kind in found if kind is not None)


def lattice(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """The kinds over two and more of some kinds of one input, by level (Fig. 7): 2**n - n - 1 of n with equalities."""
    unions = (
        first.joined(others) for size in range(2, len(kinds) + 1) for first, *others in combinations(kinds, size)
    )
    return tuple(kind for kind in unions if kind is not None)


def term_nodes(match: Match, kinds: Sequence[Kind]) -> tuple[I64, I64]:
    """For each whole-number and each real-number term of a nested-loop join, the place among `kinds`, which share no
    alias, of the one that has it; -1 where none has (`operators.kernels.lattice`)."""

    def places(terms: tuple[Term, ...]) -> I64:
        return np.array([next((k for k, kind in enumerate(kinds) if t in kind.terms), -1) for t in terms], np.int64)

    return places(match.condition.int_terms), places(match.condition.float_terms)


def _hashes(operands: tuple[Operand, ...], sources: Sources, tuples: Tuples) -> tuple[U64, Mask | None]:
    resolve = sources.resolver(tuples.aliases, tuples.rows)
    columns: list[Column] = [operand.values(resolve, len(tuples)) for operand in operands]
    return key_hashes(columns)
