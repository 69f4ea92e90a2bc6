"""What feedback has done on one edge of a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EdgeCounters:
    """Counters since the edge began; none depends on the machine.

    Attributes:
        suspend, resume: signatures suspended and resumed; the empty one counts too.
        mark, unmark: the same for those that only the producer as a whole can keep back (Type II).
        kept_back: tuples that were kept back, as often as they were; `returned` of them were let through later.
        forgotten: tuples that can never be demanded.
        checked: signatures computed and looked up, what detecting costs.
    """

    suspend: int = 0
    resume: int = 0
    mark: int = 0
    unmark: int = 0
    kept_back: int = 0
    returned: int = 0
    forgotten: int = 0
    checked: int = 0
