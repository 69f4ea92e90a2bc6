"""Plans taken apart: each join an operator of its own, which any worker may run.

**An operator is an ordinary query.** A join over inputs that are sources or results of other operators is a query of
two streams: a sub-plan's results are a stream whose tuples carry their columns, and their expiry as one more column
that a predicate compares with the other side's time. So an operator runs in the same `Engine`, task, snapshot and
recovery as a whole query does; nothing below knows that it is a part (`decompose`).

**What travels** between operators are blocks of columns (`schemas.codecs.exchange`): `ts`, `expiry` (the least of the
components'), the columns that the rest of the plan reads, and of each component its `_ts` and its position in the log.
The last two say where a tuple stands in the total order of its stream, so that the top operator can put results of
equal ts into the order in which the fused engine has them (`route.Finish`), whatever way they came.

**Watermarks are in band.** After each epoch an operator writes its cut behind the epoch's blocks into every
partition of each topic that it feeds. A partition is fed by several tasks; each is a *channel* with a clock of its own,
and the reader's watermark is the least over all channels (`channels`).

**Splitting.** A join with an equality key can run as several tasks, each on a share of the keys: what feeds it is
partitioned by the hash of its key (`route`). Sources are not, so a source that feeds a split join, or several joins,
is read by an *intake*: an operator that only selects, and passes on. With PARTITION BY the sources are partitioned
already, by whoever produces them, and partition p of everything stays with task p.

**Feedback** (`feedback`). A reader asks by *signatures* (`kinds`) for what it does not demand to be kept back
(`demand`), the producer does so and says so in band (`withholding`); what the reader demands after all comes late, and
the reader waits for it before it goes on. What is asked for so often that answers cost more than is spared rests
(`worth`). Only inputs that are results of joins are spoken of, by equalities; of a split join's input only where the
whole key is of one input of its producer.

**Not taken apart** are ROWS windows (they count all tuples of a stream), EXCEPT, and aggregates.
"""
