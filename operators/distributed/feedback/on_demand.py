"""Results that the joins of a new plan make on demand: just-in-time state completion (JISC) between tasks.

When a plan takes over at event time T, its tasks read the sources' windows again. With `moving-state` and `hybmig-bsc`
every join then makes all results of the windows, so that the states of the joins above are complete. With `jisc` a join
makes none of the results before T: it only enters its input in its states, which are complete after that. A reader
whose tuple, at T or later, matches results from before T requests them by their signature (`consumer`). The producer
then makes all results that have the signature and are alive, and sends them late (`producer`). Most signatures are
never requested, or their results expire before.

**Ahead.** T is known a little before the former plan's tasks have reached it. Until then no task of the new plan may
read a source any further, since the former tasks report its late tuples. But the consumer looks at the tuples that wait
to be read (`foresee`), and requests what they will match. So the producer answers as soon as it has reached T.

This uses the requests and notices of feedback (`operators.distributed.feedback`). All signatures count as suspended at
first. An answer sends all results of a signature again, also those at T or later. So it may be repeated, and a reader
that restarts and does not know what it has received may request it again.

**Few results.** A join that has caught up with the former plan estimates how many results from before T it would make.
If they are few, it sends all of them and makes the following ones in time (`producer.FEW`). Making them on demand would
save little, and each request costs a trip through Kafka.

**Where.** `Edge.on_demand` says so of an edge. Two things are required. First, the reader of the edge joins by an
equality, which gives a signature to ask for. Second, the reader can do without the earlier results until it is asked
itself. That holds for the top join, because the old plan has written the query's results before T, and for a join whose
own output is made on demand. Aggregates need all results, so with them nothing is made on demand.

A request about a tuple of the reader's own output is passed on to the producer whose results have the signature's
columns. The reader's tuples that have the signature may match results of its other input that are on demand, too:
these are requested first.

All results from before T have expired one lifetime after T. Then nothing is on demand any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanStart:
    """When the plan of a task began.

    Attributes:
        begin: returns event time T; END while it is not decided.
        former: returns the event time that the former plan has reached; END when it is over.
        resumed_at: the cut of the task's last commit; 0 if it has committed nothing.
    """

    begin: Callable[[], int]
    former: Callable[[], int]
    resumed_at: int = 0

    @property
    def first_new(self) -> int:
        """The least event time of tuples for which this incarnation requests results. Before it the old plan, or an
        earlier incarnation, has made the results."""
        return max(self.begin(), self.resumed_at)
