"""Distributed plans: each join of a query's plan becomes an operator of its own, which any worker may run.

`services.control.plan_versions` calls `decompose`. `services.placement.distributed` decides which tasks the operators
have and what each reads and writes; the consumer group assigns the tasks to workers.

**An operator is an ordinary query.** It joins two inputs, each a source or the results of another operator. The results
of a sub-plan are a stream whose tuples carry their columns, and their expiry as one more column that a predicate
compares with the other side's time. So an operator runs in the same `Engine`, task, snapshot and recovery as a whole
query, and none of these know that it is part of a plan (`decompose`, `operator`).

**Blocks** of columns travel between operators (`schemas.codecs.exchange`): `ts`, `expiry` (the least of the
components'), the columns that the rest of the plan reads, and for each component its `_ts` and its position in the log,
which is its record's. The tuples of a record whose arrays are unnested share these, so their ordinals travel, too. All
that gives a tuple's place in the total order of its stream. The top operator uses it to put results of equal ts into
the order of the fused engine (`edge_writer.ResultOrder`), whatever path they took. Nothing else depends on it: no
operator tells a tuple from another by its place.

**Watermarks travel in band.** After each epoch an operator writes its cut behind the epoch's blocks into every
partition of each topic that it feeds. Several tasks feed a partition; each is a *channel* with a clock of its own, and
the reader's watermark is the least over all channels (`edge_reader`).

**Splitting.** A join with an equality key can run as several tasks, each on a share of the keys: its inputs are
partitioned by the hash of its key (`edge_writer`). Sources are not, so a source that feeds a split join, or several
joins, is read by an *intake*: an operator that only selects tuples and forwards them. With PARTITION BY, the producers
of the sources have already partitioned them, and partition p of everything stays with task p.

**Feedback** (`feedback`). A reader requests that tuples it does not demand be kept back. By the same requests and
notices the joins of a new plan make results from before a plan change on demand.

**Aggregates** are an operator above the top join. Each of its tasks has a share of the groups, by the hash of the GROUP
BY values. A result carries its expiry, so the operator knows when the result dies.

**A set difference** is one operator, not one per subtracted stream: between two operators, every coming and going of a
tuple would travel. Its tasks share the keys by which all streams are subtracted.

**Memory budgets.** A join that has spilled tuples produces some results late, after its watermark has passed them.
Beside the watermark, the *processed up to* of a channel, blocks carry *complete up to*: no late result that follows has
a smaller ts (`Engine.complete`). A reader processes up to the first and forgets up to the second. Late results enter
its spilled state as a part that was joined with nothing yet (`Engine.enter_late`), and its own cleanup passes them on.
When a record of late results entered is an event of the reader's spill log, so a task that begins again repeats it at
the same instant. Aggregates take their input in order, so they proceed only up to the second.

**ROWS windows** count all tuples of a stream, so an intake of all streams numbers the tuples, and the windows become
predicates (`rows_windows`).
"""
