"""Adds up what probe paths of a shared operator have cost, as far as a guard could save that cost.

`operators.juggler.feedback.demand` passes the sums to `operators.feedback.payoff.tuple_cost`, whose unit they have. The
costs come from the work that visits have counted.

A guard of A by C saves two costs of a row of A without partners: that of its own probe path, up to the visit of C, and
that of other rows' probe paths that find it before they reach C, with all work that follows from it until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from operators.juggler.predicates.order import PIECE_NS, VisitWork
from operators.juggler.routing.visits import Visit

WorkOf = Callable[[Visit], VisitWork]


def path_ns(root: Visit, alias: str, by: str, work_of: WorkOf) -> float:
    """Nanoseconds spent on probe paths from `root` for rows of `alias` that may have no partner in `by`."""
    visits: Iterator[Visit]
    if root.inputs[0] == alias:
        visits = (visit for following in root.next for visit in _up_to(following, by))
    else:
        visits = (
            after
            for visit in root.all()
            if visit.inputs[-1] == alias and by not in visit.inputs
            for after in _up_to(visit, by)
        )
    return sum(_ns(work_of(visit)) for visit in visits)


def _up_to(visit: Visit, by: str) -> Iterator[Visit]:
    """A visit and the visits below it, none below the visit of `by`."""
    yield visit
    if visit.inputs[-1] != by:
        for following in visit.next:
            yield from _up_to(following, by)


def _ns(work: VisitWork) -> float:
    # To open a piece costs the same for fewer rows.
    return work.ns() - work.pieces * PIECE_NS


def paths_ns(roots: Mapping[str, Visit], alias: str, by: str, work_of: WorkOf) -> tuple[float, float]:
    """Nanoseconds spent so far on the rows' own probe paths, and on those of other rows that found them."""
    own = path_ns(roots[alias], alias, by, work_of)
    return own, sum(path_ns(root, alias, by, work_of) for name, root in roots.items() if name != alias)
