"""Estimates what a row costs in a shared operator, as far as a guard could save that cost.

`operators.juggler.feedback.watching` uses it. The unit is that of `operators.feedback.guard_payoff`, about a
nanosecond; the costs come from the work that visits have counted.

A guard of A by C saves two costs of a row of A without partners. One is the row's own probe path, up to the visit of C.
The other is that of probe paths of other rows that find the row before they reach C, with all work that follows from it
until then. A probe path that has visited C before A, or starts at C, hardly finds the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from operators.feedback.guard_payoff import BLACKLIST_NS, DECAY, ENTER_NS, RETURN_NS
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


@dataclass(slots=True)
class RowCost:
    """The cost of a row of a guarded input that is not set aside, as a decaying average.

    Attributes:
        structures: the number of structures that a row enters.
        own: nanoseconds of the row's own probe path.
        met: nanoseconds of other rows' probe paths for this row, over its lifetime.
    """

    structures: int
    own: float = 0.0
    met: float = 0.0
    _own_ns: float = 0.0
    _met_ns: float = 0.0
    _rows: float = 0.0
    _before: tuple[float, float, int] = (0.0, 0.0, 0)

    def update(self, own_ns: float, met_ns: float, rows: int) -> None:
        """Update the average by the totals so far: nanoseconds on own and on other rows' paths, and rows entered."""
        own, met, entered = (now - then for now, then in zip((own_ns, met_ns, rows), self._before, strict=True))
        self._before = own_ns, met_ns, rows
        self._own_ns = DECAY * self._own_ns + own
        self._met_ns = DECAY * self._met_ns + met
        self._rows = DECAY * self._rows + entered
        if self._rows > 0:
            self.own, self.met = self._own_ns / self._rows, self._met_ns / self._rows

    def take_over(self, other: RowCost) -> None:
        """Continue from the averages of another object."""
        self.own, self.met = other.own, other.met
        self._own_ns, self._met_ns, self._rows = other._own_ns, other._met_ns, other._rows

    @property
    def saved(self) -> float:
        """Nanoseconds saved by a row that is set aside and never returns."""
        return self.structures * ENTER_NS + self.own + self.met - BLACKLIST_NS

    @property
    def returned(self) -> float:
        """Nanoseconds that it costs to admit a row that was set aside."""
        return RETURN_NS + self.structures * ENTER_NS + self.met / 2


def paths_ns(roots: Mapping[str, Visit], alias: str, by: str, work_of: WorkOf) -> tuple[float, float]:
    """Nanoseconds spent so far on the rows' own probe paths, and on those of other rows that found them."""
    own = path_ns(roots[alias], alias, by, work_of)
    return own, sum(path_ns(root, alias, by, work_of) for name, root in roots.items() if name != alias)
