"""What it costs to have a row in a shared operator, as far as a guard could spare it.

The unit is that of `operators.feedback.guard_payoff`, about a nanosecond; the costs come from what visits have counted.

A guard of A by C spares a row of A without partners two things: the way that it goes itself, up to C and what C would
have found, and being found by others on ways that have not come to C yet, with all that they make of it up to there.
On a way that has come to C before A, or begins there, it is hardly found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from operators.feedback.guard_payoff import ENTERED, FADING, KEPT, RETURNED
from operators.juggler.predicates.order import PIECE_NS, Work
from operators.juggler.routing.visits import Visit

WorkOf = Callable[[Visit], Work]


def way_ns(root: Visit, alias: str, by: str, work_of: WorkOf) -> float:
    """What was spent on ways that begin at `root` because of rows of `alias` that may have no partner in `by`."""
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
    """A visit and those after it, none after `by`'s."""
    yield visit
    if visit.inputs[-1] != by:
        for following in visit.next:
            yield from _up_to(following, by)


def _ns(work: Work) -> float:
    # A look into a structure costs the same for fewer rows.
    return work.ns() - work.pieces * PIECE_NS


@dataclass(slots=True)
class RowCost:
    """What a row of a guarded input costs that is not kept back, averaged over the past, which fades.

    Attributes:
        structures: how many it is entered into.
        own: of its own way; met: of being found, all its life.
    """

    structures: int
    own: float = 0.0
    met: float = 0.0
    _own_ns: float = 0.0
    _met_ns: float = 0.0
    _rows: float = 0.0
    _before: tuple[float, float, int] = (0.0, 0.0, 0)

    def update(self, own_ns: float, met_ns: float, rows: int) -> None:
        """Take in what has been spent so far, and the rows entered so far."""
        own, met, entered = (now - then for now, then in zip((own_ns, met_ns, rows), self._before, strict=True))
        self._before = own_ns, met_ns, rows
        self._own_ns = FADING * self._own_ns + own
        self._met_ns = FADING * self._met_ns + met
        self._rows = FADING * self._rows + entered
        if self._rows > 0:
            self.own, self.met = self._own_ns / self._rows, self._met_ns / self._rows

    def take_over(self, other: RowCost) -> None:
        """Go on from what another one knew."""
        self.own, self.met = other.own, other.met
        self._own_ns, self._met_ns, self._rows = other._own_ns, other._met_ns, other._rows

    @property
    def saved(self) -> float:
        """What it saves to keep a row back for good."""
        return self.structures * ENTERED + self.own + self.met - KEPT

    @property
    def returned(self) -> float:
        """What it costs to let a row in that was kept back."""
        return RETURNED + self.structures * ENTERED + self.met / 2


def ways_ns(roots: Mapping[str, Visit], alias: str, by: str, work_of: WorkOf) -> tuple[float, float]:
    """What was spent so far on rows' own ways, and on those of others that found them."""
    own = way_ns(roots[alias], alias, by, work_of)
    return own, sum(way_ns(root, alias, by, work_of) for name, root in roots.items() if name != alias)
