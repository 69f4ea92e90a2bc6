"""Counters of the feedback on one edge of a plan, between a consumer and its producer. The guards count in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EdgeCounters:
    """Counts since the edge was created; none depends on the machine.

    Attributes:
        suspend: Signatures suspended, including the empty sub-tuple.
        resume: Signatures resumed, including the empty sub-tuple.
        mark: Signatures of Type II MNSs suspended: only the producer as a whole can keep back their tuples.
        unmark: Signatures of Type II MNSs resumed.
        kept_back: Tuples kept back; a tuple counts each time that it is kept back.
        returned: Of those, the tuples that entered later.
        forgotten: Tuples dropped because nothing can ever demand them.
        checked: Signatures computed and looked up, which is the cost of detection.
    """

    suspend: int = 0
    resume: int = 0
    mark: int = 0
    unmark: int = 0
    kept_back: int = 0
    returned: int = 0
    forgotten: int = 0
    checked: int = 0
