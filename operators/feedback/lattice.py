"""The lattice detector (JIT IV-A, Fig. 7 and 8): finds the minimal sub-tuples without a partner in produced tuples.

`operators.feedback.watch` uses it for nested-loop joins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.kinds import Kind, term_nodes
from operators.kernels.lattice import minimal_alive, note_matches
from operators.state.match import Match
from operators.state.side_state import SideState
from schemas.columns import Mask


class Lattice:
    """The lattice of candidate sub-tuples of one input of a nested-loop join.

    Args:
        match: The join's predicates.
        side: The input's side.
        singles: The kinds of level one.
    """

    def __init__(self, match: Match, side: int, singles: Sequence[Kind]) -> None:
        self._match = match
        self._side = side
        self._int_nodes, self._float_nodes = term_nodes(match, singles)
        self._nodes = len(singles)
        # Per lattice node, the aliases of its sub-tuples, in the input's order.
        self._aliases = [
            tuple(kind.aliases[0] for bit, kind in enumerate(singles) if node >> bit & 1)
            for node in range(1 << self._nodes)
        ]

    def identify(
        self, tuples: Tuples, states: Sequence[SideState], now: int
    ) -> tuple[Tuples, dict[tuple[str, ...], Mask], int]:
        """Find the minimal sub-tuples that no living entry of the opposite states matches.

        Returns:
            The tuples, without those that a null prevents from ever matching. Per set of aliases, (n,) True where the
                sub-tuple over them has no partner; sets without such a sub-tuple are left out. The number of
                comparisons.
        """
        probing = self._match.prepare(self._side, tuples)
        terms, n, compared = probing.terms, len(probing), 0
        seen = np.zeros((n, 1 << self._nodes), np.bool_)
        for state in states:
            compared += note_matches(
                terms.int_ops, terms.ints, state.int_terms, self._int_nodes,
                terms.float_ops, terms.floats, state.float_terms, self._float_nodes,
                np.full(n, now), True, False, state.life, state.ts, state.expiry, state.lo, state.hi, seen,
            )  # fmt: skip
        minimal = minimal_alive(seen)
        found = {self._aliases[node]: minimal[:, node] for node in np.flatnonzero(minimal.any(axis=0))}
        return probing.tuples, found, compared
