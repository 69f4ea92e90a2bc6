"""What feedback has done on one edge of a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EdgeCounters:
    """Counters since the edge began; none depends on the machine.

    Attributes:
        suspend, resume: signatures suspended and resumed; the empty one counts too.
        mark, unmark: the same for those that only the producer as a whole can keep back (Type II).
        kept_back: source tuples that were kept back, as often as they were; `returned` of them were let through
            later, `forgotten` can never be demanded again.
        late_results: results produced late, since they were demanded after all.
        checked: signatures computed and looked up; what detecting costs.
        swept: entries looked at to keep filters and states current.
    """

    suspend: int = 0
    resume: int = 0
    mark: int = 0
    unmark: int = 0
    kept_back: int = 0
    returned: int = 0
    forgotten: int = 0
    late_results: int = 0
    checked: int = 0
    swept: int = 0
